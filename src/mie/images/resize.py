"""Scaling to the training bins: images by area or Lanczos, masks by nearest neighbour."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.records import Mask, Pixels, Values
from mie.vocabulary import BINS

_MOST: Final = 16  # the image and the masks of a case
_memory = threading.local()


def nearest_bin(height: int, width: int, bins: Sequence[int] = BINS) -> int:
    """The bin nearest to the longer side; between two, the smaller one, which invents no pixels.

    >>> [nearest_bin(100, side) for side in (100, 192, 193, 384, 385, 4288)]
    [128, 128, 256, 256, 512, 512]
    """
    longer = max(height, width)
    return min(sorted(bins), key=lambda size: abs(size - longer))


def fitted_size(height: int, width: int, longer: int) -> tuple[int, int]:
    """(height, width) with the longer side at `longer` and the shape kept as well as whole pixels allow."""
    if height >= width:
        return longer, max(1, round(width * longer / height))
    return max(1, round(height * longer / width)), longer


def resize_image(image: Pixels, size: tuple[int, int]) -> Pixels:
    """`(H, W[, 3]) uint8` at `size` = (height, width): area when shrinking, Lanczos when growing."""
    if image.shape[:2] == size:
        return image
    shrinks = size[0] * size[1] < image.shape[0] * image.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LANCZOS4
    return np.asarray(cv2.resize(image, size[::-1], interpolation=how), np.uint8)


def resize_values(values: Values, size: tuple[int, int]) -> Values:
    """`(H, W) float32` at `size`: area when shrinking, linear when growing, so that no value is invented."""
    if values.shape == size:
        return values
    shrinks = size[0] * size[1] < values.shape[0] * values.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(values, size[::-1], interpolation=how), np.float32)


def resize_labels(labels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """A label map at `size`, each pixel the nearest one by its centre; no new value can appear."""
    if labels.shape[:2] == size:
        return labels
    return np.asarray(cv2.resize(labels, size[::-1], interpolation=cv2.INTER_NEAREST_EXACT))


def resize_mask(mask: Mask, size: tuple[int, int]) -> Mask:
    return resize_labels(mask.view(np.uint8), size).view(np.bool_)


def resize_to(output: Pixels, size: tuple[int, int]) -> Pixels:
    """The output at `size` = (height, width), bilinear as the released scripts do; untouched if it fits."""
    if output.shape[:2] == size:
        return output
    height, width = size
    return np.asarray(cv2.resize(output, (width, height), interpolation=cv2.INTER_LINEAR))


def scaled_image(image: Pixels, size: tuple[int, int]) -> Pixels:
    """`resize_image`, done once for all perspectives that use a case: the last few results are kept.

    What is returned is shared, as it is where an image has the size already: never change it in place.
    """
    return _kept(image, size, resize_image)


def scaled_mask(mask: Mask, size: tuple[int, int]) -> Mask:
    """`resize_mask`; the last few results are kept."""
    return _kept(mask, size, resize_mask)


def _kept(array: NDArray[Any], size: tuple[int, int], resize: Any) -> Any:
    if array.shape[:2] == size:
        return array
    results: dict[Any, tuple[NDArray[Any], NDArray[Any]]] = getattr(_memory, "results", {})
    _memory.results = results
    key = id(array), size
    if key not in results:
        while len(results) >= _MOST:
            del results[next(iter(results))]
        # The array is kept beside its result, so that no other can get its id.
        results[key] = array, resize(array, size)
    return results[key][1]
