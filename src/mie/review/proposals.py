"""Masks to choose from where a data set has one: its own, a tighter and a wider one, so named.

Masks are `(H, W) uint8`; class k of n has the value round(255 k / n), 0 is background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import cv2
import numpy as np

from mie.errors import ImageError
from mie.images.limits import Limits, check_bytes
from mie.images.raster import raster_format, read_raster_labels
from mie.records import Pixels
from mie.review.regions import NAMES

MOST: Final = 3
_UPLOAD: Final = Limits(max_pixels=64_000_000, max_bytes=8 * 2**20)


def radius(size: Sequence[int]) -> int:
    """How far to shrink and grow: a hundredth of the shorter side, at least a pixel."""
    return max(1, round(min(size[:2]) / 100))


def labels(size: Sequence[int]) -> dict[str, str]:
    """What each proposal of an image is, in words; keys are those of `proposals` and of `Regions`."""
    by = radius(size)
    return {
        "source": "the data set's mask",
        "eroded": f"shrunk by {by} px",
        "dilated": f"grown by {by} px",
        "thresholded": "Otsu threshold inside the mask's box",
        **{name: f"proposed region {n}" for n, name in enumerate(NAMES, start=1)},
    }


def proposals(mask: Pixels, image: Pixels) -> dict[str, Pixels]:
    """At most three masks by name, the data set's own first; none twice, and none that loses a class."""
    found = {"source": mask}
    makers = {"eroded": _eroded, "dilated": _dilated, "thresholded": _thresholded}
    values = _values(mask)
    for name, make in makers.items():
        made = make(mask, image)
        fresh = not any(np.array_equal(made, other) for other in found.values())
        if len(found) < MOST and fresh and _values(made) == values:
            found[name] = made
    return found


def _values(mask: Pixels) -> set[int]:
    return set(np.unique(mask).tolist()) - {0}


def _disc(by: int) -> Any:
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * by + 1, 2 * by + 1))


def _eroded(mask: Pixels, _image: Pixels) -> Pixels:
    out = np.zeros_like(mask)
    for value in _values(mask):
        region = (mask == value).astype(np.uint8)
        # Beyond the border lies more of the same: a region that is cut off there is not shrunk there.
        out[cv2.erode(region, _disc(radius(mask.shape)), borderType=cv2.BORDER_REPLICATE) > 0] = value
    return out


def _dilated(mask: Pixels, _image: Pixels) -> Pixels:
    """Each class grows into the background only."""
    out = mask.copy()
    for value in sorted(_values(mask)):
        grown = cv2.dilate((mask == value).astype(np.uint8), _disc(radius(mask.shape))) > 0
        out[grown & (out == 0)] = value
    return out


def _thresholded(mask: Pixels, image: Pixels) -> Pixels:
    """Of one class: the brighter or the darker part of its box, whichever the mask covers more of."""
    out = np.zeros_like(mask)
    values = _values(mask)
    if len(values) != 1:
        return out
    ys, xs = np.nonzero(mask)
    box = np.s_[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    grey = (
        image[box] if image.ndim == 2 else cv2.cvtColor(np.ascontiguousarray(image[box]), cv2.COLOR_RGB2GRAY)
    )
    _, bright = cv2.threshold(np.ascontiguousarray(grey), 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    inside = bright[mask[box] > 0].mean()
    out[box] = np.where(bright == (inside >= 0.5), values.pop(), 0)
    return out


def read_upload(data: bytes, size: tuple[int, int], classes: Mapping[int, str]) -> Pixels:
    """A repaired mask as a person sent it: `(H, W) uint8` of `size`, refused when it is anything else."""
    check_bytes(len(data), where="the upload", limits=_UPLOAD)
    if raster_format(data[:12]) != "PNG":
        raise ImageError("the mask is not a PNG file", expected="PNG")
    values = read_raster_labels(data, where="the upload", limits=_UPLOAD)
    if values.shape != size:
        raise ImageError(
            "the mask has another size",
            expected=f"{size[1]}x{size[0]}",
            found=f"{values.shape[1]}x{values.shape[0]}",
        )
    there = set(np.unique(values).tolist())
    if strange := sorted(there - {0, *classes}):
        raise ImageError("the mask has unknown values", expected=f"0, {sorted(classes)}", found=strange[:5])
    if missing := [name for value, name in classes.items() if value not in there]:
        raise ImageError(
            "the mask leaves something out",
            expected=", ".join(missing),
            fix="reject the sample if it is not there",
        )
    return np.ascontiguousarray(values.astype(np.uint8))
