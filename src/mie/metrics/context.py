"""Context preservation (MedEBench): how well an edit kept what lies outside its region.

The paper's definition is `background_ssim` of input and output: windows that touch the region do not count.
The released script zeroes the region in both images and measures the whole, so that an edit which changes
only a small part of a large region's image gains from every zeroed window.
"""

from __future__ import annotations

import numpy as np

from mie.metrics.background import background_ssim
from mie.metrics.errors import MetricError
from mie.metrics.ssim import ssim
from mie.records import Mask, Pixels


def context_preservation(image: Pixels, output: Pixels, region: Mask) -> float:
    """Mean SSIM over the windows wholly outside `region` `(H, W) bool`; MetricError where there is none."""
    return background_ssim(image, output, region)


def context_as_released(image: Pixels, output: Pixels, mask: Pixels) -> float:
    """SSIM of both images times (1 - mask / 255), `(H, W) uint8`, cut to whole numbers."""
    if mask.shape != image.shape[:2] or mask.dtype != np.uint8:
        raise MetricError(
            "the mask does not fit the image",
            expected=f"{image.shape[:2]} uint8",
            found=f"{mask.shape} {mask.dtype}",
        )
    return ssim(_outside(image, mask), _outside(output, mask))


def _outside(image: Pixels, mask: Pixels) -> Pixels:
    # In float32 and in this order, as there: a pixel may lose a grey level to rounding before it is cut.
    scale = np.float32(255)
    kept = np.float32(1) - mask.astype(np.float32) / scale
    return (image.astype(np.float32) / scale * kept[:, :, None] * scale).astype(np.uint8)
