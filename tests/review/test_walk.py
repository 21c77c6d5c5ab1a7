"""The example that walks through a whole review, on a few images."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import mie
from tests import forked_python
from tests.conftest import folder_source, write_folder

WALK = Path(__file__).parents[2] / "examples" / "review_walk.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mie.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def walk(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(WALK), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**ENVIRONMENT, **environment})


def test_two_raters_walk_through_everything(tmp_path):
    pytest.importorskip("playwright", reason="playwright is not installed")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("no Chromium on this machine")
    root = write_folder(tmp_path / "source", 4, patients=4)
    body = {"name": "discs", "seed": 3, "sources": [folder_source(root)]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(body))
    # Its many commands `mie` start quickly.
    path = os.pathsep.join((str(forked_python.install(tmp_path / "bin")), os.environ["PATH"]))
    done = walk("-o", tmp_path / "out", "--recipe", tmp_path / "recipe.yaml", "--limit", 4, PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every result is as expected" in done.stdout
    assert re.search(r"1 of 4 reviewed samples were dropped; \S+: 3 samples, all sound", done.stdout)
    shots = {path.name for path in (tmp_path / "out/screens").iterdir()}
    assert shots == {f"{n}_{w}.png" for n in ("home", "inspect", "rank", "people") for w in (400, 1400)}
    again = walk("-o", tmp_path / "out", "--recipe", tmp_path / "recipe.yaml")
    assert again.returncode == 1
    assert "unexpected" in again.stderr


def test_without_a_browser_it_says_so(tmp_path):
    done = walk("-o", tmp_path / "out", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("skipped: ")
    assert not (tmp_path / "out").exists()
