"""What the compact editor does to CT with ever fewer streaks and ever less noise, with and without restraint.

    python bench/faint_ct.py FILE... [--size 128]

Files are CT slices as PNG or JPEG (taken for a soft-tissue window) or volumes as NIfTI, of which three slices
count. Gains are dB of PSNR over the input; "alone" is the whole change of the network.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import cv2
import nibabel as nib
import numpy as np

from mie.editors import open_editor
from mie.editors.compact import consistency
from mie.perspectives.transformation.physics import ct, ct_dose

WINDOW = (-160.0, 240.0)
BLACK = 2
VIEWS = (28, 45, 70, 95, 120, 180, 400)
PHOTONS = (3e4, 6e4, 1.2e5, 3e5, 1e6, 3e6)
ASKED = {
    "sparse views": "Remove the streaks of this sparse-view CT.",
    "soft kernel": "Denoise this low-dose CT, soft kernel.",
    "sharp kernel": "Denoise this low-dose CT, sharp kernel.",
    "soft kernel, not named": "Denoise this CT.",
    "sharp kernel, not named": "Denoise this CT.",
}
WIDTH = 380.0  # mm that an image shows
BEST = 80.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--size", type=int, default=128, help="pixels of the longer side")
    given = parser.parse_args()
    slices = [one for file in given.files for one in read(file, given.size)]
    print(f"{len(slices)} slices of {given.size} pixels: mean gain over the input, dB (the worst)")
    editor = open_editor("compact,modality=CT")
    for effect, asked in ASKED.items():
        rng = np.random.default_rng(0)
        levels = VIEWS if effect == "sparse views" else PHOTONS
        for level in levels:
            gains = []
            for hu in slices:
                clean, poor = shown(hu), shown(degraded(hu, effect, level, rng))
                image = np.repeat(poor[..., None], 3, axis=2)
                held = editor.edit(image, asked, seed=0, history=()).image[..., 0]
                with mock.patch.object(consistency, "weaken", lambda _, restored, __: (restored, 1.0)):
                    alone = editor.edit(image, asked, seed=0, history=()).image[..., 0]
                gains.append([psnr(clean, one) - psnr(clean, poor) for one in (alone, held)])
            mean, worst = np.mean(gains, axis=0), np.min(gains, axis=0)
            print(
                f"{effect:24} {level:9.0f}: alone {mean[0]:+6.2f} ({worst[0]:+6.2f})"
                f"   as shipped {mean[1]:+6.2f} ({worst[1]:+6.2f})",
                flush=True,
            )


def read(file: Path, size: int) -> Iterator[ct.Slice]:
    """Slices `(H, W) float32` in HU, `size` pixels at their longer side."""
    if file.name.endswith(".nii.gz"):
        values = np.asarray(nib.load(file).dataobj, np.float32)  # type: ignore[attr-defined]
        for share in (0.3, 0.5, 0.7):
            yield scaled(np.maximum(np.rot90(values[..., int(share * values.shape[2])]), -1000), size)
    else:
        grey = scaled(cv2.imread(str(file), cv2.IMREAD_GRAYSCALE), size)
        hu = WINDOW[0] + grey / 255 * (WINDOW[1] - WINDOW[0])
        yield np.where(grey <= BLACK, -1000, hu).astype(np.float32)


def scaled(image: np.ndarray, size: int) -> ct.Slice:
    scale = size / max(image.shape)
    to = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    return cv2.resize(image.astype(np.float32), to, interpolation=cv2.INTER_AREA)


def shown(hu: ct.Slice) -> np.ndarray:
    low, high = WINDOW
    return np.clip(np.rint((hu - low) / (high - low) * 255), 0, 255).astype(np.uint8)


def degraded(hu: ct.Slice, effect: str, level: float, rng: np.random.Generator) -> ct.Slice:
    """As `SparseView` and `LowDose` do it, but beyond their ranges too."""
    body, place = ct.embed(ct.hu_to_attenuation(hu), ct_dose.AIR)
    side = WIDTH / len(body)
    if effect == "sparse views":
        views = int(level)
        stride = max(2, math.ceil(ct.enough_views(len(body)) / views))
        angles = ct.even_angles(stride * views) + rng.uniform(0, 180 / views)
        weights = np.full(len(angles), -1, np.float32)
        weights[::stride] += stride
        filtered = ct.filter_sinogram(ct.project(body, angles) * np.float32(side), "ramp") * weights
        change = ct.backproject(filtered, angles, len(body))
    else:
        angles = ct.even_angles(ct.enough_views(len(body)))
        lines = ct.project(body, angles) * np.float32(side)
        noise = ct_dose.measure(np.exp(-lines), level, 10.0, rng) - lines
        change = ct.fbp(noise, angles, "hann" if effect.startswith("soft") else "ramp")
    return hu + ct_dose.to_hu(change, side)[place]


def psnr(clean: np.ndarray, image: np.ndarray) -> float:
    error = float(np.mean(np.square(clean.astype(np.float64) - image)))
    return min(BEST, 10 * math.log10(255**2 / error)) if error else BEST


if __name__ == "__main__":
    main()
