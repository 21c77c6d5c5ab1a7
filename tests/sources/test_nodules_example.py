"""The lesions that examples/compact/nodules.py draws lie in the lung, and the rest of the slice stays."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest
from PIL import Image

FILE = Path(__file__).parents[2] / "examples/compact/nodules.py"


@pytest.fixture
def nodules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("nodules", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "nodules", module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def chest() -> tuple[np.ndarray, np.ndarray]:
    """Air, a body with two lungs, a windpipe and noise; the lungs as they were drawn."""
    values = np.full((256, 320), -1000.0, np.float32)
    lungs = np.zeros(values.shape, np.uint8)
    cv2.ellipse(values, (160, 128), (140, 100), 0, 0, 360, 40.0, -1)
    for x in (95, 225):
        cv2.ellipse(lungs, (x, 125), (45, 75), 0, 0, 360, 1, -1)
    values[lungs > 0] = -850
    cv2.circle(values, (160, 100), 7, -1000.0, -1)
    noise = np.random.default_rng(0).normal(0, 12, values.shape)
    return (values + noise).astype(np.float32), lungs > 0


def test_the_lungs_are_found_without_the_windpipe(nodules: ModuleType) -> None:
    values, lungs = chest()
    found = nodules.lung_field(values)
    assert (found & lungs).sum() > 0.97 * lungs.sum()
    assert (found & ~lungs).sum() < 0.03 * lungs.sum()
    assert not found[90:110, 150:170].any()


@pytest.mark.parametrize("seed", range(6))
def test_lesions_are_seen_where_the_mask_says_and_only_in_the_lung(nodules: ModuleType, seed: int) -> None:
    values, lungs = chest()
    one = nodules.Slice("p", "0", values, 1.0)
    made = nodules.simulate(one, nodules.lung_field(values), np.random.default_rng(seed))
    image, mask, facts = made
    before = nodules.show(values, tuple(facts["window"])).astype(int)
    change = np.abs(image.astype(int) - before)
    assert mask.sum() >= 20
    assert (mask & lungs).sum() > 0.95 * mask.sum()
    assert np.median(change[mask]) >= 25
    away = cv2.dilate(lungs.astype(np.uint8), np.ones((21, 21))) == 0
    assert change[away].max() <= 1
    again = nodules.simulate(one, nodules.lung_field(values), np.random.default_rng(seed))
    assert np.array_equal(image, again[0])


def test_the_spine_comes_to_lie_below(nodules: ModuleType, tmp_path: Path) -> None:
    for kind in ("images", "masks"):
        pixels = np.zeros((64, 64), np.uint8)
        pixels[30:34, :8] = 255  # on the left, as in the files
        pixels[60:, 30:34] = 255 if kind == "images" else 0  # the patient's left side, below
        folder = tmp_path / "data/msd_lung_tumor_ct" / kind
        folder.mkdir(parents=True)
        Image.fromarray(pixels).save(folder / "7_3.png")
    nodules.write_upright(tmp_path, tmp_path / "out")
    image = np.asarray(Image.open(tmp_path / "out/msd_lung_tumor_ct/images/7_3.png"))
    mask = np.asarray(Image.open(tmp_path / "out/msd_lung_tumor_ct/masks/7_3.png"))
    assert image[60:, 30:34].all()
    assert image[30:34, 60:].all()  # on the image's right, as radiologists hang it
    assert mask[60:, 30:34].all()
    assert mask.sum() == 255 * 32
