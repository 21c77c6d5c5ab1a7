"""Sources, datasets and runs at URLs, from the command line and from Python; what may leave the machine."""

from __future__ import annotations

import json
import time

import fsspec
import pytest
import yaml
from typer.testing import CliRunner

import datasets
import mie
from mie.cli import app
from mie.datasets import remote
from mie.errors import MieError
from mie.privacy.gate import Finding, Gate, Policy, PrivacyError
from tests.conftest import folder_source, write_folder


def command(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(done.exception, MieError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module")
def memory():
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    return filesystem


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    return tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")


@pytest.fixture(scope="module")
def built(memory, caches, tmp_path_factory):
    """A dataset at memory://b/ds, built from images at memory://b/images, and the same one on disk."""
    folder = tmp_path_factory.mktemp("local")
    root = write_folder(folder / "source", 8, patients=8, size=64)
    memory.put(str(root), "/b/images", recursive=True)
    recipe = {"name": "discs", "seed": 3, "split": {"test": 0.4}}
    paths = {}
    for name, place in (("here", str(root)), ("stored", "memory://b/images")):
        source = {**folder_source(root), "root": place, "deidentified": True}
        paths[name] = folder / f"{name}.yaml"
        paths[name].write_text(yaml.safe_dump({**recipe, "sources": [source]}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIE_CACHE", str(caches[0]))
        command("build", paths["here"], "-o", folder / "ds", "--workers", 1, "--no-stats")
        said = command("build", paths["stored"], "-o", "memory://b/ds", "--workers", 1, "--no-stats")
        assert "to memory://b/ds" in said
    return mie.Dataset(folder / "ds")


@pytest.fixture(autouse=True)
def this_machine(caches, monkeypatch, tmp_path):
    monkeypatch.setenv("MIE_CACHE", str(caches[0]))
    monkeypatch.chdir(tmp_path)


def test_a_dataset_built_from_storage_to_storage_is_the_same(built, memory, caches, monkeypatch):
    assert "/b/ds/dataset.json" in memory.store
    assert not any("/parts/" in name for name in memory.store)
    monkeypatch.setenv("MIE_CACHE", str(caches[1]))
    stored = mie.Dataset("memory://b/ds")
    assert stored.digest == built.digest
    assert (stored[0].input == built[0].input).all()
    command("verify", "memory://b/ds")


def test_hugging_face_datasets_reads_it_there(built):
    files = "memory://b/ds/data/test-*.parquet"
    rows = datasets.load_dataset("parquet", data_files={"test": files}, split="test", streaming=True)
    assert [row["id"] for row in rows] == built.table(["id"], "test")["id"]


def test_a_run_is_made_and_scored_at_its_url(built, memory, caches, monkeypatch):
    command("run", "memory://b/ds", "-e", "otsu", "-o", "memory://b/run", "--workers", 1)
    info = json.loads(memory.cat_file("/b/run/run.json"))
    assert info["status"] == "complete"
    assert info["dataset"]["path"] == "memory://b/ds"
    monkeypatch.setenv("MIE_CACHE", str(caches[1]))  # scored on another machine
    command("score", "memory://b/run", "--workers", 1)
    assert "/b/run/scores/miedb.paper.jsonl" in memory.store
    assert mie.Run.open("memory://b/run").dataset().digest == built.digest


_calls: list[str] = []
_most = [6]


def _interrupted(image, instruction):
    _calls.append(instruction)
    if len(_calls) >= _most[0]:
        raise KeyboardInterrupt
    return image


def test_a_run_that_is_interrupted_is_uploaded_and_resumed_elsewhere(built, memory, caches, monkeypatch):
    def run():
        with mie.work_folder("memory://b/stopped") as folder:
            mie.run("memory://b/ds", _interrupted, folder, workers=1)

    with pytest.raises(KeyboardInterrupt):
        run()
    before = memory.cat_file("/b/stopped/edits.jsonl").count(b"\n")
    assert before < _most[0]
    monkeypatch.setenv("MIE_CACHE", str(caches[1]))
    _most[0] = 100
    _calls.clear()
    run()
    assert len(_calls) == len(built) - before
    assert memory.cat_file("/b/stopped/edits.jsonl").count(b"\n") == len(built)


def test_a_run_is_uploaded_while_it_is_made(memory):
    with mie.work_folder("memory://b/live", sync_every=0.01) as folder:
        folder.mkdir()
        (folder / "edits.jsonl").write_text("1\n")
        (folder / "run.json").write_text("{}")
        for _ in range(500):
            if "/b/live/run.json" in memory.store:
                break
            time.sleep(0.01)
        assert memory.cat_file("/b/live/edits.jsonl") == b"1\n"


@pytest.fixture
def elsewhere(monkeypatch):
    """The storage is on another machine."""
    monkeypatch.setattr(remote, "_HERE", ())


def test_nothing_is_uploaded_without_consent(built, memory, elsewhere):
    with pytest.raises(PrivacyError, match="would be sent to another machine"):
        command("run", built.folder, "-e", "otsu", "-o", "memory://c/run")
    with (
        pytest.raises(PrivacyError, match="nobody says"),
        mie.work_folder("memory://c/x", Policy(allow_remote=True)) as folder,
    ):
        folder.mkdir()
        (folder / "a.txt").write_text("x")
    assert not any(name.startswith("/c/") for name in memory.store)
    # Reading needs none, and what a verb adds to a dataset that it reads stays here.
    command("stats", "memory://b/ds")


def test_images_are_looked_at_before_they_leave(built, memory, elsewhere, monkeypatch):
    seen, marked = [], [True]

    def look(gate, pixels, where):
        seen.append(where)
        return [Finding(where, "text", "text burned into the image", (0, 0, 9, 9))] if marked else []

    monkeypatch.setattr(Gate, "look", look)
    words = ("choose", built.folder, "--quota", 2, "--split", "all", "-o", "memory://c/few", "--allow-remote")
    with pytest.raises(PrivacyError, match="may identify a patient"):
        command(*words)
    assert len(seen) == 4  # input and target image of two samples
    assert not any(name.startswith("/c/") for name in memory.store)
    marked.clear()
    command(*words[:-3], "-o", "memory://c/clean", "--allow-remote")
    assert len(mie.Dataset("memory://c/clean")) == 2
    (log,) = remote.Copy("memory://c/clean").home.glob("*.jsonl")
    (line,) = map(json.loads, log.read_text().splitlines())
    assert (line["event"], line["destination"]) == ("uploaded", "memory://c/clean")


@pytest.mark.parametrize(
    ("endpoint", "leaves"),
    [("http://127.0.0.1:9000", False), ("http://localhost:9000", False), ("https://s3.amazonaws.com", True)],
)
def test_a_server_on_this_machine_needs_no_consent(elsewhere, monkeypatch, endpoint, leaves):
    monkeypatch.setattr(remote, "_endpoint", lambda storage: endpoint)
    assert remote.leaves_this_machine("memory://b/x") is leaves
