"""Builds: whole, resumed, killed, and fed with bad files. Bytes are compared, not just counts."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from mie.datasets import build as building
from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.recipe import parse_recipe
from mie.datasets.rejected import read_rejected
from mie.datasets.verify import verify
from mie.errors import ConfigError, MieError
from tests import forked_python
from tests.conftest import crop, folder_source, write_folder


def config(root, **body):
    return parse_recipe(
        {"name": "discs", "seed": 3, "sources": [folder_source(root)], **body}, where="t", base=Path()
    )


def fingerprint(folder):
    """Every file's name and bytes."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("source"), 150, patients=30, size=96)


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "dataset"
    build(config(source), folder, workers=1)
    return folder


def test_painting_needs_neither_numba_nor_pandas(source, tmp_path):
    """Together they would cost every worker of a build more than a second before its first image."""
    script = """
import json, sys
from pathlib import Path
from mie.datasets.build import build
from mie.datasets.recipe import parse_recipe
recipe, folder = sys.argv[1:]
build(parse_recipe(json.loads(recipe), where="t", base=Path()).limited(20), folder, workers=1)
print([name for name in ("numba", "pandas", "scipy") if name in sys.modules])
"""
    recipe = json.dumps({"name": "x", "sources": [folder_source(source)]})
    command = [sys.executable, "-c", script, recipe, str(tmp_path / "dataset")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_build_is_sound_and_complete(whole):
    dataset = Dataset(whole)
    result = verify(whole, workers=1)
    assert result.problems == []
    assert result.samples == len(dataset) > 120
    assert len(dataset.shards("train")) > 1
    by_split = {s: set(dataset.table(["patient_id"], s)["patient_id"]) for s in ("train", "test")}
    assert by_split["train"]
    assert by_split["test"]
    assert not by_split["train"] & by_split["test"]
    assert not (whole / "parts").exists()


def test_workers_do_not_change_a_byte(source, whole, tmp_path):
    build(config(source), tmp_path / "dataset", workers=3)
    assert fingerprint(tmp_path / "dataset") == fingerprint(whole)


def test_a_second_build_finds_the_first(source, whole):
    before = fingerprint(whole)
    assert build(config(source), whole).already_there
    assert fingerprint(whole) == before


def test_a_resumed_build_counts_what_it_found(source, tmp_path):
    whole, before, after = [], [], []
    build(config(source), tmp_path / "whole", workers=1, progress=whole.append)

    def stop(told):
        before.append(told)
        if told.done >= 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(config(source), tmp_path / "d", workers=1, progress=stop)
    build(config(source), tmp_path / "d", workers=1, progress=after.append)
    made = [told for told in after if told.stage == "make"]
    assert made[0] in before
    assert made[0].kept > 0
    assert made[-1] == [told for told in whole if told.stage == "make"][-1]
    assert made[-1].refused > 0


def test_another_recipe_is_not_written_over_it(source, whole):
    with pytest.raises(MieError, match="another dataset"):
        build(config(source, seed=4), whole)


def test_overwrite_replaces_it(source, whole, tmp_path):
    build(config(source, seed=4), tmp_path / "d", workers=1, limit=20)
    build(config(source), tmp_path / "d", workers=1, overwrite=True)
    assert fingerprint(tmp_path / "d") == fingerprint(whole)


def test_a_limit_is_part_of_the_dataset(source, tmp_path):
    result = build(config(source), tmp_path / "d", workers=1, limit=10)
    assert result.info["counts"]["samples"] + sum(result.info["rejected"].values()) == 10
    with pytest.raises(MieError, match="another dataset"):
        build(config(source), tmp_path / "d", workers=1)


@pytest.mark.parametrize("strange", ["notes.txt", "data/my-results.csv", "README.md"])
def test_a_folder_with_something_else_is_left_alone(source, tmp_path, strange):
    path = tmp_path / strange
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(MieError, match="something else"):
            build(config(source), tmp_path, overwrite=overwrite)
    assert path.read_text() == "mine"
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]


@pytest.mark.slow
def test_killed_again_and_again_it_ends_with_the_same_bytes(source, whole, tmp_path):
    """SIGKILL to the whole process group at random moments, until one run gets through."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"name": "discs", "seed": 3, "sources": [folder_source(source)]}))
    folder = tmp_path / "dataset"
    command = [
        sys.executable,
        "-m",
        "mie",
        "build",
        str(recipe),
        "-o",
        str(folder),
        "--workers",
        "2",
        "--no-stats",
    ]
    draw = random.Random(1)
    kills = 0
    for attempt in range(40):
        process = forked_python.Started(command)
        # Later attempts get more and more time, so that the test ends on slow machines too; the first get so
        # little that they are killed on fast ones.
        if process.wait(draw.uniform(0.1, 0.4) * 1.4**attempt) is None:
            kills += 1
            process.kill()
            continue
        assert process.returncode == 0, process.errors()
        break
    assert kills >= 2
    assert fingerprint(folder) == fingerprint(whole)


def test_workers_end_with_a_build_that_is_killed(source, tmp_path):
    """Only the build's own process is killed, while each worker is in the middle of a part."""
    script = tmp_path / "script.py"
    script.write_text("""
import json, os, sys, time
from pathlib import Path
from mie.datasets import build as building
from mie.datasets.recipe import parse_recipe

def endless(task):
    Path(sys.argv[2], str(os.getpid())).touch()
    time.sleep(600)

building.make_part = endless
if __name__ == "__main__":
    recipe = parse_recipe(json.loads(sys.argv[1]), where="t", base=Path())
    building.build(recipe, Path(sys.argv[2], "dataset"), workers=2)
""")
    recipe = json.dumps({"name": "x", "sources": [folder_source(source)]})
    command = [sys.executable, str(script), recipe, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while sum(p.name.isdigit() for p in tmp_path.iterdir()) < 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)  # the pipes end with the last process that holds them


def test_a_build_in_a_script_without_a_guard_says_what_to_do(source, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import json, sys
from pathlib import Path
from mie.datasets.build import build
from mie.datasets.recipe import parse_recipe
build(parse_recipe(json.loads(sys.argv[1]), where="t", base=Path()), sys.argv[2], workers=2)
""")
    recipe = json.dumps({"name": "discs", "seed": 3, "sources": [folder_source(source)]})
    command = [sys.executable, str(script), recipe, str(tmp_path / "dataset")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("MieError") :]
    assert 'put the call under `if __name__ == "__main__":`' in last


def test_killed_while_finishing_it_ends_with_the_same_bytes(source, whole, tmp_path, monkeypatch):
    """Stop after every single step of the finish."""

    for name in ("write_shards", "write_rejected", "data_card", "write_info"):
        folder = tmp_path / name
        with monkeypatch.context() as patch:
            real = getattr(building, name)

            def stop(*args, real=real, name=name):
                if name != "write_info":
                    real(*args)
                raise KeyboardInterrupt

            patch.setattr(building, name, stop)
            with pytest.raises(KeyboardInterrupt):
                build(config(source), folder, workers=1)
        assert not (folder / "dataset.json").exists()
        build(config(source), folder, workers=1)
        assert fingerprint(folder) == fingerprint(whole)


def test_resuming_does_not_redo_finished_parts(source, tmp_path, monkeypatch):
    made = []
    real = building.make_part

    def stop_after_two(task):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(task.part.number)
        return real(task)

    monkeypatch.setattr(building, "make_part", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        build(config(source), tmp_path / "d", workers=1)
    again = []
    monkeypatch.setattr(building, "make_part", lambda task: (again.append(task.part.number), real(task))[1])
    build(config(source), tmp_path / "d", workers=1)
    assert made == [0, 1]
    assert again == [2]


def test_changed_sources_are_not_mixed_into_an_unfinished_build(source, tmp_path, monkeypatch):
    root = write_folder(tmp_path / "source", 4, size=96)
    monkeypatch.setattr(building, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        build(config(root), tmp_path / "d", workers=1)
    cv2.imwrite(str(root / "images" / "p00_0000.png"), crop(99, 96, 96))
    with pytest.raises(MieError, match="unfinished build of something else"):
        build(config(root), tmp_path / "d", workers=1)


def test_bad_files_are_recorded_and_the_rest_is_built(tmp_path):
    root = write_folder(tmp_path / "source", 12)
    images, masks = root / "images", root / "masks"
    data = (images / "p00_0000.png").read_bytes()
    (images / "p00_0000.png").write_bytes(data[: len(data) // 2])
    (images / "p01_0001.png").write_bytes(b"")
    (images / "p02_0002.png").write_text("I am no picture")
    cv2.imwrite(str(masks / "p03_0003_mask.png"), np.zeros((7, 7), np.uint8))
    cv2.imwrite(str(masks / "p04_0004_mask.png"), np.full((160, 160), 13, np.uint8))
    cv2.imwrite(str(masks / "p05_0005_mask.png"), np.zeros((160, 160), np.uint8))
    (masks / "p06_0006_mask.png").unlink()
    cv2.imwrite(str(images / "p07_0007.png"), np.full((160, 160, 3), 9, np.uint8))
    result = build(config(root, keep_names=True), tmp_path / "d", workers=1)
    refused = {
        r.where.split(" ")[0]: (r.gate, r.reason) for r in read_rejected(tmp_path / "d/rejected.parquet")
    }
    expected = {
        "images/p00_0000.png": ("image", "truncated"),
        "images/p01_0001.png": ("image", "empty"),
        "images/p02_0002.png": ("image", "not a picture"),
        "images/p03_0003.png": ("image", "differ in size"),
        "images/p04_0004.png": ("image", "13 on 25600 px"),
        "images/p05_0005.png": ("empty", "no target"),
        "images/p06_0006.png": ("source", "p06_0006_mask.png"),
        "images/p07_0007.png": ("blank", "single colour"),
    }
    assert set(refused) == set(expected)
    for where, (gate, word) in expected.items():
        assert refused[where][0] == gate, where
        assert word in refused[where][1], refused[where]
    assert result.info["counts"]["samples"] == 4
    assert result.bad_files == 6
    assert verify(tmp_path / "d", workers=1).ok


# A decoder that ends its process, and a file that asks for more memory than there is.
DEADLY = """
import json, os, sys
from pathlib import Path
from mie.datasets.build import build
from mie.datasets.recipe import parse_recipe
from mie.sources.folder import FolderSource

def load(self, unit, real=FolderSource.load):
    if "0001" in unit.key:
        os.abort()
    if "0003" in unit.key:
        raise MemoryError
    return real(self, unit)

FolderSource.load = load
if __name__ == "__main__":
    recipe, folder = sys.argv[1:]
    build(parse_recipe(json.loads(recipe), where="t", base=Path()), folder, workers=1, isolate=True)
"""


def test_a_file_that_ends_the_only_worker_is_rejected_by_name(tmp_path):
    root = write_folder(tmp_path / "source", 6)
    script = tmp_path / "script.py"
    script.write_text(DEADLY)
    recipe = {"name": "discs", "seed": 3, "keep_names": True, "sources": [folder_source(root)]}
    arguments = [sys.executable, str(script), json.dumps(recipe, default=str), str(tmp_path / "d")]
    subprocess.run(arguments, check=True, timeout=300, stderr=subprocess.PIPE)
    refused = {r.where.partition("_")[2]: r.reason for r in read_rejected(tmp_path / "d/rejected.parquet")}
    assert refused == {
        "0001.png": "reading it ended the worker process",
        "0003.png": "there is not enough memory for it",
    }
    assert len(Dataset(tmp_path / "d")) == 4


def test_odd_names_pipes_and_dangling_links_are_rejected_by_name(tmp_path):
    root = write_folder(tmp_path / "source", 5)
    os.mkfifo(root / "images" / "p08_0008.png")
    (root / "images" / "p09_0009.png").symlink_to(root / "nowhere.png")
    odd = os.fsencode(root / "images") + b"/p0\xff_0007.png"
    Path(os.fsdecode(odd)).write_bytes(b"")
    (root / "images" / "p06_0006.png").symlink_to("/dev/zero")
    build(config(root, keep_names=True), tmp_path / "d", workers=1)
    refused = {r.where: r.reason for r in read_rejected(tmp_path / "d/rejected.parquet")}
    assert refused == {
        "images/p06_0006.png": "not a regular file",
        "images/p08_0008.png": "not a regular file",
        "images/p09_0009.png": "not a regular file",
        "images/p0\\xff_0007.png": "the file's name is not UTF-8",
    }
    assert len(Dataset(tmp_path / "d")) == 5
    assert verify(tmp_path / "d", workers=1).ok


def test_sixteen_bit_images_keep_a_record_of_their_window(tmp_path):
    root = write_folder(tmp_path / "source", 2)
    for path in sorted((root / "images").iterdir()):
        grey = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE).astype(np.uint16)
        cv2.imwrite(str(path), grey * 12 + 300)
    build(config(root, split={"test": 1.0}), tmp_path / "d", workers=1)
    for sample in Dataset(tmp_path / "d").samples():
        (step,) = sample.params["image_steps"]
        assert step["step"] == "window"
        assert step["low"] >= 300
        assert (sample.input.min(), sample.input.max()) == (0, 255)


def test_duplicates_and_near_duplicates_across_splits_leave_training(tmp_path):
    """The same picture once as PNG in training and once as JPEG under another patient in test."""
    root = tmp_path / "source"
    sets = {}
    for split in ("train", "test"):
        sets[split] = write_folder(root / split, 6, size=256)
    for n in range(6):
        path = sets["test"] / "images" / f"p{n:02d}_{n:04d}.png"
        image = crop(n if n < 2 else 40 + n, 256, 256)
        ok, data = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 80])
        assert ok
        path.write_bytes(data)
    item = folder_source(root)
    item["layout"] = {
        "kind": "folder",
        "images": "{split}/images/{id}.png",
        "masks": "{split}/masks/{id}_mask.png",
    }
    recipe = parse_recipe({"name": "x", "keep_names": True, "sources": [item]}, where="t", base=Path())
    build(recipe, tmp_path / "d", workers=1)
    leaks = [r for r in read_rejected(tmp_path / "d/rejected.parquet") if r.gate == "leak"]
    assert sorted(r.where for r in leaks) == ["train/images/p00_0000.png", "train/images/p01_0001.png"]
    assert verify(tmp_path / "d", workers=1).ok


def test_nothing_kept_is_an_error_and_leaves_the_folder_free(tmp_path):
    root = write_folder(tmp_path / "source", 2)
    masks = {path: path.read_bytes() for path in (root / "masks").iterdir()}
    for path in masks:
        cv2.imwrite(str(path), np.zeros((160, 160), np.uint8))
    for _ in range(2):  # the rejections of the first are no obstacle
        with pytest.raises(MieError, match="no sample was kept") as error:
            build(config(root), tmp_path / "d", workers=1)
        assert "2 × empty: no target is marked" in error.value.found
    assert len(read_rejected(tmp_path / "d/rejected.parquet")) == 2
    for path, data in masks.items():
        path.write_bytes(data)
    assert build(config(root, seed=4), tmp_path / "d", workers=1).info["counts"]["samples"] == 2


def test_an_empty_dataset_of_an_earlier_version_gives_way(source, whole, tmp_path):
    folder = tmp_path / "d"
    shutil.copytree(whole, folder)
    info = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps({**info, "counts": {**info["counts"], "samples": 0}}))
    shutil.rmtree(folder / "data")
    (folder / "data").mkdir()
    result = build(config(source, seed=9).limited(8), folder, workers=1)
    assert not result.already_there
    assert len(Dataset(folder)) == 8


@pytest.mark.parametrize(
    ("split", "fixed", "empty"),
    [
        ({"test": 0.2}, "train", ["test"]),
        ({"test": 0.2, "val": 0.1}, "test", ["train", "val"]),
        ({"test": 0}, "train", []),
        ({"test": 0.7, "val": 0.3}, "train", ["val", "test"]),  # train is not asked for, though it is there
        ({"test": 1}, "test", []),
    ],
)
def test_splits_without_samples_are_named(source, tmp_path, split, fixed, empty):
    body = {"name": "x", "split": split, "sources": [folder_source(source, split=fixed, limit=6)]}
    result = build(parse_recipe(body, where="t", base=Path()), tmp_path / "d", workers=1)
    assert result.empty_splits == empty


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_grows_image_by_image_and_ends_with_the_truth(source, tmp_path, workers):
    heard = []
    result = build(config(source), tmp_path / "d", workers=workers, progress=heard.append)
    made = [at for at in heard if at.stage == "make"]
    done = [at.done for at in made]
    assert (done[0], done[-1], made[-1].total) == (0, 150, 150)
    assert done == sorted(done)
    assert made[-1].kept + made[-1].refused >= 150
    assert result.info["counts"]["samples"] <= made[-1].kept
    if workers == 1:  # a pool is looked at now and then, and these images take no time
        assert len(set(done)) > 100


def test_refusals_name_no_place_on_this_machine(tmp_path):
    root = write_folder(tmp_path / "source", 3)
    (root / "images" / "p00_0000.png").write_bytes(b"")
    build(config(root.resolve(), keep_names=True), tmp_path / "d", workers=1)
    (rejection,) = read_rejected(tmp_path / "d/rejected.parquet")
    assert rejection.where == "images/p00_0000.png"
    assert str(tmp_path) not in rejection.reason


def test_two_builds_into_one_folder(source, tmp_path):
    script = (
        "import sys, time, pathlib\n"
        "from mie.core.files import folder_lock\n"
        "with folder_lock(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "d")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MieError, match="another process"):
            build(config(source), tmp_path / "d", workers=1)
    finally:
        holder.kill()
        holder.wait()


def test_a_full_disk_stops_cleanly_and_the_build_goes_on_later(source, whole, tmp_path):
    """The kernel refuses writes past a limit that lets small files through but no shard."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"name": "discs", "seed": 3, "sources": [folder_source(source)]}))
    folder = tmp_path / "dataset"
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))\n"
        "sys.argv = ['mie', 'build', sys.argv[1], '-o', sys.argv[2], '--workers', '1', '--no-stats']\n"
        "from mie.cli import main\n"
        "main()\n"
    )
    full = subprocess.run(
        [sys.executable, "-c", script, str(recipe), str(folder)], capture_output=True, text=True
    )
    assert full.returncode == 1
    assert "the disk is full" in full.stderr
    assert "run the same command again" in full.stderr
    assert not list(folder.rglob("*.tmp"))
    build(config(source), folder, workers=2)
    assert fingerprint(folder) == fingerprint(whole)


def test_an_empty_or_missing_source_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(MieError, match="no image was found"):
        build(config(tmp_path / "empty"), tmp_path / "d")
    with pytest.raises(MieError, match="no such folder"):
        build(config(tmp_path / "nowhere"), tmp_path / "d")


def test_an_unknown_engine_is_a_config_error(source, tmp_path):
    with pytest.raises(ConfigError, match="'local'"):
        build(config(source), tmp_path / "d", engine="locl")


def test_hugging_face_opens_it(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    opened = datasets.load_dataset(str(whole), cache_dir=str(tmp_path))
    info = json.loads((whole / "dataset.json").read_text())
    assert {k: len(v) for k, v in opened.items()} == info["counts"]["by_split"]
    row = opened["test"][0]
    first = next(Dataset(whole).samples("test"))
    assert row["prompt"] == first.prompt
    assert np.array_equal(np.asarray(row["target_image"]), first.target_image)
    assert row["mask"].mode == "L"


def test_hugging_face_opens_a_rebuilt_dataset_and_not_its_cached_forerunner(source, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    prompts = []
    for seed in (1, 2):
        build(config(source, seed=seed), tmp_path / "d", workers=1, limit=12, overwrite=True)
        opened = datasets.load_dataset(str(tmp_path / "d"), cache_dir=str(tmp_path / "cache"))
        prompts.append({row["id"]: row["prompt"] for split in opened.values() for row in split})
        expected = Dataset(tmp_path / "d").table(["id", "prompt"])
        assert prompts[-1] == dict(zip(expected["id"], expected["prompt"], strict=True))
    assert prompts[0] != prompts[1]


def test_time_is_not_part_of_a_dataset(source, whole, tmp_path):
    time.sleep(1.1)
    build(config(source), tmp_path / "d", workers=2)
    assert fingerprint(tmp_path / "d") == fingerprint(whole)
