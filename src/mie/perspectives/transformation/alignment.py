"""How far two images of one place are apart, also across modalities, and registration where they are.

The measure is normalised mutual information (Studholme 1999), which asks only that one grey value of the
first image goes with few of the second: bone is bright in CT and dark in MRI, and that is as good as equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.errors import ImageError
from mie.images.resize import fitted_size
from mie.records import Pixels

_LONGER: Final = 384  # larger images are measured at this size
_REACH: Final = 8  # pixels at that size
_BINS: Final = 32
_SHARED: Final = 0.1  # two 8-bit images of one place agree by chance in a few per cent of their pixels
_SMOOTH: Final = 1.0  # pixels; speckle and Rician noise hide what two images share


@dataclass(frozen=True, slots=True)
class Alignment:
    """`shift` (rows, columns) in pixels takes the second image onto the first.

    `information` is the normalised mutual information at that shift (1 for unrelated images, 2 for equal
    ones), `evidence` the share of what is above 1 that only the shift brings. Where images are alike along
    one direction (layers of the retina) the best shift along it is chance, and `evidence` is near 0.
    """

    shift: tuple[float, float]
    information: float
    evidence: float

    @property
    def error(self) -> float:
        """The length of the shift, in pixels of the image."""
        return float(np.hypot(*self.shift))

    @property
    def as_it_lies(self) -> float:
        """The normalised mutual information without the shift."""
        return self.information - self.evidence * (self.information - 1)

    def params(self) -> dict[str, Any]:
        return {
            "shift": [round(s, 2) for s in self.shift],
            "error": round(self.error, 2),
            "information": round(self.information, 4),
            "evidence": round(self.evidence, 4),
        }


def measure_alignment(first: Pixels, second: Pixels) -> Alignment:
    """The translation between two `(H, W[, 3]) uint8` images of equal size, to a fraction of a pixel.

    Shifts up to 8 pixels at 384 pixels are tried. A larger one ends at the border of the search.
    """
    if first.shape[:2] != second.shape[:2]:
        raise ImageError("images differ in size", expected=first.shape[:2], found=second.shape[:2])
    height, width = first.shape[:2]
    scale = max(1.0, max(height, width) / _LONGER)
    size = (height, width) if scale == 1.0 else fitted_size(height, width, _LONGER)
    a, b = (_levels(image, size) for image in (first, second))
    if _share_pixels(first, second):
        return Alignment((0.0, 0.0), _information(a, b, 0, 0, 0), 0.0)
    reach = min(_REACH, (min(size) - 1) // 4)
    known: dict[tuple[int, int], float] = {}

    def at(dy: int, dx: int) -> float:
        if (dy, dx) not in known:
            known[dy, dx] = _information(a, b, dy, dx, reach)
        return known[dy, dx]

    # Every second shift, then the neighbours of the best.
    steps = range(-reach, reach + 1, 2) if reach % 2 == 0 else range(-reach + 1, reach, 2)
    best = max(((dy, dx) for dy in steps for dx in steps), key=lambda s: (at(*s), -abs(s[0]) - abs(s[1])))
    around = [(best[0] + i, best[1] + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    best = max((s for s in around if max(map(abs, s)) <= reach), key=lambda s: at(*s))
    fine = [0.0, 0.0]
    for axis in (0, 1):
        if abs(best[axis]) < reach:
            before, after = (tuple(s + (d if k == axis else 0) for k, s in enumerate(best)) for d in (-1, 1))
            fine[axis] = _vertex(at(*before), at(*best), at(*after))
    ratio = (height / size[0], width / size[1])
    shift = ((best[0] + fine[0]) * ratio[0], (best[1] + fine[1]) * ratio[1])
    return Alignment(shift, at(*best), (at(*best) - at(0, 0)) / max(at(*best) - 1, 1e-6))


def register(first: Pixels, second: Pixels) -> tuple[Pixels, dict[str, float]]:
    """`second` turned and shifted onto `first` (rigid, Mattes mutual information), and what was done."""
    import SimpleITK as sitk

    fixed, moving = (sitk.GetImageFromArray(_grey(i).astype(np.float32)) for i in (first, second))
    start = sitk.CenteredTransformInitializer(
        fixed, moving, sitk.Euler2DTransform(), sitk.CenteredTransformInitializerFilter.GEOMETRY
    )
    method = sitk.ImageRegistrationMethod()
    method.SetNumberOfThreads(1)  # sums in a fixed order: the same result everywhere
    method.SetMetricAsMattesMutualInformation(_BINS)
    method.SetMetricSamplingStrategy(method.NONE)
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(1.0, 1e-3, 200, relaxationFactor=0.6)
    method.SetOptimizerScalesFromPhysicalShift()
    method.SetShrinkFactorsPerLevel([4, 2, 1])
    method.SetSmoothingSigmasPerLevel([2.0, 1.0, 0.5])
    method.SetInitialTransform(start, inPlace=True)
    try:
        method.Execute(fixed, moving)
    except RuntimeError as error:
        raise ImageError("the pair cannot be registered", found=str(error).splitlines()[-1]) from error
    image = sitk.GetImageFromArray(second, isVector=second.ndim == 3)
    out = sitk.Resample(image, fixed, start, sitk.sitkLinear, 0.0)
    angle, dx, dy = start.GetParameters()
    done = {"degrees": float(np.degrees(angle)), "rows": float(dy), "columns": float(dx)}
    return np.asarray(sitk.GetArrayFromImage(out), np.uint8), done


def _grey(image: Pixels) -> NDArray[np.uint8]:
    return image if image.ndim == 2 else np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def _share_pixels(first: Pixels, second: Pixels) -> bool:
    """Whether one image was made from the other: much of what is not flat is equal to the last bit."""
    if first.shape != second.shape:
        return False
    equal = first[:, 1:] == second[:, 1:]
    textured = first[:, 1:] != first[:, :-1]
    if first.ndim == 3:
        equal, textured = equal.all(axis=2), textured.any(axis=2)
    return bool((equal & textured).sum() > _SHARED * max(1, int(textured.sum())))


def _levels(image: Pixels, size: tuple[int, int]) -> NDArray[np.int64]:
    """Grey at `size`, smoothed, in `_BINS` levels that spread over the values the image has."""
    grey = cv2.resize(_grey(image), size[::-1], interpolation=cv2.INTER_AREA).astype(np.float32)
    grey = cv2.GaussianBlur(grey, (0, 0), _SMOOTH)
    low, high = float(grey.min()), float(grey.max())
    return np.minimum((grey - low) * (_BINS / max(high - low, 1e-6)), _BINS - 1).astype(np.int64)


def _information(a: NDArray[np.int64], b: NDArray[np.int64], dy: int, dx: int, reach: int) -> float:
    """(H(A) + H(B)) / H(A, B) of the middle of `a` against `b` moved by (dy, dx): always as many pixels."""
    height, width = a.shape
    inner = a[reach : height - reach, reach : width - reach]
    other = b[reach - dy : height - reach - dy, reach - dx : width - reach - dx]
    joint = np.bincount((inner * _BINS + other).ravel(), minlength=_BINS * _BINS).astype(np.float64)
    joint = joint.reshape(_BINS, _BINS) / inner.size
    both = _entropy(joint)
    return 1.0 if both == 0 else (_entropy(joint.sum(axis=0)) + _entropy(joint.sum(axis=1))) / both


def _entropy(shares: NDArray[np.float64]) -> float:
    some = shares[shares > 0]
    return float(-(some * np.log(some)).sum())


def _vertex(before: float, best: float, after: float) -> float:
    """Where a parabola through three values has its top, within half a step."""
    curve = before - 2 * best + after
    return 0.0 if curve >= 0 else float(np.clip(0.5 * (before - after) / curve, -0.5, 0.5))
