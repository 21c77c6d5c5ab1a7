"""One hole through several slices, filled so that nothing flickers from slice to slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.errors import ImageError
from mie.perspectives.modification.inpainters import Inpainter
from mie.perspectives.modification.inpainters.blend import blend as blended
from mie.perspectives.modification.inpainters.exemplar import pulled
from mie.records import Mask, Pixels

_COARSE: Final = 3.0  # standard deviation in pixels: what is coarser is shared with the neighbouring slice
_SHARED: Final = 0.75  # weight of the neighbour in it


def fill_volume(
    inpainter: Inpainter, slices: Sequence[Pixels], masks: Sequence[Mask], *, seed: int, blend: str
) -> list[Pixels]:
    """Each slice with its hole filled; slices without a hole come back as they are.

    All slices share one seed. The slice with the largest hole comes first, then its neighbours outwards.
    Where a hole goes on from the neighbour's, the coarse part of what was drawn there is taken over,
    corrected for the difference between the two slices around the hole. Fine texture is each slice's own,
    as noise is in a scan.
    """
    if len(slices) != len(masks) or len({s.shape for s in slices}) > 1:
        raise ImageError(
            "slices and holes do not fit together",
            expected="as many holes as slices, all of one size",
            found=f"{len(slices)} slices, {len(masks)} holes, sizes {sorted({s.shape for s in slices})}",
        )
    filled = list(slices)
    if not any(mask.any() for mask in masks):
        return filled
    first = int(np.argmax([mask.sum() for mask in masks]))
    for direction in (range(first, len(slices)), range(first - 1, -1, -1)):
        for k in direction:
            if not masks[k].any():
                continue
            drawn = inpainter.fill(slices[k], masks[k], seed=seed)
            if k != first:
                before = k - 1 if k > first else k + 1
                drawn = _carried_on(drawn, filled[before], slices, masks, k, before)
            filled[k] = scratch.put_aside(blended(blend, slices[k], drawn, masks[k]))
    return filled


def _carried_on(
    drawn: Pixels, neighbour: Pixels, slices: Sequence[Pixels], masks: Sequence[Mask], k: int, before: int
) -> Pixels:
    """`drawn` with its coarse part pulled towards the neighbour's fill where both slices have a hole."""
    both = masks[k] & masks[before]
    if not both.any():
        return drawn
    change = slices[k].astype(np.float32) - slices[before]
    around = pulled(change, ~(masks[k] | masks[before]))
    pull = _coarse(neighbour + around) - _coarse(np.where(masks[k][..., None], drawn, slices[k]))
    # Fades out towards the rim of the common part, so that no new edge arises there.
    weight = _SHARED * np.clip(cv2.distanceTransform(both.astype(np.uint8), cv2.DIST_L2, 3) / _COARSE, 0, 1)
    moved = drawn + weight[..., None] * pull
    return np.clip(moved.round(), 0, 255).astype(np.uint8)


def _coarse(values: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(cv2.GaussianBlur(values.astype(np.float32), (0, 0), _COARSE))
