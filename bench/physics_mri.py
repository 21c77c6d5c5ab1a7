"""k-space motion against the same in NumPy's complex128, as ratios; what the other effects cost, beside.

Two references. The definition written down in NumPy: every pose turns (three shears) and shifts the whole
image, transforms it and gives its lines. And our very steps (shared transform, only the lines needed) with
np.fft in complex128. All get the same image, phase and poses; results must agree to 1e-4 of the
brightest pixel.

    python bench/physics_mri.py [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import cv2
import numpy as np
import scipy.fft

from mie.perspectives.transformation.physics import kspace
from mie.perspectives.transformation.physics.dermoscopy import SkinArtifacts
from mie.perspectives.transformation.physics.mri import BiasField, RicianNoise, Undersampling
from mie.perspectives.transformation.physics.mri_motion import Motion, line_weights, reconstruct
from mie.perspectives.transformation.physics.resolution import LowResolution
from mie.perspectives.transformation.physics.speckle import Speckle


def seconds(*calls: Callable[[], object], repeats: int) -> list[float]:
    """Median seconds of each call, all run in turn so that a busy moment hits all of them."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeats):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def head(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    texture = np.random.default_rng(0).uniform(0.6, 1, (height, width)).astype(np.float32)
    inside = (y / 0.8) ** 2 + (x / 0.65) ** 2 < 1
    return (inside * cv2.GaussianBlur(texture, (0, 0), 1.5)).astype(np.float32)


def numpy_motion(still: np.ndarray, segment: np.ndarray, poses: np.ndarray) -> np.ndarray:
    height, width = still.shape
    y, x = np.arange(height)[:, None] - (height - 1) / 2, np.arange(width) - (width - 1) / 2
    ky, kx = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)
    segment = np.fft.ifftshift(segment)
    acquired = np.zeros((height, width), np.complex128)
    for number, (dy, dx, degrees) in enumerate(poses):
        moved = still.astype(np.complex128)
        if degrees:
            phi = -np.deg2rad(degrees)
            down = np.exp(-2j * np.pi * ky * (np.tan(phi / 2) * x))
            across = np.exp(2j * np.pi * kx * (np.sin(phi) * y))
            moved = np.fft.ifft(np.fft.fft(moved, axis=0) * down, axis=0)
            moved = np.fft.ifft(np.fft.fft(moved, axis=1) * across, axis=1)
            moved = np.fft.ifft(np.fft.fft(moved, axis=0) * down, axis=0)
        space = np.fft.fft2(moved) * np.exp(-2j * np.pi * (ky * dy + kx * dx))
        acquired[segment == number] = space[segment == number]
    return np.fft.ifft2(acquired)


def numpy_same_steps(still: np.ndarray, segment: np.ndarray, poses: np.ndarray) -> np.ndarray:
    height, width = still.shape
    y, x = np.arange(height)[:, None] - (height - 1) / 2, np.arange(width) - (width - 1) / 2
    ky, kx = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)
    segment = np.fft.ifftshift(segment)
    columns = np.fft.fft(still.astype(np.complex128), axis=0)
    acquired = np.empty((height, width), np.complex128)
    for number, (dy, dx, degrees) in enumerate(poses):
        rows = np.flatnonzero(segment == number)
        lines = columns[rows]
        if degrees:
            phi = -np.deg2rad(degrees)
            shear = np.exp(-2j * np.pi * ky * (np.tan(phi / 2) * x))
            turned = np.fft.fft(np.fft.ifft(columns * shear, axis=0), axis=1)
            turned = np.fft.ifft(turned * np.exp(2j * np.pi * kx * (np.sin(phi) * y)), axis=1)
            lines = np.fft.fft(turned, axis=0)[rows] * shear[rows]
        acquired[rows] = (
            np.fft.fft(lines, axis=1) * np.exp(-2j * np.pi * ky[rows] * dy) * np.exp(-2j * np.pi * kx * dx)
        )
    return np.fft.ifft2(acquired)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    slow = []
    print(f"{'k-space motion, 8 moves':44s}  definition ms  same steps ms    ours ms   ratios     least")
    for shape in ((256, 256), (512, 512), (182, 218), (257, 263)):
        image = head(*shape)
        good = kspace.good_shape(shape)
        rng = np.random.default_rng(1)
        still = kspace.pad_to(image, good) * kspace.smooth_phase(good, rng)
        moves = (still, *Motion(2, 3, 8, 8).poses(line_weights(still), min(shape), rng))
        calls = [lambda f=f, m=moves: f(*m) for f in (numpy_motion, numpy_same_steps, reconstruct)]
        results = [np.abs(call()) for call in calls]
        error = max(np.abs(results[2] - r).max() for r in results[:2]) / image.max()
        if error > 1e-4:
            sys.exit(f"results differ by {error:.1e} at {shape}")
        plain, same, ours = seconds(*calls, repeats=options.repeats)
        name = f"{shape[0]}x{shape[1]}" + (f" padded to {good[0]}x{good[1]}" if good != shape else "")
        times = f"{1e3 * plain:14.1f} {1e3 * same:14.1f} {1e3 * ours:10.1f}"
        print(
            f"  {name:42s} {times} {plain / ours:5.1f}x {same / ours:4.1f}x      2x   (agree to {error:.0e})"
        )
        if same / ours < 2:
            slow.append(name)

    print("centred FFT pair, 256x256                       numpy ms    ours ms   ratio")
    single = head(256, 256).astype(np.complex64)
    double = single.astype(np.complex128)
    shift, back = np.fft.fftshift, np.fft.ifftshift
    old, new = seconds(
        lambda: shift(np.fft.ifft2(back(shift(np.fft.fft2(back(double), norm="ortho"))), norm="ortho")),
        lambda: kspace.from_kspace(kspace.to_kspace(single)),
        repeats=3 * options.repeats,
    )
    print(f"  {'there and back':40s} {1e3 * old:14.2f} {1e3 * new:10.2f} {old / new:6.1f}x")
    good, prime = (np.ones((n, n), np.complex64) for n in (scipy.fft.next_fast_len(509), 509))
    at_prime, at_good = seconds(
        lambda: scipy.fft.fft2(prime), lambda: scipy.fft.fft2(good), repeats=options.repeats
    )
    print(f"  a prime side (509) padded to {len(good)}: {at_prime / at_good:.1f}x faster")

    print("all effects at 256x256, one thread                              ms")
    grey = head(256, 256)
    bytes_, colour = (255 * grey).astype(np.uint8), np.full((256, 256, 3), 180, np.uint8)
    for effect, image in (
        (Motion(2, 3, 8, 8), grey), (Undersampling(0.3), grey), (RicianNoise(8), grey), (BiasField(80), grey),
        (LowResolution(2), grey), (LowResolution(4), colour), (Speckle(1, 0.7, 0.6), bytes_),
        (Speckle(4, 1.5, 3), bytes_), (SkinArtifacts(hairs=20), colour), (SkinArtifacts(bubbles=6), colour),
        (SkinArtifacts(ruler=True), colour), (SkinArtifacts(ink=True), colour),
        (SkinArtifacts(frame=1.0), colour),
    ):  # fmt: skip
        call = lambda e=effect, i=image: e.apply(i, np.random.default_rng(0))
        (taken,) = seconds(call, repeats=options.repeats)
        print(f"  {str(effect)[:56]:56s} {1e3 * taken:9.2f}")
    if slow:
        sys.exit("slower than promised: " + ", ".join(slow))


if __name__ == "__main__":
    main()
