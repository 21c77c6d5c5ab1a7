"""Conversations as training lists: nothing is lost, and nothing of the future is shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mie.datasets.exports import export
from mie.errors import MieError
from mie.images.png import decode_png
from tests.perspectives.dialogue.cases import conversations, turns
from tests.scoring.benchmarks.runs import modification, write_samples


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    samples = [*turns(0), modification("alone", 3)]
    return write_samples(samples, tmp_path_factory.mktemp("talks") / "dataset")


def pixels(path: Path) -> np.ndarray:
    return decode_png(path.read_bytes())


def test_sharegpt_keeps_every_sentence_and_image(dataset, tmp_path) -> None:
    export(dataset, tmp_path / "out", "sharegpt")
    lines = {
        line["id"]: line
        for path in (tmp_path / "out").glob("*.jsonl")
        for line in map(json.loads, path.read_text().splitlines())
    }
    assert len(lines) == len(conversations(0)) + 1
    for talk in conversations(0):
        line = lines[talk[0].group]
        said = [
            one["value"].removeprefix("<image>\n") for one in line["conversations"] if one["from"] == "human"
        ]
        assert said == [turn.prompt for turn in talk]
        shown = [pixels(tmp_path / "out" / image) for image in line["images"]]
        assert "".join(one["value"] for one in line["conversations"]).count("<image>") == len(shown)
        expected = [talk[0].input, *(turn.target_image for turn in talk)]
        assert all(np.array_equal(a, b) for a, b in zip(shown, expected, strict=True))


def test_omnigen2_turns_have_at_most_five_images_and_the_past_alone(dataset, tmp_path) -> None:
    export(dataset, tmp_path / "out", "omnigen2-turns")
    lines = [
        json.loads(line)
        for path in (tmp_path / "out").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    by_output = {Path(line["output_image"]).stem: line for line in lines}
    for talk in conversations(0):
        for at, turn in enumerate(talk):
            line = by_output[turn.id]
            assert len(line["input_images"]) == min(at + 1, 5)
            assert np.array_equal(pixels(Path(line["input_images"][0])), talk[0].input)
            assert np.array_equal(pixels(Path(line["input_images"][-1])), turn.input)
            assert np.array_equal(pixels(Path(line["output_image"])), turn.target_image)
            assert line["instruction"].endswith(turn.prompt)
            assert all(one.prompt in line["instruction"] for one in talk[:at])
    assert by_output["alone" if "alone" in by_output else Path(lines[-1]["output_image"]).stem]


def test_turns_that_lie_apart_are_refused(tmp_path) -> None:
    samples = turns(0)
    apart = write_samples([*samples[::2], *samples[1::2]], tmp_path / "dataset")
    with pytest.raises(MieError, match="do not stand together"):
        export(apart, tmp_path / "out", "sharegpt")
