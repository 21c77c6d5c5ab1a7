"""`mie train` as people meet it: a real process, its output, its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import yaml

from mie.training.config import read_config
from mie.training.segmenter import Segmenter
from mie.training.trainee import make_trainee
from tests import forked_python
from tests.training.tiny import tiny_config

ROOT = Path(__file__).parents[2]


def mie(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mie", "train", *words]
    return forked_python.run(command, cwd=folder, env=environment)


def test_stop_and_resume(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny_config(steps=20).document()))
    stopped = mie(tmp_path, "tiny.yaml", "--device", "cpu", "--stop-after", "0")
    assert stopped.returncode == 3, stopped.stderr
    assert "stopped after step 1 of 20" in stopped.stdout
    assert "run the same command again to resume" in stopped.stderr
    done = mie(tmp_path, "tiny.yaml", "--device", "cpu", "--json", "--profile", "3")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["status"], answer["step"], answer["folder"]) == ("complete", 20, "out/tiny")
    assert answer["profile"]["steps"] == 3
    assert (tmp_path / "out/tiny/weights.safetensors").is_file()


def test_a_typo_is_reported_and_nothing_started(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({**tiny_config().document(), "bacth": 3}))
    done = mie(tmp_path, "tiny.yaml", "-o", "there")
    assert done.returncode == 2
    assert "did you mean 'batch'?" in done.stderr
    assert not (tmp_path / "there").exists()


def test_the_example_of_the_help_is_a_training_file() -> None:
    help_text = " ".join(mie(ROOT, "--help").stdout.split())
    name = re.search(r"Example: mie train (\S+)", help_text)
    assert name is not None
    config = read_config(ROOT / name[1])
    assert isinstance(make_trainee(config), Segmenter)
    assert config.path(config.data["packs"][0]).resolve() == ROOT / "out/pack", "what `mie pack --help` makes"
