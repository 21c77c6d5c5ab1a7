"""Metrics against scikit-image and NumPy, on one thread, as ratios.

Ours and the reference run in turn, on real crops with noise; medians are compared; numbers must agree.
Two floors are printed beside: copying the two images once (memory), and decoding them from PNG (what a scorer
has to do before any metric).

    python bench/metrics.py [--repeats 15]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import skimage
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from mie.images.overlay import paint
from mie.images.png import encode_png
from mie.scoring import metrics
from mie.vocabulary import COLOURS

Numbers = tuple[float, ...]


def seconds(*calls: Callable[[], object], repeats: int) -> list[tuple[float, float]]:
    """(median, least) seconds of each call, all run in turn so that a busy moment hits all of them."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(repeats):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [(statistics.median(taken), min(taken)) for taken in times]


def pair(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A retina crop, an output with the region painted and some noise, and the region."""
    picture = cv2.cvtColor(
        cv2.imread(str(Path(skimage.__file__).parent / "data" / "retina.jpg")), cv2.COLOR_BGR2RGB
    )
    image = np.ascontiguousarray(picture[400 : 400 + side, 500 : 500 + side])
    canvas = np.zeros((side, side), np.uint8)
    cv2.ellipse(canvas, (side // 2, side // 3), (side // 5, side // 7), 30, 0, 360, 1, -1)
    region = canvas.astype(bool)
    noise = np.random.default_rng(0).normal(0, 8, image.shape)
    output = np.clip(paint(image, region, "green") + noise, 0, 255).astype(np.uint8)
    return image, output, region


def numpy_dice(image: np.ndarray, output: np.ndarray, reference: np.ndarray, colour: str) -> float:
    i, m = image.astype(np.float64), output.astype(np.float64)
    c = np.array(COLOURS[colour], np.float64) - i
    alpha = np.clip(((m - i) * c).sum(-1) / ((c**2).sum(-1) + 1e-6), 0, 1)
    mask = alpha > 0.5
    return (2 * np.logical_and(mask, reference).sum() + 1e-6) / (mask.sum() + reference.sum() + 1e-6)


def background_reference(a: np.ndarray, b: np.ndarray, region: np.ndarray) -> Numbers:
    _, full = structural_similarity(a, b, channel_axis=2, full=True)
    free = cv2.dilate(region.astype(np.uint8), np.ones((7, 7), np.uint8)) == 0
    free[:3] = free[-3:] = free[:, :3] = free[:, -3:] = False
    return full[free].mean(), peak_signal_noise_ratio(a[~region], b[~region])


def cases(side: int) -> list[tuple[str, float | None, Callable[[], Numbers], Callable[[], Numbers]]]:
    """(name, least ratio, reference, ours)."""
    a, b, region = pair(side)
    gaussian = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    return [
        (
            "SSIM 7x7 + PSNR",
            15 if side == 512 else 10,
            lambda: (structural_similarity(a, b, channel_axis=2), peak_signal_noise_ratio(a, b)),
            lambda: metrics.ssim_psnr(a, b),
        ),
        (
            "SSIM gaussian",
            4,
            lambda: (structural_similarity(a, b, channel_axis=2, **gaussian),),
            lambda: (metrics.ssim_gaussian(a, b),),
        ),
        (
            "background SSIM + PSNR",
            None,
            lambda: background_reference(a, b, region),
            lambda: metrics.background_ssim_psnr(a, b, region),
        ),
        (
            "de-blend + DICE",
            80 if side == 512 else None,
            lambda: (numpy_dice(a, b, region, "green"),),
            lambda: (metrics.deblend_dice(a, b, region, "green"),),
        ),
    ]


def alone(side: int) -> list[tuple[str, Callable[[], object]]]:
    """What has no reference, and the floors."""
    a, b, region = pair(side)
    files = [np.frombuffer(encode_png(image), np.uint8) for image in (a, b)]
    space = np.empty_like(a)
    return [
        ("DICE + guarded DICE", lambda: metrics.dice_and_guarded(a, b, region, "green")),
        ("DICE + guarded, any colour", lambda: metrics.dice_and_guarded_any(a, b, region)),
        ("background as released", lambda: metrics.background_as_released(a, b, region)),
        ("drift", lambda: metrics.drift(a, b, region)),
        ("floor: copy both images", lambda: (np.copyto(space, a), np.copyto(space, b))),
        ("floor: decode both from PNG", lambda: [cv2.imdecode(f, cv2.IMREAD_COLOR) for f in files]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    cv2.setNumThreads(1)
    slow = []
    for side in (512, 128):
        print(
            f"{side}x{side} RGB, one thread, medians   reference ms    ours ms   ratio  (of minima)   least"
        )
        for name, least, reference, ours in cases(side):
            np.testing.assert_allclose(ours(), reference(), rtol=0, atol=1e-10)
            (old, old_min), (new, new_min) = seconds(reference, ours, repeats=options.repeats)
            bound = "" if least is None else f"{least:7.0f}x"
            ratios = f"{old / new:6.0f}x {old_min / new_min:11.0f}x"
            print(f"  {name:30s} {1e3 * old:14.2f} {1e3 * new:10.3f} {ratios} {bound}")
            if least is not None and old / new < least:
                slow.append(f"{name} at {side}")
        for name, call in alone(side):
            ((new, _),) = seconds(call, repeats=2 * options.repeats)
            print(f"  {name:30s} {'':14s} {1e3 * new:10.3f}")
    if slow:
        sys.exit("slower than promised: " + ", ".join(slow))


if __name__ == "__main__":
    main()
