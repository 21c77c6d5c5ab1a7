"""Between an MR image and its k-space, in float32.

The pair `to_kspace`, `from_kspace` is orthonormal (Parseval: the energy is the same on both sides) and
centred (zero frequency at `(H // 2, W // 2)`). Float32 stays complex64: twice as fast as complex128, and its
rounding (1e-7 of the brightest pixel) is far below any scanner's noise.

Row frequencies are the phase-encode lines: a scanner acquires one line of k-space at once and the lines one
after another, so whatever changes during the scan changes from row to row.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from mie.core import scratch
from mie.errors import ImageError


def cosine_surface(shape: tuple[int, int], order: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """`(H, W)` sum of `w_ij cos(pi i y / H) cos(pi j x / W)`, 1 <= i + j <= order, largest size 1.

    Weights fall off as 1 / (i + j), so the lowest waves rule; the constant is left out. Each factor is a half
    wave at most `order` times across the image: the gradient stays below `pi order sum|w_ij| / side`.
    """
    height, width = shape
    i, j = np.meshgrid(np.arange(order + 1), np.arange(order + 1), indexing="ij")
    total = i + j
    weights = np.where(
        (total >= 1) & (total <= order), rng.standard_normal(total.shape) / np.maximum(total, 1), 0
    )
    down = np.cos(np.pi * np.outer((np.arange(height) + 0.5) / height, np.arange(order + 1)))
    across = np.cos(np.pi * np.outer(np.arange(order + 1), (np.arange(width) + 0.5) / width))
    surface = (down @ weights @ across).astype(np.float32)
    largest = float(np.abs(surface).max())
    return surface / np.float32(max(largest, 1e-30))


def cosine_volume(shape: tuple[int, ...], order: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """`(S, H, W)`: `cosine_surface` with a third axis."""
    axes = np.meshgrid(*(np.arange(order + 1) for _ in shape), indexing="ij")
    total = np.sum(axes, axis=0)
    low = (total >= 1) & (total <= order)
    weights = np.where(low, rng.standard_normal(total.shape) / np.maximum(total, 1), 0)
    waves = [np.cos(np.pi * np.outer((np.arange(n) + 0.5) / n, np.arange(order + 1))) for n in shape]
    surface = scratch.zeros(shape, np.float32)
    for at, one in enumerate(surface):
        one[...] = np.einsum("ijk,si,hj,wk->shw", weights, waves[0][[at]], *waves[1:], optimize=True)[0]
    surface /= np.float32(max(float(surface.max()), -float(surface.min()), 1e-30))
    return surface


# Largest deviation of the phase map, radians.
PHASE: Final = 2.0


def to_kspace(image: NDArray[Any]) -> NDArray[np.complex64]:
    """`(H, W)` float32 or complex64 -> centred orthonormal k-space."""
    return fft.fftshift(fft.fft2(fft.ifftshift(image), norm="ortho", overwrite_x=True))


def from_kspace(kspace: NDArray[np.complex64]) -> NDArray[np.complex64]:
    """Centred orthonormal k-space -> complex image."""
    return fft.fftshift(fft.ifft2(fft.ifftshift(kspace), norm="ortho", overwrite_x=True))


def good_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """The least shape, at least as large, whose sides the FFT factors well (primes cost several times)."""
    return fft.next_fast_len(shape[0]), fft.next_fast_len(shape[1])


def pad_to(image: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """The image in the middle of zeros: a field of view that is a little larger."""
    top, left = _corner(image.shape, shape)
    out = np.zeros(shape, image.dtype)
    out[top : top + image.shape[0], left : left + image.shape[1]] = image
    return out


def crop_to(image: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """What `pad_to` put in the middle."""
    top, left = _corner(shape, image.shape)
    return image[top : top + shape[0], left : left + shape[1]]


def _corner(small: tuple[int, ...], large: tuple[int, ...]) -> tuple[int, int]:
    return (large[0] - small[0]) // 2, (large[1] - small[1]) // 2


def smooth_phase(shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.complex64]:
    """`exp(i phi)` with a smooth random `phi` between -PHASE and PHASE.

    A stored MR image is a magnitude; the scanner's image is complex, with a phase that varies slowly over the
    head (receive coils, off-resonance). Without it k-space would be Hermitian: one half of the lines would
    repeat the other, and ghosts and aliasing would come out symmetric, as they never do on a scanner.
    """
    phi = PHASE * cosine_surface(shape, 3, rng)
    out = np.empty(shape, np.complex64)
    np.cos(phi, out=out.real)
    np.sin(phi, out=out.imag)
    return out


def check_magnitude(image: NDArray[Any]) -> NDArray[np.float32]:
    """Refuse what is no MR magnitude image: `(H, W)` float32, finite, non-negative, at least 2 x 2."""
    if image.ndim != 2 or min(image.shape) < 2:
        raise ImageError(
            "not a grey MR slice", expected="(H, W), at least 2 by 2 pixels", found=f"shape {image.shape}"
        )
    if image.dtype != np.float32:
        raise ImageError("not an MR magnitude image", expected="float32", found=image.dtype)
    lowest, highest = float(image.min()), float(image.max())
    if not (np.isfinite(lowest) and np.isfinite(highest)):
        raise ImageError(
            "MR slice has pixels that are not numbers",
            expected="finite values",
            found=f"{int(np.isnan(image).sum())} NaN and {int(np.isinf(image).sum())} infinite pixels",
        )
    if lowest < 0:
        raise ImageError("MR magnitude is negative", expected="values of 0 and above", found=f"{lowest:g}")
    return image
