"""Volume metrics against SciPy, scikit-image and SimpleITK, on drawn volumes."""

import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from mie.errors import MetricError
from mie.images.slice_consistency import ThroughPlane, gaps, image_consistency, mask_consistency
from mie.scoring.metrics.volume import surfaces, volume_dice, volume_psnr, volume_ssim, window_of

spacings = st.tuples(*[st.floats(0.3, 6.0)] * 3)
seeds = st.integers(0, 2**31)


def blobs(seed: int, shape: tuple[int, int, int] = (6, 12, 11)) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    grid = np.indices(shape).transpose(1, 2, 3, 0)

    def one() -> np.ndarray:
        centre = draw.uniform(1, np.array(shape) - 1)
        return ((grid - centre) ** 2 / draw.uniform(2, 12, 3)).sum(-1) < draw.uniform(0.5, 2)

    return one() | one(), one()


def itk(mask: np.ndarray, spacing: tuple[float, ...]) -> sitk.Image:
    image = sitk.GetImageFromArray(mask.astype(np.uint8))
    image.SetSpacing([float(s) for s in spacing[::-1]])
    return image


def by_trees(a: np.ndarray, b: np.ndarray, spacing: tuple[float, ...]) -> list[np.ndarray]:
    """Distances between shells, by a search over points instead of a distance transform."""

    def shell(mask: np.ndarray) -> np.ndarray:
        padded = np.pad(mask, 1)
        inner = np.ones_like(padded)
        for axis in range(3):
            for way in (1, -1):
                inner &= np.roll(padded, way, axis)
        return np.argwhere(padded & ~inner) * np.array(spacing)

    points = shell(a), shell(b)
    return [cKDTree(points[1]).query(points[0])[0], cKDTree(points[0]).query(points[1])[0]]


@settings(max_examples=25, deadline=None)
@given(seeds, spacings)
def test_surfaces_against_a_search_over_points(seed: int, spacing: tuple[float, float, float]) -> None:
    a, b = blobs(seed)
    assume(a.any() and b.any())
    found, (there, back) = surfaces(a, b, spacing), by_trees(a, b, spacing)
    assert np.allclose(np.sort(found.to_reference), np.sort(there))
    assert np.allclose(np.sort(found.to_output), np.sort(back))
    expected = max(np.percentile(there, 95), np.percentile(back, 95))
    assert found.percentile() == pytest.approx(expected)
    near = (there <= 2 + 1e-6).sum() + (back <= 2 + 1e-6).sum()
    assert found.dice(2.0) == pytest.approx(near / (len(there) + len(back)), abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(seeds, spacings)
def test_dice_and_hausdorff_against_simpleitk(seed: int, spacing: tuple[float, float, float]) -> None:
    a, b = blobs(seed)
    assume(a.any() and b.any())
    overlap = sitk.LabelOverlapMeasuresImageFilter()
    overlap.Execute(itk(a, spacing), itk(b, spacing))
    assert volume_dice(a, b) == pytest.approx(overlap.GetDiceCoefficient(), abs=1e-6)
    # ITK's Hausdorff distance runs over whole masks; it is largest on a surface, to the other mask.
    exact = max(
        sitk.GetArrayFromImage(
            sitk.Abs(sitk.SignedMaurerDistanceMap(itk(y, spacing), False, False, useImageSpacing=True))
        )[x & ~y].max(initial=0.0)
        for x, y in ((a, b), (b, a))
    )
    hausdorff = sitk.HausdorffDistanceImageFilter()
    hausdorff.Execute(itk(a, spacing), itk(b, spacing))
    assert hausdorff.GetHausdorffDistance() == pytest.approx(exact, rel=1e-4)
    assert surfaces(a, b, spacing).percentile(100) >= exact * (1 - 1e-6)  # exact is a float32


@settings(max_examples=15, deadline=None)
@given(seeds)
def test_psnr_and_ssim_against_scikit_image(seed: int) -> None:
    draw = np.random.default_rng(seed)
    a = draw.integers(0, 256, (9, 12, 14), np.uint8)
    b = np.clip(a + draw.normal(0, draw.uniform(1, 60), a.shape), 0, 255).astype(np.uint8)
    assert volume_psnr(b, a) == pytest.approx(peak_signal_noise_ratio(a, b), abs=1e-9)
    assert volume_ssim(b, a) == pytest.approx(structural_similarity(a, b), abs=1e-5)


def test_anisotropic_window_keeps_slices_apart() -> None:
    draw = np.random.default_rng(1)
    a, b = draw.integers(0, 256, (2, 6, 20, 20), np.uint8)
    assert window_of(a.shape, (10.0, 1.0, 1.0)) == (1, 7, 7)
    by_slice = np.mean([structural_similarity(x, y) for x, y in zip(a, b, strict=True)])
    assert volume_ssim(a, b, (10.0, 1.0, 1.0)) == pytest.approx(by_slice, abs=1e-5)
    assert window_of((3, 20, 20), (2.0, 1.0, 1.0)) == (3, 7, 7)


def test_surfaces_scale_with_spacing_and_are_symmetric() -> None:
    a, b = blobs(3)
    one, twice = surfaces(a, b, (3.0, 1.0, 1.0)), surfaces(a, b, (6.0, 2.0, 2.0))
    assert twice.percentile() == pytest.approx(2 * one.percentile())
    assert surfaces(b, a, (3.0, 1.0, 1.0)).percentile() == one.percentile()
    assert surfaces(a, a, (3.0, 1.0, 1.0)).percentile() == 0


def test_empty_masks_have_reasons_not_numbers() -> None:
    empty, full = np.zeros((4, 8, 8), bool), np.zeros((4, 8, 8), bool)
    full[1:3, 2:5, 2:5] = True
    for a, b, who in ((full, empty, "reference"), (empty, full, "output")):
        with pytest.raises(MetricError, match=f"the {who} marks nothing"):
            surfaces(a, b, (1, 1, 1)).percentile()
        assert surfaces(a, b, (1, 1, 1)).dice() == 0.0
    with pytest.raises(MetricError, match="neither"):
        surfaces(empty, empty, (1, 1, 1)).dice()
    assert volume_dice(empty, empty) == 1


def test_flicker_lowers_consistency() -> None:
    mask = np.zeros((8, 16, 16), bool)
    mask[1:7, 4:12, 4:12] = True
    lost = mask.copy()
    lost[3] = False
    assert mask_consistency(mask, mask) == 1
    # Two of the seven pairs that show the structure go from DICE 1 to 0.
    assert mask_consistency(lost, mask) == pytest.approx(1 - 2 / 7)
    assert gaps(lost.any(axis=(1, 2))) == [3]
    draw = np.random.default_rng(0)
    image = np.repeat(draw.integers(60, 180, (1, 16, 16)), 8, axis=0) + np.arange(8)[:, None, None]
    flickering = image + 10 * (np.arange(8) % 2)[:, None, None]
    assert image_consistency(image, image) == 1
    # Each pair changes by 1 in the reference, by 11 or 9 where it flickers.
    assert image_consistency(flickering, image) == pytest.approx(np.mean([1 / 11, 1 / 9] * 3 + [1 / 11]))
    through = ThroughPlane(labels=True)
    for shown, labels in zip(image, lost, strict=True):
        through.add(shown, labels)
    # Slices 1-2, 4-5 and 5-6; none across the gap.
    assert through.summary() == {
        "measure": "neighbour_dice",
        "mean": 1.0,
        "lowest": 1.0,
        "pairs": 3,
        "marked_slices": 5,
        "gaps": [3],
    }
