"""Mark vertebrae, paraspinal muscles, aorta, stomach and colon on abdominal CT of public data sets.

    python examples/compact/structures.py OUTPUT [--data FOLDER] [--sheet FILE]

The other sources of data.yaml do not mark them in CT. structures_hints.yaml says roughly where they are,
image by image; rules on grey level turn that into masks. Drawn by the developers and checked by eye, not by
clinicians. FOLDER (default: $MIE_DATA) holds data-2/ and data-extra/. OUTPUT gets one folder per data set,
with images/ and masks/ (0: not marked, 1-5 as in NUMBERS); structures.yaml reads it. FILE shows all outlines.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.progress import track
from scipy import ndimage

from mie.images.read import read_picture

Mask = NDArray[np.bool_]
Grey = NDArray[np.float64]
Hint = dict[str, Any]
HINTS = Path(__file__).with_name("structures_hints.yaml")
FOLDERS = {
    "nih_pancreas_ct": "data-2",
    "chaos_liver_ct": "data-2",
    "msd_spleen_ct": "data-2",
    "msd_hepatic_vessel_tumor_ct": "data-2",
    "curvas_abdomen_ct": "data-extra",
}
NUMBERS = {"vertebrae": 1, "paraspinal muscles": 2, "aorta": 3, "stomach": 4, "colon": 5}
COLOURS = ((0, 255, 0), (255, 80, 80), (255, 255, 0), (80, 160, 255), (255, 0, 255))
DISC = ndimage.generate_binary_structure(2, 1)


def marked(grey: Grey, hint: Hint) -> NDArray[np.uint8]:
    """Number every marked pixel."""
    labels = np.zeros(grey.shape, np.uint8)
    for name in ("stomach", "colon"):  # gas is as black as fat in these windows, so the outline alone decides
        for outline in hint.get(name, []):
            labels[_inside(grey.shape, outline)] = NUMBERS[name]
    if "left" not in hint:  # every other grey level is judged against that of muscle
        return labels
    smooth = ndimage.gaussian_filter(grey, 1.0)
    muscle, fat = _levels(smooth, hint)
    bone_level = muscle + 0.4 * (_bone_level(grey, hint) - muscle)
    labels[_muscles(grey, smooth, hint, (fat + muscle) / 2, bone_level)] = NUMBERS["paraspinal muscles"]
    if "aorta" in hint:
        labels[_aorta(smooth, hint["aorta"], muscle)] = NUMBERS["aorta"]
    if "bone" in hint:
        labels[_vertebra(grey, hint, bone_level)] = NUMBERS["vertebrae"]
    return labels


def _levels(smooth: Grey, hint: Hint) -> tuple[float, float]:
    """Grey levels of muscle and of the fat round it."""
    area = _inside(smooth.shape, hint["left"]) | _inside(smooth.shape, hint["right"])
    fat = float(np.percentile(smooth[ndimage.binary_dilation(area, DISC, iterations=8)], 4))
    inner = smooth[area]
    return float(np.median(inner[inner > fat + 0.3 * (np.median(inner) - fat)])), fat


def _bone_level(grey: Grey, hint: Hint) -> float:
    return float(np.percentile(grey[_inside(grey.shape, hint["bone"])], 85)) if "bone" in hint else 255.0


def _vertebra(grey: Grey, hint: Hint, level: float) -> Mask:
    """Bone within the outline, marrow filled, without the spinal canal."""
    area = _inside(grey.shape, hint["bone"])
    bright = ndimage.gaussian_filter(grey, 0.5) > level
    solid = ndimage.binary_fill_holes(ndimage.binary_closing(bright & area, DISC, iterations=2) & area)
    if "marrow" in hint:
        solid |= _ellipse(grey.shape, *hint["marrow"])
    x, y, wide, high = hint["canal"]
    canal = _ellipse(grey.shape, x, y, 1.2 * wide, 1.2 * high) & ~bright
    solid &= ~_largest(ndimage.binary_opening(canal, DISC))
    return _without_specks(ndimage.binary_opening(solid, DISC) | (solid & bright), 12)


def _muscles(grey: Grey, smooth: Grey, hint: Hint, low: float, high: float) -> Mask:
    """What is brighter than fat and darker than bone within the outlines, streaks of fat filled."""
    area = _inside(grey.shape, hint["left"]) | _inside(grey.shape, hint["right"])
    area = ndimage.binary_dilation(area, DISC, iterations=2)  # the outlines were placed a little inside
    bone = ndimage.binary_dilation(_without_specks(grey > high, 12), DISC)
    inside = ndimage.binary_opening((smooth > low) & area & ~bone, DISC, iterations=2)
    holes = ndimage.binary_closing(inside, DISC, iterations=2) & area & ~bone
    return _without_specks(ndimage.binary_fill_holes(holes) & ~bone, 120)


def _aorta(smooth: Grey, circle: list[float], muscle: float) -> Mask:
    """The connected grey level round the centre, kept close to the circle."""
    x, y, radius = circle
    level = float(np.median(smooth[_ellipse(smooth.shape, x, y, 0.6 * radius, 0.6 * radius)]))
    reach = max(18.0, 0.45 * (level - muscle))
    like = (abs(smooth - level) < reach) & _ellipse(smooth.shape, x, y, 1.2 * radius, 1.2 * radius)
    grown = _largest(ndimage.binary_opening(like, DISC, iterations=2))
    grown |= _ellipse(smooth.shape, x, y, 0.8 * radius, 0.8 * radius)
    return np.asarray(ndimage.binary_opening(ndimage.binary_fill_holes(grown), DISC, iterations=3), bool)


def _inside(shape: tuple[int, ...], outline: list[list[float]]) -> Mask:
    canvas = Image.new("1", (shape[1], shape[0]))
    ImageDraw.Draw(canvas).polygon([(x, y) for x, y in outline], fill=1, outline=1)
    return np.array(canvas, bool)


def _ellipse(shape: tuple[int, ...], x: float, y: float, wide: float, high: float) -> Mask:
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    return np.asarray(((columns - x) / wide) ** 2 + ((rows - y) / high) ** 2 <= 1, bool)


def _largest(mask: Mask) -> Mask:
    parts, count = ndimage.label(mask)
    if not count:
        return mask
    return np.asarray(parts == 1 + int(np.argmax(ndimage.sum(mask, parts, range(1, count + 1)))), bool)


def _without_specks(mask: Mask, least: int) -> Mask:
    parts, count = ndimage.label(mask)
    sizes = np.concatenate([[0], ndimage.sum(mask, parts, range(1, count + 1))])
    return np.asarray(sizes[parts] >= least, bool)


def overlay(grey: Grey, labels: NDArray[np.uint8], name: str, times: int = 2) -> Image.Image:
    """The image round what is marked, enlarged, with outlines."""
    rows, columns = np.nonzero(labels)
    top, left = max(rows.min() - 12, 0), max(columns.min() - 12, 0)
    part = np.s_[top : rows.max() + 12, left : columns.max() + 12]
    large = np.kron(grey[part] / 255, np.ones((times, times))) ** 0.7 * 255
    canvas = np.repeat(large.astype(np.uint8)[..., None], 3, 2)
    for number, colour in enumerate(COLOURS, 1):
        area = np.kron(labels[part] == number, np.ones((times, times), bool))
        canvas[area & ~ndimage.binary_erosion(area, DISC)] = colour
    picture = Image.fromarray(canvas)
    ImageDraw.Draw(picture).text((2, 0), f"{name} {left},{top}", fill=(0, 255, 255))
    return picture


def sheet(pictures: list[Image.Image], columns: int = 4) -> Image.Image:
    wide, high = (max(p.size[axis] for p in pictures) + 4 for axis in (0, 1))
    whole = Image.new("RGB", (columns * wide, -(-len(pictures) // columns) * high), (60, 0, 0))
    for at, picture in enumerate(pictures):
        whole.paste(picture, (at % columns * wide, at // columns * high))
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, default=os.environ.get("MIE_DATA"))
    parser.add_argument("--sheet", type=Path)
    asked = parser.parse_args()
    if asked.data is None:
        parser.error("no data: set MIE_DATA or give --data, the folder that holds data-2/ and data-extra/")
    pictures = []
    hints: dict[str, dict[str, Hint]] = yaml.safe_load(HINTS.read_text(encoding="utf-8"))
    for name, images in hints.items():
        root, folder = asked.data / FOLDERS[name] / name / "images", asked.output / name
        for part in ("images", "masks"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        for stem, hint in track(images.items(), name):
            pixels = read_picture(root / f"{stem}.jpg").pixels
            grey = np.asarray(pixels if pixels.ndim == 2 else pixels[..., 0], float)
            labels = marked(grey, hint)
            shutil.copyfile(root / f"{stem}.jpg", folder / "images" / f"{stem}.jpg")
            Image.fromarray(labels).save(folder / "masks" / f"{stem}.png")
            pictures.append(overlay(grey, labels, stem))
    if asked.sheet:
        sheet(pictures).save(asked.sheet)


if __name__ == "__main__":
    main()
