"""Conversations in a report: survival curves, first failures, film strips."""

from __future__ import annotations

import re

import numpy as np
import pytest
from PIL import Image

from mie.editors.run import run_editor
from mie.report import report
from mie.report.conversations import film_strip
from mie.scoring.score import score
from tests.perspectives.dialogue.cases import turns
from tests.scoring.benchmarks.runs import write_samples


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conversations")
    dataset = write_samples([s for number in range(3) for s in turns(number)], folder / "dataset")
    runs = []
    for name in ("identity", "oracle"):
        run = run_editor(dataset, name, folder / name, workers=1)
        score(run, "dialogue", workers=1)
        runs.append(run.folder)
    return report(runs, folder / "report")


def test_the_page_has_curves_failures_and_strips(page) -> None:
    text = page.read_text()
    assert "All turns so far passed" not in text  # an axis, not a heading
    for words in ("Survival: conversations without a failed turn so far", "The first turn that failed, by"):
        assert words in text
    for title in ("Turns, first attempt", "Turns passed by family", "Turns passed by switch of kind"):
        assert title in text
    assert text.count('src="plots/dialogue_turns_passed.') == 1
    assert (page.parent / "plots/dialogue_survival.svg").is_file()
    strips = re.findall(r'src="(images/conversation_[0-9a-f]+\.png)"', text)
    assert len(strips) == 8
    for strip in strips:
        assert Image.open(page.parent / strip).size[0] > 400
    half_lives = re.findall(r"more than \d+", text)
    assert half_lives  # the oracle's


def test_a_strip_frames_what_passed_and_says_what_is_missing() -> None:
    talk = [sample for sample in turns(0) if sample.task == "chain"]
    outputs = [(turn.target_image, True) for turn in talk]
    outputs[1] = (talk[1].input, False)
    outputs[2] = (None, None)
    picture = film_strip(talk, [("mine", outputs)])
    colours = {tuple(int(v) for v in pixel) for pixel in np.unique(picture.reshape(-1, 3), axis=0)}
    assert {(0, 121, 92), (178, 34, 34)} <= colours
    assert film_strip(talk, []).shape[0] < picture.shape[0]
