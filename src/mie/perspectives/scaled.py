"""The images of a case at the size that is stored: scaled once for all perspectives that use it.

What is returned is shared, as it is where an image has the size already: never change it in place.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from numpy.typing import NDArray

from mie.images.resize import resize_image, resize_mask
from mie.records import Mask, Pixels

_MOST: Final = 16  # the image and the masks of a case
_memory = threading.local()


def scaled_image(image: Pixels, size: tuple[int, int]) -> Pixels:
    """`resize_image`; the last few results are kept."""
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
