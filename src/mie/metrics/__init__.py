"""Numbers from pixels alone: plain functions on `(H, W, 3) uint8` images and `(H, W) bool` masks."""

from mie.metrics.background import (
    background_as_released,
    background_psnr,
    background_ssim,
    background_ssim_psnr,
)
from mie.metrics.context import context_as_released, context_preservation
from mie.metrics.drift import Drift, drift
from mie.metrics.errors import MetricError
from mie.metrics.guarded import dice_and_guarded, dice_and_guarded_any, dice_guarded, dice_guarded_any
from mie.metrics.overlay_dice import class_dice, deblend_dice, deblend_dice_any
from mie.metrics.psnr import psnr
from mie.metrics.resize import resize_to
from mie.metrics.seam import seam_energy
from mie.metrics.ssim import ssim, ssim_psnr
from mie.metrics.ssim_gaussian import ssim_gaussian
from mie.metrics.texture import Texture, texture
from mie.metrics.texture import compare as compare_textures

__all__ = [
    "Drift",
    "MetricError",
    "Texture",
    "background_as_released",
    "background_psnr",
    "background_ssim",
    "background_ssim_psnr",
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
