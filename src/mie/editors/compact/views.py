"""Which sizes the network sees an image at, and the way there and back. The shape of an image is kept."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.images.resize import fitted_size, resize_image
from mie.records import Pixels

STRIDE: Final = 32  # the network's: the sides of what it sees are multiples of it
_SMALL: Final = 256
_LARGE: Final = 512
_MOST_PIXELS: Final = 800 * 900  # at once: the network needs about 1 kB for each
_BOTH_FROM: Final = 384  # a longer side from which the large view shows more than the small one


class View(NamedTuple):
    """An image as the network sees it: in the upper left corner, its last row and column repeated."""

    pixels: Pixels  # (H, W, 3), sides multiples of STRIDE
    size: tuple[int, int]  # (height, width) of the image inside it


def views(height: int, width: int, perspective: str, size: int = 0) -> tuple[int, ...]:
    """The longer sides to work at; `size` forces one.

    Perception is looked at small, where the network sees the whole, and large images also large, where thin
    structures survive. The other perspectives change pixels, so they work at the image's own size as far as
    memory allows; a larger image is scaled down, and the change is scaled up.

    >>> views(300, 380, "perception"), views(300, 384, "perception"), views(300, 380, "transformation")
    ((256,), (256, 512), (380,))
    """
    longer = max(height, width)
    if size:
        return (size,)
    if perspective == "perception":
        return (_SMALL, _LARGE) if longer >= _BOTH_FROM else (_SMALL,)
    fit = min(1.0, math.sqrt(_MOST_PIXELS / (height * width)))
    return (int(longer * fit),)


def look(image: Pixels, longer: int) -> View:
    """`(H, W, 3)` with its longer side at `longer`, its edges repeated up to multiples of the stride."""
    size = fitted_size(image.shape[0], image.shape[1], longer)
    down, right = (-side % STRIDE for side in size)
    pixels = cv2.copyMakeBorder(resize_image(image, size), 0, down, 0, right, cv2.BORDER_REPLICATE)
    return View(np.asarray(pixels, np.uint8), size)


def back(values: NDArray[np.float32], view: tuple[int, int], size: tuple[int, int]) -> NDArray[np.float32]:
    """A map `(H, W)` of a view, without its border, at `size`: linear when growing, area when shrinking."""
    inner = np.ascontiguousarray(values[: view[0], : view[1]])
    if view == size:
        return inner
    how = cv2.INTER_AREA if size[0] * size[1] < view[0] * view[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(inner, size[::-1], interpolation=how), np.float32)
