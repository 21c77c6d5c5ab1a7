"""Lesion-shaped holes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.measure import label, regionprops

from mie.errors import ImageError
from mie.perspectives.modification.inpainters.holes import LesionShapes, Shape
from tests.conftest import ellipse

BANK = LesionShapes.from_masks(ellipse(n) for n in range(12))


def test_the_bank_holds_each_lesion_as_it_was():
    mask = np.zeros((60, 80), bool)
    mask[10:20, 30:34] = True
    mask[40:43, 50:70] = True
    mask[5, 5:9] = True  # too small to have a shape
    mask[50:, 0:20] = True  # cut by the border
    bank = LesionShapes.from_masks([mask])
    assert len(bank) == 2
    first, second = bank.shapes
    assert first.crop.shape == (10, 4)
    assert first.crop.all()
    assert first.box == (10 / 60, 30 / 80, 10 / 60, 4 / 80)
    assert first.area == pytest.approx(40 / 4800)
    assert second.area == pytest.approx(60 / 4800)


def test_elongation_is_that_of_the_ellipse_with_equal_moments():
    for n in range(6):
        mask = ellipse(n)
        (shape,) = LesionShapes.from_masks([mask]).shapes
        region = regionprops(label(mask))[0]
        assert shape.elongation == pytest.approx(
            region.axis_major_length / region.axis_minor_length, rel=0.02
        )


def test_statistics():
    statistics = BANK.statistics()
    assert statistics["area"][1] == pytest.approx(np.median([ellipse(n).mean() for n in range(12)]), rel=0.03)
    assert all(low <= middle <= high for low, middle, high in statistics.values())


def test_long_outlines_are_kept_reduced():
    mask = np.zeros((600, 600), bool)
    mask[50:450, 100:300] = True
    (shape,) = LesionShapes.from_masks([mask]).shapes
    assert shape.crop.shape == (96, 48)
    assert shape.area == pytest.approx(mask.mean())


@given(
    seed=st.integers(0, 2**32),
    height=st.integers(40, 300),
    width=st.integers(40, 300),
    blocked=st.floats(0, 0.9),
)
def test_a_hole_lies_wholly_where_it_may(seed, height, width, blocked):
    rng = np.random.default_rng(seed)
    allowed = np.ones((height, width), bool)
    allowed[: int(blocked * height)] = False
    allowed[rng.integers(height), rng.integers(width)] = False
    hole = BANK.sample(np.random.default_rng(seed), height, width, allowed=allowed)
    again = BANK.sample(np.random.default_rng(seed), height, width, allowed=allowed)
    if hole is None:
        assert again is None
        return
    assert hole.shape == (height, width)
    assert hole.dtype == bool
    assert hole.any()
    assert not (hole & ~allowed).any()
    assert np.array_equal(hole, again)


def test_holes_fit_in_a_tight_place_on_the_pixel():
    bank = LesionShapes((Shape(np.ones((8, 8), bool), (0.4, 0.4, 0.1, 0.1)),))
    allowed = np.zeros((90, 90), bool)
    allowed[30:48, 50:68] = True
    found = [bank.sample(np.random.default_rng(n), 90, 90, allowed=allowed) for n in range(30)]
    assert all(hole is not None and not (hole & ~allowed).any() for hole in found)


def test_nowhere_to_go():
    assert BANK.sample(np.random.default_rng(0), 64, 64, allowed=np.zeros((64, 64), bool)) is None
    assert LesionShapes(()).sample(np.random.default_rng(0), 64, 64) is None


def test_area_and_shape_keep_their_statistics():
    rng = np.random.default_rng(0)
    holes = [BANK.sample(rng, 256, 256) for _ in range(200)]
    areas = [hole.mean() for hole in holes]
    assert np.median(areas) == pytest.approx(BANK.statistics()["area"][1], rel=0.2)
    bounded = [BANK.sample(rng, 256, 256, area=(0.02, 0.03)).mean() for _ in range(50)]
    assert 0.016 < min(bounded) <= max(bounded) < 0.036
    stretched = [regionprops(label(hole))[0] for hole in holes[:60]]
    elongation = np.median([r.axis_major_length / r.axis_minor_length for r in stretched])
    assert elongation == pytest.approx(BANK.statistics()["elongation"][1], rel=0.2)


def test_holes_tend_to_lie_where_the_lesion_lay():
    corner = LesionShapes((Shape(np.ones((9, 9), bool), (0.1, 0.1, 0.1, 0.1)),))
    rng = np.random.default_rng(0)
    rows = [np.nonzero(corner.sample(rng, 200, 200))[0].mean() for _ in range(100)]
    assert np.mean(rows) < 80


def test_write_and_read(tmp_path):
    path = tmp_path / "shapes.npz"
    BANK.write(path)
    again = LesionShapes.read(path)
    assert len(again) == len(BANK)
    for a, b in zip(BANK.shapes, again.shapes, strict=True):
        assert np.array_equal(a.crop, b.crop)
        assert a.box == b.box
    LesionShapes(()).write(path)
    assert len(LesionShapes.read(path)) == 0


def test_a_file_that_is_no_bank(tmp_path):
    for name, content in (("text", b"hello"), ("empty", b"")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ImageError, match="not a bank of lesion shapes"):
            LesionShapes.read(path)
    np.savez(
        tmp_path / "other.npz", bits=np.zeros(3, np.uint8), sizes=np.ones((2, 2), int), boxes=np.ones((1, 4))
    )
    with pytest.raises(ImageError, match="not a bank"):
        LesionShapes.read(tmp_path / "other.npz")
    with pytest.raises(ImageError, match="not a bank"):
        LesionShapes.read(tmp_path / "missing.npz")
