"""Killed at any moment and started again, a training ends with the weights of one that nobody interrupted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

from mie.errors import ConfigError, MieError
from mie.training.checkpoints import amend_checkpoint, newest
from mie.training.folder import Recorder, TrainingFolder, read_log
from mie.training.loop import train
from tests import forked_python
from tests.training.tiny import tiny_config

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def digests(out: Path, step: int) -> dict[str, str]:
    files = [out / "weights.safetensors", *(out / f"checkpoints/step-{step:06d}").glob("*.safetensors")]
    assert len(files) == 4
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def history(out: Path) -> list[dict[str, Any]]:
    clocks = ("seconds", "images_per_second", "validation_seconds", "data_wait")
    return [{k: v for k, v in line.items() if k not in clocks} for line in read_log(out / "log.jsonl")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained in a process of its own, with one thread as the killed ones have."""
    out = tmp_path_factory.mktemp("whole") / "out"
    command = [sys.executable, str(Path(__file__).with_name("kill.py")), str(out), "0", "0"]
    forked_python.run(command, env=ENVIRONMENT, check=True)
    return out


def test_killed_at_random_moments(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, str(Path(__file__).with_name("kill.py")), str(out), "6", "20"]
    done = forked_python.run(command, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1, "no kill hit a living process"
    resumed = [
        line["step"] for line in map(json.loads, (out / "log.jsonl").open()) if line["event"] == "resume"
    ]
    assert any(step > 0 for step in resumed), resumed
    assert digests(out, 60) == digests(whole, 60)
    assert history(out) == history(whole)
    assert not list(out.glob("checkpoints/.*"))
    assert json.loads((out / "best.json").read_text()) == json.loads((whole / "best.json").read_text())


def test_stopped_in_time_and_again(tmp_path: Path) -> None:
    straight, stopped = tmp_path / "a", tmp_path / "b"
    config = tiny_config()
    train(config, straight, device="cpu")
    for step in range(1, 4):  # no time at all: each sitting makes one step
        result = train(config, stopped, device="cpu", stop_after=0)
        assert (result.info["status"], result.info["step"]) == ("stopped", step)
        assert not result.complete
        assert (stopped / f"checkpoints/step-{step:06d}").is_dir()
    assert train(config, stopped, device="cpu").complete
    assert digests(stopped, 12) == digests(straight, 12)


def test_a_finished_training_stays_as_it_is(tmp_path: Path) -> None:
    first = train(tiny_config(), tmp_path / "out", device="cpu")
    before = (tmp_path / "out/log.jsonl").read_bytes()
    again = train(tiny_config(), tmp_path / "out", device="cpu")
    assert again.info == json.loads(json.dumps(first.info))
    assert (tmp_path / "out/log.jsonl").read_bytes() == before


def test_what_decides_the_weights_may_not_change(tmp_path: Path) -> None:
    train(tiny_config(), tmp_path, device="cpu", stop_after=0)
    for changes, named in (
        ({"steps": 13}, "steps 13"),
        ({"optimizer": {"lr": 0.02, "warmup": 2}}, r"optimizer\.lr 0\.02"),
        ({"data": {"digest": "1"}}, r"data_digests\.tiny"),
    ):
        with pytest.raises(ConfigError, match=named):
            train(tiny_config(**changes), tmp_path, device="cpu")
    free = {"log_every": 5, "checkpoint": {"every": 3, "keep": 1}, "validate": {"every": 4}}
    assert train(tiny_config(**free), tmp_path, device="cpu").complete


def test_another_architecture_is_refused_by_names_and_shapes(tmp_path: Path) -> None:
    config = tiny_config()
    train(config, tmp_path, device="cpu", stop_after=0)
    info = json.loads((tmp_path / "train.json").read_text())
    info["decisive"]["model"] = {"width": 7}  # as if the code had changed and not the config
    (tmp_path / "train.json").write_text(json.dumps(info))
    with pytest.raises(
        MieError, match=r"another architecture[\s\S]*0\.weight is \(6, 3, 3, 3\)[\s\S]*\(7, 3, 3, 3\)"
    ):
        train(tiny_config(model={"width": 7}), tmp_path, device="cpu")


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(MieError, match=r"thesis\.tex"):
        train(tiny_config(), tmp_path, device="cpu")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_kill_in_the_validation_loses_no_step(whole: Path, tmp_path: Path) -> None:
    """The checkpoint is on disk before a validation begins, and the validation is made good afterwards."""
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    for name in ("weights.safetensors", "best.json"):
        (out / name).unlink()
    last = newest(out / "checkpoints")
    assert last is not None
    state = json.loads((last / "state.json").read_text())
    assert state["validated"] is True
    amend_checkpoint(last, {"validated": False, "best": None})
    info = json.loads((out / "train.json").read_text())
    (out / "train.json").write_text(json.dumps({**info, "status": "running"}))
    command = [sys.executable, str(Path(__file__).with_name("kill.py")), str(out), "0", "0"]
    forked_python.run(command, env=ENVIRONMENT, check=True)
    again = json.loads((last / "state.json").read_text())
    assert again["validated"] is True
    assert again["best"]["step"] == state["step"]  # the only one that it knows of
    assert history(out) == history(whole)
    assert (out / "weights.safetensors").exists()


@pytest.mark.parametrize("left", [b"", b'{"event": "sta'])
def test_a_run_that_could_not_write_its_first_line_has_not_begun(left: bytes, tmp_path: Path) -> None:
    """As a full disk leaves it. The next run is the first, not one that resumes."""
    (tmp_path / "log.jsonl").write_bytes(left)
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            Recorder(tiny_config(), TrainingFolder(tmp_path), {}).open(stack, 0)
    events = [json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert events == ["start", "resume"]
    assert [line["event"] for line in read_log(tmp_path / "log.jsonl")] == ["start"]
