"""The part of an image that a large model sees: the hole and what lies around it, at a size it can take."""

from __future__ import annotations

from typing import Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.images.resize import fitted_size, resize_image
from mie.records import Mask, Pixels

_AROUND: Final = 0.5  # of the hole's length is shown on each side of it, at the least


class Neighbourhood(NamedTuple):
    """A rectangle of the image, `size` pixels at most once it is scaled down, and padded to a multiple."""

    top: int
    left: int
    bottom: int
    right: int
    scaled: tuple[int, int]  # height and width after scaling; those of the rectangle where it fits
    padding: tuple[int, int]  # rows below, columns on the right

    def picture(self, image: Pixels) -> Pixels:
        """What is seen of `(H, W, 3)`, its far edges mirrored into the padding."""
        return self._padded(resize_image(image[self.top : self.bottom, self.left : self.right], self.scaled))

    def hole(self, mask: Mask) -> Mask:
        """The hole in `picture`: every pixel that any of it went into, its mirror image too."""
        part = mask[self.top : self.bottom, self.left : self.right].astype(np.float32)
        if part.shape != self.scaled:
            part = np.asarray(cv2.resize(part, self.scaled[::-1], interpolation=cv2.INTER_AREA), np.float32)
        return self._padded((part > 0).astype(np.uint8)).astype(np.bool_)

    def put_back(self, image: Pixels, seen: Pixels) -> Pixels:
        """A copy of `image` with `seen`, of the size of `picture`, in its place."""
        part = np.ascontiguousarray(seen[: self.scaled[0], : self.scaled[1]])
        out = image.copy()
        size = (self.bottom - self.top, self.right - self.left)
        out[self.top : self.bottom, self.left : self.right] = resize_image(part, size)
        return out

    def _padded(self, part: Pixels) -> NDArray[np.uint8]:
        below, beside = self.padding
        return np.asarray(cv2.copyMakeBorder(part, 0, below, 0, beside, cv2.BORDER_REFLECT), np.uint8)


def neighbourhood(mask: Mask, *, size: int, multiple: int) -> Neighbourhood:
    """Around the hole `mask`, which is not empty: native pixels where the hole and half its length on each
    side fit into `size`, else scaled down. `size` is a multiple of `multiple`.
    """
    top, bottom = _span(np.flatnonzero(mask.any(1)), mask.shape[0], size)
    left, right = _span(np.flatnonzero(mask.any(0)), mask.shape[1], size)
    height, width = bottom - top, right - left
    if max(height, width) > size:
        height, width = fitted_size(height, width, size)
    padding = (-height % multiple, -width % multiple)
    return Neighbourhood(top, left, bottom, right, (height, width), padding)


def _span(inside: NDArray[np.int64], length: int, size: int) -> tuple[int, int]:
    """Where to cut along one axis: `size` pixels about the hole, more where it needs them, at most all."""
    first, last = int(inside[0]), int(inside[-1]) + 1
    wanted = min(length, max(size, round((last - first) * (1 + 2 * _AROUND))))
    start = min(max(0, (first + last - wanted) // 2), length - wanted)
    return start, start + wanted
