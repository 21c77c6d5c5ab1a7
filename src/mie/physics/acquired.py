"""The size that an MR image was acquired at, where it was stored enlarged.

Scanners and archives fill k-space up with zeros, or enlarge the picture, so that slices of 200 lines lie on
disk with 512. What is simulated in such an image is not what a scanner would do: halving its resolution takes
nothing away, its noise is finer than its detail, and half of the lines that are left out were empty.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import fft

_ROUNDING: Final = 1.0  # grey levels, root mean square: what 8 bits and compression leave in empty k-space
_STEPS: Final = 64  # the share of k-space is found to this part
_MOST: Final = 0.75  # an image that fills more is as it was acquired
_AIR: Final = 10  # grey levels up to which a pixel may be air, where nothing is to be lost
_LEAST: Final = 32  # pixels that a side keeps


def acquired_share(image: NDArray[Any]) -> float:
    """The least share of both sides of k-space without which `(H, W)` 8-bit values are hardly the same.

    What lies beyond makes at most a grey level of difference, root mean square over the body. In (0, 1].
    """
    height, width = image.shape
    half = fft.rfft2(image.astype(np.float32), norm="ortho")
    energy = half.real**2 + half.imag**2
    energy[:, 1 : (width + 1) // 2] *= 2  # the other half mirrors it
    rows = np.abs(fft.fftfreq(height, 1 / height)) / (height / 2)
    columns = fft.rfftfreq(width, 1 / width) / (width / 2)
    ring = np.ceil(np.maximum(rows[:, None], columns) * _STEPS).astype(np.intp)
    within = np.bincount(ring.ravel(), energy.ravel(), _STEPS + 1)
    beyond = np.cumsum(within[::-1])[::-1]  # from each ring on
    full = np.flatnonzero(beyond > _ROUNDING**2 * np.count_nonzero(image > _AIR))
    return max(1, int(full[-1])) / _STEPS if len(full) else 1 / _STEPS


def at_acquired_size(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A grey image `(H, W)` on the matrix that holds it; the image itself where it fills its own."""
    share = acquired_share(image)
    if share > _MOST:
        return image
    size = [max(min(side, _LEAST), round(side * share)) for side in image.shape]
    # Frequencies in the transform's order; negative ones count from its end.
    kept = np.ix_(*(fft.ifftshift(np.arange(side) - side // 2) for side in size))
    small = fft.ifft2(fft.fft2(image.astype(np.float32))[kept]).real * (size[0] * size[1] / image.size)
    return np.clip(np.rint(small), 0, 255).astype(np.uint8)
