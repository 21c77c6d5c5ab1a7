"""`mie run` of a pipeline, killed again and again, gives the bytes of an uninterrupted run."""

from __future__ import annotations

import sys
import time

import pytest

from mie.datasets.dataset import Dataset
from mie.editors.run import run_editor
from mie.editors.runs import read_edits
from tests import forked_python
from tests.editors.conftest import make_dataset, outputs
from tests.editors.large.test_diffusers import spec


@pytest.mark.slow
def test_killed_twice_it_gives_the_same_bytes(tiny, tmp_path):
    dataset = make_dataset(tmp_path, 6, size=64)
    editor = spec(tiny("FluxKontextPipeline"), steps=30)
    total = 2 * len(Dataset(dataset))
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "mie", "run", dataset, "-e", editor, "-o", folder, "--attempts", "2"]
    for kill in range(2):
        process = forked_python.Started([*map(str, command)])
        before = len(read_edits(folder / "edits.jsonl"))
        while len(read_edits(folder / "edits.jsonl")) <= before:  # wait until this process has made an edit
            assert process.poll() is None, process.errors()
            time.sleep(0.01)
        process.kill()
        assert len(read_edits(folder / "edits.jsonl")) < total, f"it ended before kill {kill}"
    run = run_editor(dataset, editor, folder, attempts=2)
    assert run.complete
    counts = {"samples": total // 2, "edits": total, "done": total, "failed": 0, "refused": 0}
    assert run.info["counts"] == counts
    assert len((folder / "edits.jsonl").read_text().splitlines()) == total
    assert outputs(folder) == outputs(run_editor(dataset, editor, tmp_path / "whole", attempts=2).folder)
