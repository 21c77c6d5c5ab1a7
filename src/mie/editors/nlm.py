"""Non-local means: a pixel becomes the mean of those whose surroundings look alike (Buades 2005)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np

from mie.editors.base import Edited, Editor, Turn
from mie.editors.noise import noise_level
from mie.images.grey import is_grey
from mie.records import Pixels

# h over the noise's deviation. Colour is filtered in Lab, where the same noise is smaller.
_GREY: Final = 1.0
_COLOUR: Final = 0.6
_PATCH: Final = 5
_WINDOW: Final = 15


class NonLocalMeans(Editor):
    """A classical denoiser, whatever the instruction says; its strength follows the image's noise."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        noise = noise_level(image)
        if noise == 0:
            return Edited(image, {"noise": 0.0})
        if is_grey(image):
            h, grey = _GREY * noise, np.ascontiguousarray(image[..., 0])
            grey = cv2.fastNlMeansDenoising(grey, None, h, _PATCH, _WINDOW)
            result = cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)
        else:
            h = _COLOUR * noise
            bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
            result = cv2.fastNlMeansDenoisingColored(bgr, None, h, h, _PATCH, _WINDOW)
            result = cv2.cvtColor(result, cv2.COLOR_BGR2RGB)
        return Edited(np.asarray(result, np.uint8), {"noise": round(noise, 3)})
