"""An L that looks different after every flip, transpose and rotation."""

import numpy as np
from numpy.typing import NDArray


def l_phantom(height: int = 37, width: int = 53) -> NDArray[np.uint8]:
    """(H, W) uint8: an L of 255 with a long upright and a short foot, on a ramp of 10..100."""
    ramp = np.add.outer(np.arange(height) * 60 / height, np.arange(width) * 30 / width) + 10
    image = ramp.astype(np.uint8)
    image[height // 8 : height * 3 // 4, width // 8 : width // 4] = 255
    image[height * 5 // 8 : height * 3 // 4, width // 8 : width * 5 // 8] = 255
    return image
