"""The bilateral filter: a mean of near pixels of a like grey, so that edges stay (Tomasi 1998)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np

from mie.editors.base import Edited, Editor, Turn
from mie.editors.noise import noise_level
from mie.records import Pixels

_RANGE: Final = 2.0  # the range kernel's deviation over the noise's
_REACH: Final = 1.8  # pixels, the space kernel's deviation


class Bilateral(Editor):
    """A classical denoiser, whatever the instruction says; its strength follows the image's noise."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        noise = noise_level(image)
        if noise == 0:
            return Edited(image, {"noise": 0.0})
        # OpenCV sums the channels' differences: three equal channels differ by three times as much as one.
        result = cv2.bilateralFilter(np.ascontiguousarray(image), 0, 3 * _RANGE * noise, _REACH)
        return Edited(np.asarray(result, np.uint8), {"noise": round(noise, 3)})
