"""The forensic detector: trained on real images and edits of them, it tells those of other patients apart."""

from __future__ import annotations

import dataclasses

import cv2
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `models`")

from mie.errors import ConfigError, MieError  # noqa: E402
from mie.networks.forensic import fake_probability, load_forensic  # noqa: E402
from mie.scoring.benchmarks.imgedit.fake import detect  # noqa: E402
from mie.training.config import parse_config  # noqa: E402
from mie.training.forensic import Forensic  # noqa: E402
from mie.training.loop import train  # noqa: E402
from tests.conftest import crop  # noqa: E402
from tests.scoring.benchmarks.runs import structure, write_run, write_samples  # noqa: E402


def noisy(number: int) -> np.ndarray:
    """A picture with the noise of an acquisition."""
    noise = np.random.default_rng(number).normal(0, 6, (64, 64, 3))
    return np.clip(crop(number % 4, 64, 64) + noise, 0, 255).astype(np.uint8)


def smoothed(image: np.ndarray) -> np.ndarray:
    """A part of it made anew, without the noise."""
    edited = image.copy()
    edited[16:52, 12:50] = cv2.GaussianBlur(image, (0, 0), 2.5)[16:52, 12:50]
    return edited


def make_run(folder, numbers, outputs):
    samples = [
        dataclasses.replace(
            structure(f"s{n}", n % 4, 64, 64), input=noisy(n), target_image=noisy(n), patient_id=f"p{n}"
        )
        for n in numbers
    ]
    dataset = write_samples(samples, folder / "dataset")
    return write_run(folder / "run", dataset, {s.id: [outputs(s.input)] for s in samples})


def config(run, **changes):
    body = {
        "name": "t", "trainee": "forensic", "steps": 150, "batch": 16, "precision": "fp32", "ema": 0.9,
        "optimizer": {"lr": 3e-3, "warmup": 5}, "checkpoint": {"every": 150}, "validate": {"every": 150},
        "log_every": 30, "data": {"runs": [str(run)], "side": 32, "held_out": 0.35},
        "model": {"widths": [8, 16]}, "seed": 3,
    }  # fmt: skip
    return parse_config({**body, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forensic")
    run = make_run(folder, range(18), smoothed)
    result = train(config(run), folder / "trained")
    return folder / "trained" / "weights.safetensors", result


def test_edits_of_other_patients_are_told_from_real_images(trained, tmp_path):
    weights, _ = trained
    net = load_forensic(weights)
    fakes = np.array([fake_probability(net, smoothed(noisy(n))) for n in range(30, 38)])
    reals = np.array([fake_probability(net, noisy(n)) for n in range(30, 38)])
    assert (fakes[:, None] > reals[None]).mean() > 0.95
    run = make_run(tmp_path, range(30, 38), smoothed)
    middle = float(fakes.mean() + reals.mean()) / 2
    found = detect(run, weights, threshold=middle)
    assert (found["mean"], found["n"]) == ((fakes >= middle).mean(), 8)
    assert (found["unscored"], found["patients"]) == (0, 8)
    assert (found["false_alarms"]["mean"], found["false_alarms"]["n"]) == ((reals >= middle).mean(), 8)
    lines = (run / "fake").glob("*.csv").__next__().read_text().splitlines()
    assert lines[0] == "sample_id,fake,probability"
    assert len(lines) == 9


def test_outputs_that_equal_their_input_are_no_edits(trained, tmp_path):
    run = make_run(tmp_path, range(4), lambda image: image)
    assert detect(run, trained[0])["outputs_equal_to_their_input"] == 4
    with pytest.raises(ConfigError, match="too few pairs") as error:
        Forensic(config(run)).check()
    assert "4 outputs are their input" in str(error.value)


def test_pictures_smaller_than_a_crop_and_other_files(trained, tmp_path):
    assert 0 <= fake_probability(load_forensic(trained[0]), np.zeros((9, 40, 3), np.uint8)) <= 1
    (tmp_path / "x.safetensors").write_bytes(b"nothing")
    with pytest.raises(MieError, match="damaged"):
        load_forensic(tmp_path / "x.safetensors")
    with pytest.raises(ConfigError, match="multiples of 8"):
        Forensic(config(tmp_path, model={"widths": [9]}))
