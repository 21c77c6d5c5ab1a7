"""How noisy an image is: the baselines set their strength by it."""

from __future__ import annotations

from typing import Final

import numpy as np

from mie.records import Pixels

_NORMAL: Final = 0.6745  # median of |x| for x of a standard normal distribution


def noise_level(image: Pixels) -> float:
    """The noise's standard deviation in grey levels, by Donoho's median of the finest diagonal details.

    Details of Haar's wavelet, (a - b - c + d) / 2 over 2x2 pixels, have the noise's own deviation. Flat
    blocks, the black around a scan, say nothing and are left out. Of the channels the noisiest counts.
    """
    height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
    x = image[:height, :width].astype(np.float32)
    a, b, c, d = x[::2, ::2], x[1::2, ::2], x[::2, 1::2], x[1::2, 1::2]
    details, told = np.abs(a - b - c + d) / 2, (a != b) | (a != c) | (a != d)
    channels = [details[..., k][told[..., k]] for k in range(3)]
    return max((float(np.median(found)) / _NORMAL for found in channels if found.size), default=0.0)
