"""The editor `diffusers` with tiny pipelines of every dialect, from their folders to scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.editors import Request, open_editor
from mie.editors.diffusers.dialects import DIALECTS
from mie.editors.run import run_editor
from mie.scoring.score import score
from tests.conftest import crop

WORDS = ["Highlight the optic disc in red.", "Remove the lesion from the retina."]


def quick(folder, **options):
    """The spec of a tiny pipeline, with as few steps as it takes."""
    least = {"steps": 2, **({"strength": 0.9} if "Img2Img" in folder.name else {})}
    return spec(folder, **{**least, **options})


def spec(folder, **options):
    return ",".join([f"diffusers:{folder}", *(f"{key}={value}" for key, value in options.items())])


def difference(a, b):
    return int(np.abs(a.image.astype(int) - b.image).max())


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_runs_and_is_scored(name, tiny, small, tmp_path):
    run = run_editor(small, quick(tiny(name)), tmp_path / "run")
    assert run.info["counts"]["failed"] == 0, [edit.reason for edit in run.edits().values()]
    assert run.info["counts"]["done"] == len(Dataset(small))
    assert run.info["editor"]["meta"]["pipeline"] == name
    for edit in run.edits().values():
        assert edit.size == (72, 72)
        steps = [step["step"] for step in edit.meta.get("steps", ())]
        assert steps == ([] if 72 % DIALECTS[name].size.multiple == 0 else ["pad", "crop"])
    results = score(run, "miedb")
    assert results["b_psnr"].n == len(Dataset(small))


@pytest.mark.parametrize("name", DIALECTS)
def test_a_seed_decides_the_bytes_and_steps_are_told(name, tiny):
    editor = open_editor(quick(tiny(name)))
    told = []
    editor.on_step = lambda done, total: told.append((done, total))
    request = Request(crop(1, 70, 90), WORDS[0], seed=5)
    first, same = editor.edit_request(request), editor.edit_request(request)
    assert first.image.shape == (70, 90, 3)
    assert np.array_equal(first.image, same.image)
    assert difference(first, editor.edit_request(replace(request, seed=6))) > 0
    assert difference(first, editor.edit_request(replace(request, image=crop(2, 70, 90)))) > 0
    assert difference(first, editor.edit_request(replace(request, instruction=WORDS[1]))) > 0
    count = len(told) // 5
    assert count >= 1
    assert told[:count] == [(done + 1, count) for done in range(count)]
