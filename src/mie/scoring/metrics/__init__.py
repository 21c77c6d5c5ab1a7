"""Numbers from pixels alone: plain functions on `(H, W, 3) uint8` images and `(H, W) bool` masks.

Each stands with its spec (`Metric`) in one module; `METRICS` finds them by name.
"""

from __future__ import annotations

from mie.errors import MetricError
from mie.images.resize import resize_to
from mie.images.texture import Texture, seam_energy, texture
from mie.images.texture import compare as compare_textures
from mie.scoring.metric import METRICS, NEEDS, Metric
from mie.scoring.metrics.background import (
    background_as_released,
    background_psnr,
    background_ssim,
    background_ssim_psnr,
    changed_psnr,
    changed_ssim,
    context_as_released,
    context_preservation,
)
from mie.scoring.metrics.dice import (
    class_dice,
    deblend_dice,
    deblend_dice_any,
    dice_and_guarded,
    dice_and_guarded_any,
    dice_guarded,
    dice_guarded_any,
)
from mie.scoring.metrics.drift import Drift, drift
from mie.scoring.metrics.psnr import psnr
from mie.scoring.metrics.ssim import ssim, ssim_gaussian, ssim_psnr

__all__ = [
    "METRICS",
    "NEEDS",
    "Drift",
    "Metric",
    "MetricError",
    "Texture",
    "background_as_released",
    "background_psnr",
    "background_ssim",
    "background_ssim_psnr",
    "changed_psnr",
    "changed_ssim",
    "class_dice",
    "compare_textures",
    "context_as_released",
    "context_preservation",
    "deblend_dice",
    "deblend_dice_any",
    "dice_and_guarded",
    "dice_and_guarded_any",
    "dice_guarded",
    "dice_guarded_any",
    "drift",
    "psnr",
    "resize_to",
    "seam_energy",
    "ssim",
    "ssim_gaussian",
    "ssim_psnr",
    "texture",
]
