"""Whether an RGB image is grey."""

from __future__ import annotations

from mie.records import Pixels


def is_grey(image: Pixels) -> bool:
    """`(H, W, 3)` with three equal channels, exactly."""
    return bool((image[..., 0] == image[..., 1]).all() and (image[..., 0] == image[..., 2]).all())
