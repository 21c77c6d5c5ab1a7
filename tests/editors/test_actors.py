"""`--engine ray`: the same build, run and scores as in one process, also when actors die."""

from __future__ import annotations

import json
import sys

import pytest

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.engine import start_ray
from mie.datasets.recipe import parse_recipe
from mie.editors.actors import _Actor
from mie.editors.run import run_editor
from mie.errors import ConfigError, MieError
from mie.scoring.score import score
from tests.conftest import folder_source
from tests.editors.conftest import outputs

# Inverts the picture. For two instructions it first kills the process that started it: for "once" the first
# time, for "always" each time.
EDIT = """
import os, pathlib, signal, sys
from PIL import Image, ImageOps
source, target, seed, folder = sys.argv[1:]
plan = dict(line.split() for line in (pathlib.Path(folder) / "plan").read_text().splitlines())
what = plan.get(seed)
mark = pathlib.Path(folder) / f"killed-{seed}"
if what == "always" or (what == "once" and not mark.exists()):
    mark.touch()
    os.kill(os.getppid(), signal.SIGKILL)
ImageOps.invert(Image.open(source)).save(target)
"""


def lines(run):
    """What the journal says, without times, in any order."""
    body = [json.loads(line) for line in (run.folder / "edits.jsonl").read_text().splitlines()]
    return sorted(json.dumps({**line, "seconds": 0}) for line in body)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    pytest.importorskip("ray", reason="the ray extra is not installed")
    ray = start_ray(2)
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_the_build_is_that_of_one_process(cluster, dataset, tmp_path):
    recipe = {"name": "discs", "seed": 3, "split": {"test": 0.4}}
    recipe["sources"] = [folder_source(dataset.parent / "source")]
    build(parse_recipe(recipe, where="t", base=tmp_path), tmp_path / "d", engine="ray", workers=2)
    for path in sorted(p for p in dataset.rglob("*") if p.is_file()):
        assert (tmp_path / "d" / path.relative_to(dataset)).read_bytes() == path.read_bytes(), path


@pytest.mark.slow
def test_the_run_is_that_of_one_process(cluster, dataset, tmp_path):
    options = {"attempts": 2, "limit": 12}
    local = run_editor(dataset, "kmeans", tmp_path / "local", **options)
    ray = run_editor(dataset, "kmeans", tmp_path / "ray", engine="ray", workers=2, **options)
    assert outputs(ray.folder) == outputs(local.folder)
    assert lines(ray) == lines(local)
    same = ("editor", "config", "counts", "status")
    assert {key: ray.info[key] for key in same} == {key: local.info[key] for key in same}
    scores = [score(run, "miedb", engine=engine) for run, engine in ((local, "local"), (ray, "ray"))]
    assert scores[0]["b_psnr"] == scores[1]["b_psnr"]
    files = [(run.folder / "scores/miedb.paper.jsonl").read_text().splitlines()[1:] for run in (local, ray)]
    assert files[0] == files[1]
    # A run on Ray is resumed in one process, and the other way round: it is the same run.
    for path in sorted((ray.folder / "outputs").iterdir())[:3]:
        path.unlink()
    again = run_editor(dataset, "kmeans", ray.folder, **options)
    assert outputs(again.folder) == outputs(local.folder)


@pytest.mark.slow
def test_an_actor_that_dies_costs_only_its_edits_in_flight(cluster, dataset, tmp_path):
    (tmp_path / "edit.py").write_text(EDIT)
    (tmp_path / "plan").write_text("")
    editor = f"command:{sys.executable} {tmp_path}/edit.py {{input}} {{output}} {{seed}} {tmp_path}"
    whole = run_editor(dataset, editor, tmp_path / "whole", limit=8)
    seeds = {edit.seed: edit.sample_id for edit in whole.edits().values()}
    once, always = sorted(seeds)[:2]
    (tmp_path / "plan").write_text(f"{once} once\n{always} always\n")
    run = run_editor(dataset, editor, tmp_path / "run", limit=8, engine="ray", workers=2, batch_size=2)
    failed = {edit.sample_id: edit.reason for edit in run.edits().values() if edit.state == "failed"}
    assert list(failed) == [seeds[always]]
    assert "the process that made this edit died" in failed[seeds[always]]
    assert run.info["counts"] == {"samples": 8, "edits": 8, "done": 7, "failed": 1, "refused": 0}
    assert (tmp_path / f"killed-{once}").exists()
    (tmp_path / "plan").write_text("")
    run = run_editor(dataset, editor, run.folder, limit=8, engine="ray", workers=1, retry_failed=True)
    assert outputs(run.folder) == outputs(whole.folder)


@pytest.mark.slow
def test_when_a_machine_is_gone_the_others_go_on(cluster, dataset, tmp_path, monkeypatch):
    """The cluster has nothing to run a new actor on: one actor less makes the edits of both."""
    (tmp_path / "edit.py").write_text(EDIT)
    (tmp_path / "plan").write_text("")
    editor = f"command:{sys.executable} {tmp_path}/edit.py {{input}} {{output}} {{seed}} {tmp_path}"
    whole = run_editor(dataset, editor, tmp_path / "whole", limit=6)
    seed = min(edit.seed for edit in whole.edits().values())
    (tmp_path / "plan").write_text(f"{seed} once\n")
    monkeypatch.setattr(cluster, "available_resources", dict)
    monkeypatch.setattr("mie.editors.actors._PATIENCE", 0.1)
    run = run_editor(dataset, editor, tmp_path / "run", limit=6, engine="ray", workers=2)
    assert (tmp_path / f"killed-{seed}").exists()
    assert run.info["counts"]["failed"] == 0
    assert outputs(run.folder) == outputs(whole.folder)


@pytest.mark.slow
def test_more_actors_than_cores_are_refused_instead_of_waiting_for_ever(cluster, dataset, tmp_path):
    with pytest.raises(ConfigError, match="the cluster is too small"):
        run_editor(dataset, "identity", tmp_path / "run", engine="ray", workers=3)


def test_an_actor_reports_what_cannot_be_loaded(tmp_path):
    error = _Actor(f"folder:{tmp_path}/nowhere").load()
    assert isinstance(error, MieError)
    assert _Actor("identity").load() is None


def test_what_other_processes_cannot_open_is_refused(dataset, tmp_path):
    with pytest.raises(ConfigError, match="other processes cannot be given this editor"):
        run_editor(dataset, lambda image, instruction: image, tmp_path / "run", engine="ray")
    with pytest.raises(ConfigError, match="did you mean 'ray'"):
        run_editor(dataset, "identity", tmp_path / "run", engine="rya")
    assert not (tmp_path / "run").exists()
    assert len(Dataset(dataset)) > 8


def test_ray_is_started_again_when_a_node_is_late(monkeypatch):
    ray = pytest.importorskip("ray", reason="the ray extra is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given: list[dict[str, object]] = []
    late = 2

    def init(**options):
        given.append(options)
        if len(given) <= late:
            raise Exception("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: len(given) > late)
    assert start_ray(2) is ray
    assert [options["address"] for options in given] == ["local"] * 3
    given.clear()
    late = 3
    with pytest.raises(MieError, match="Ray did not start: The current node timed out"):
        start_ray(2)
