"""From the network's maps to pixels: what is painted, added or changed, and where.

Pixels that are not edited stay exactly as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.editors.compact.understanding import Part, on_side
from mie.images.overlay import is_grey, paint
from mie.records import Mask, Pixels, Values
from mie.vocabulary import COLOURS

_PAINTED: Final = 0.52  # probability from which a pixel is painted
_CHANGE: Final = 2 / 255  # a smaller residual is no change
_BLUR: Final = 2.0  # pixels, the Gaussian's sigma: a single pixel makes no area


class Composed(NamedTuple):
    image: Pixels  # (H, W, 3)
    changed: Mask  # (H, W), where the image was edited
    certainty: float = 1.0  # mean of |2p - 1| over the painted or changed pixels, 0 without any
    hole: Mask | None = None  # (H, W), the image's white hole, where an area was to be edited


def overlay(image: Pixels, probabilities: Iterable[Values], parts: Sequence[Part] = ()) -> Composed:
    """Paint `(H, W, 3)` by three maps `(H, W)`, of red, green and blue, each in [0, 1].

    A pixel is painted at opacity 0.6 in the most probable of the three colours, where that has a little more
    than one half: a view that is sure does not outvote another one's plain no. The maps are taken one after
    the other, so that a large image needs only one of them at a time. With `parts` only these are painted,
    each in its own colour.
    """
    height, width = image.shape[:2]
    best: Values = np.full((height, width), _PAINTED, np.float32)
    chosen: NDArray[np.int8] = np.full((height, width), -1, np.int8)
    for at, probability in enumerate(probabilities):
        chosen[probability > best] = at
        np.maximum(best, probability, out=best)
    result = image
    painted: Mask = np.zeros((height, width), np.bool_)
    for part in parts or [Part(at, None, colour) for at, colour in enumerate(COLOURS)]:
        region: Mask = chosen == part.channel
        if part.side and region.any():
            region = on_side(region, image, part.side)
        if region.any():
            result = paint(result, region, part.colour)
            painted |= region
    certainty = float(2 * best.mean(dtype=np.float64, where=painted) - 1) if painted.any() else 0.0
    return Composed(result, painted, certainty)


def restored(image: Pixels, residual: Iterable[Values]) -> Composed:
    """Return `image + 255 * residual`, rounded. The residual is three maps `(H, W)`, taken in turn.

    Grey stays grey: the three channels get the mean of the residual's.
    """
    result = np.empty_like(image)
    if is_grey(image):
        total: Values = np.zeros(image.shape[:2], np.float32)
        for values in residual:
            total += values / 3
        result[:] = _added(image[..., 0], total)[..., None]
    else:
        for channel, values in enumerate(residual):
            result[..., channel] = _added(image[..., channel], values)
    return Composed(result, (result != image).any(2))


def modified(
    image: Pixels, residual: Iterable[Values], gate: Values | None = None, hole: Mask | None = None
) -> Composed:
    """Return `restored` where the gate `(H, W)`, a probability, is above one half; the original elsewhere.

    A part of the white `hole` of which more than half is in the area is filled to its rim. Without a gate the
    area is where the residual's size, lightly blurred, is above 2/255.
    """
    maps = np.stack(list(residual))
    if gate is None:
        area: Mask = cv2.GaussianBlur(np.abs(maps).max(0), (0, 0), _BLUR) > _CHANGE
        certainty = 1.0
    else:
        area = gate > 0.5
        certainty = float(2 * gate.mean(dtype=np.float64, where=area) - 1) if area.any() else 0.0
        if hole is not None:
            area = area | mostly_inside(hole, area)
    result = restored(image, maps).image
    result[~area] = image[~area]
    return Composed(result, area, certainty, hole)


def mostly_inside(hole: Mask, area: Mask) -> Mask:
    """The connected parts of `hole` that lie in `area` by more than half."""
    count, labels = cv2.connectedComponents(hole.astype(np.uint8), connectivity=4)
    kept: Mask = np.zeros_like(hole)
    for at in range(1, count):
        part = labels == at
        if area[part].mean() > 0.5:
            kept |= part
    return kept


def _added(channel: Pixels, residual: Values) -> Pixels:
    result = 255 * residual
    result += channel
    np.rint(result, out=result)
    return np.clip(result, 0, 255, out=result).astype(np.uint8)
