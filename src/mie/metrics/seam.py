"""How visible the outline of a filled hole is."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.metrics._pair import mask as checked_mask
from mie.metrics._pair import pixels as checked_pixels
from mie.metrics.errors import MetricError
from mie.records import Mask, Pixels

_DEPTHS: Final = (3, 4, 5)  # pixels from the outline to the parallel curves, on either side
_FLOOR: Final = 1.0  # grey levels squared: steps that nobody sees in a flat region weigh little


def seam_energy(image: Pixels, mask: Mask) -> float:
    """Root-mean-square step across the outline of `mask`, over that across parallel curves, minus 1.

    About 0 where there is no seam; 1 means that steps across the outline are twice those nearby; under 0 the
    outline is smoother than what lies around it. The steps are differences of neighbouring pixels on either
    side of a curve, squared and averaged over channels. The parallel curves lie 3 to 5 pixels inside and
    outside, and both sides weigh the same. So a smooth fill beside noise has no seam (its texture is wrong,
    which is for `texture` to say), since a step between the two has just the mean of their energies.
    MetricError where the mask has no outline, or nothing lies 3 pixels away from it.
    """
    image, _ = checked_pixels(image, image)
    mask = checked_mask(mask, image)
    if mask.all() or not mask.any():
        raise MetricError("the region has no outline", found="it is empty, or the whole image")
    reach = max(_DEPTHS) + 2
    box = tuple(slice(max(int(at.min()) - reach, 0), int(at.max()) + reach + 1) for at in np.nonzero(mask))
    inside, part = mask[box], image[box].astype(np.float32)
    steps = [np.square(np.diff(part, axis=axis)).mean(2) for axis in (0, 1)]
    # Distances are those to the nearest pixel on the other side: 1 at the outline.
    depth = cv2.distanceTransform(inside.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    height = cv2.distanceTransform((~inside).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    curves = [[depth > d for d in _DEPTHS], [height <= d for d in _DEPTHS]]
    sides = [[found for c in side if (found := _energy(steps, c)) is not None] for side in curves]
    around = [float(np.mean(side)) for side in sides if side]
    across = _energy(steps, inside)
    if not around or across is None:
        raise MetricError("nothing to compare the outline with", expected="pixels 3 away from it")
    return float(np.sqrt((across + _FLOOR) / (np.mean(around) + _FLOOR)) - 1)


def _energy(steps: list[NDArray[np.float32]], inside: Mask) -> float | None:
    """Mean of the squared steps between a pixel inside and a neighbour that is not; None without any."""
    crossing = [inside[1:] != inside[:-1], inside[:, 1:] != inside[:, :-1]]
    found = np.concatenate([step[cross] for step, cross in zip(steps, crossing, strict=True)])
    return float(found.mean(dtype=np.float64)) if found.size else None
