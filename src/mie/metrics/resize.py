"""Bringing an output to the input's size before any comparison."""

from __future__ import annotations

import cv2
import numpy as np

from mie.records import Pixels


def resize_to(output: Pixels, size: tuple[int, int]) -> Pixels:
    """The output at `size` = (height, width), bilinear as the released scripts do; untouched if it fits."""
    if output.shape[:2] == size:
        return output
    height, width = size
    return np.asarray(cv2.resize(output, (width, height), interpolation=cv2.INTER_LINEAR))
