"""Chest CT of other patients with simulated lung lesions, and the real lung tumours turned upright.

    python examples/compact/nodules.py DATA OUT [--seed 20260101]

DATA is the folder `MIE_DATA` of data.yaml. OUT gets one folder for each data set that is there: `images`,
`masks` and `lesions.jsonl`, which says what was drawn. nodules.yaml builds a dataset from OUT.

The lesions are drawn, not real: for training only, never for a claim about patients. Slices that show a
lesion of their own are left out, because nothing marks it: `covid19_ct` as a whole, the others by name. So
are `chest_ct_organs`, which is held out of training, and `ct_mr_volumes`, whose only chest is that of a
sample's patient.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mie.core.files import atomic_write, make_folder
from mie.core.hashing import stable_hash
from mie.images.png import encode_png
from mie.images.read import read_labels, read_picture
from mie.images.volumes import read_volume, slice_of, slice_spacing
from mie.records import Mask

Values = NDArray[np.float32]  # Hounsfield units, or what stands for them

LUNG: Final = (-1350.0, 150.0)
MEDIASTINUM: Final = (-160.0, 240.0)
# Slices with opacities of their own (consolidation, infiltrates, nodules), by the end of the scan's name.
LUNA_LEFT_OUT: Final = ("134773630", "238126594", "354433437", "874140576", "448332481")
LUNGSEGDB_LEFT_OUT: Final = ("152", "153", "97")  # two large masses; another window than the rest
# Gives fat (grey 97) and muscle (grey 125) of the files about their usual values; the lung is cut off at 0.
LUNGSEGDB_HU: Final = (-620.0, 750.0)
LUNA_HU: Final = (-1000.0, 400.0)  # as the catalogue says


@dataclass(frozen=True)
class Slice:
    """`values` as the slice hangs on a light box; `step` is what one grey level of the file stands for."""

    patient: str
    place: str
    values: Values
    millimetres: float | None
    step: float = 1.0
    own_window: tuple[float, float] | None = None  # where the lung was cut off: no other window shows it


@dataclass(frozen=True)
class Lesion:
    kind: str  # solid, part-solid, ground-glass
    diameter: float  # pixels
    at: tuple[int, int]
    against_wall: bool
    spicules: int
    cavity: bool
    calcified: bool


def slices(data: Path) -> Iterator[tuple[str, int, list[Slice]]]:
    """Of each data set its name, how many images to draw on each slice, and the slices."""
    found = []
    for path in _files(data, "data-2/ct_kernel_pairs/volumes", "*.nii.gz"):
        patient, _, kernel = path.name.removesuffix(".nii.gz").partition("_chest_")
        found += of_volume(path, patient, kernel)
    yield "ct_kernel_pairs", 5, found
    found = []
    for path in _files(data, "data-2/tcia_ct_hu/volumes", "*.nii.gz"):
        if "pelvis" not in path.name:
            some = of_volume(path, path.name.removesuffix(".nii.gz"), "")
            # The upper half of this one has a haze in the right lower lobe.
            found += some[:6] if path.name.startswith("slicerrt_lung") else some
    yield "tcia_ct_hu", 6, found
    found = []
    for path in _files(data, "data/luna_ct_slices/images", "*.png"):
        patient, _, place = path.stem.partition(".mhd_")
        if not patient.endswith(LUNA_LEFT_OUT):
            found.append(of_picture(path, patient, place, LUNA_HU, None))
    yield "luna_ct_slices", 10, found
    found = []
    for path in _files(data, "data-2/lungsegdb_ct/images", "*.jpg"):
        if path.stem not in LUNGSEGDB_LEFT_OUT:
            found.append(of_picture(path, path.stem, "0", LUNGSEGDB_HU, LUNGSEGDB_HU))
    yield "lungsegdb_ct", 7, found


def _files(data: Path, folder: str, pattern: str) -> list[Path]:
    return sorted((data / folder).glob(pattern))


def of_volume(path: Path, patient: str, series: str) -> list[Slice]:
    volume = read_volume(path)
    side = slice_spacing(volume.spacing, "axial")[0]
    return [
        Slice(
            patient, f"{series}{k}", np.ascontiguousarray(slice_of(volume.data, "axial", k), np.float32), side
        )
        for k in range(volume.data.shape[2])
    ]


def of_picture(
    path: Path, patient: str, place: str, hu: tuple[float, float], own: tuple[float, float] | None
) -> Slice:
    step = (hu[1] - hu[0]) / 255
    return Slice(
        patient,
        place,
        read_picture(path).pixels[..., 0] * np.float32(step) + np.float32(hu[0]),
        None,
        step,
        own,
    )


def lung_field(values: Values) -> Mask:
    """The two largest airy parts inside of the body, with the vessels in them."""
    body = _largest(ndimage.binary_opening(values > -500, iterations=2), 1)
    inside = ndimage.binary_erosion(ndimage.binary_fill_holes(body), iterations=3)
    airy = _largest(ndimage.binary_opening((values < -400) & inside, iterations=1), 2)
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (11, 11))
    closed = cv2.morphologyEx(np.pad(airy, 12).astype(np.uint8), cv2.MORPH_CLOSE, disc)[12:-12, 12:-12]
    return np.asarray(ndimage.binary_fill_holes(closed > 0) & inside, bool)


def _largest(mask: Mask, count: int) -> Mask:
    """The largest parts; a second one below a tenth of the first is a windpipe or a bubble of gas."""
    labels, found = ndimage.label(mask)
    if not found:
        return mask
    areas = np.bincount(labels.ravel())[1:]
    chosen = [n for n in np.argsort(-areas)[:count] if areas[n] >= 0.1 * areas.max()]
    return np.isin(labels, np.array(chosen) + 1)


class Tissue:
    """Level and noise of the image's own soft tissue."""

    def __init__(self, values: Values) -> None:
        smooth = ndimage.gaussian_filter(values, 2)  # noise alone leaves the range
        soft = ndimage.binary_erosion((smooth > -30) & (smooth < 130), iterations=2)
        self.level = float(np.clip(np.percentile(smooth[soft], 30), 0, 70)) if soft.any() else 30.0
        grain = np.where(soft, values - ndimage.gaussian_filter(values, 4), 0).astype(np.float32)
        side = 48
        share = ndimage.uniform_filter(soft.astype(np.float32), side)
        edge = side // 2
        y, x = np.unravel_index(np.argmax(share[edge:-edge, edge:-edge]), share[edge:-edge, edge:-edge].shape)
        self.patch = grain[y : y + side, x : x + side] / np.sqrt(max(float(share.max()), 0.2))

    def grain(self, shape: tuple[int, int], rng: np.random.Generator) -> Values:
        """Noise with the spectrum of the tissue's: its patch, sown at random with random signs."""
        white = rng.normal(size=shape).astype(np.float32)
        return np.asarray(cv2.filter2D(white, cv2.CV_32F, self.patch) / self.patch.shape[0], np.float32)


def outline(diameter: float, rng: np.random.Generator) -> tuple[Values, Values]:
    """A star-shaped outline: angles and the radius at each, in pixels."""
    angles = np.linspace(0, 2 * np.pi, 360, endpoint=False)
    waves = np.arange(2, 10)
    lobes = rng.uniform(0.03, 0.16) * rng.normal(size=waves.size) / (waves / 2) ** rng.uniform(0.7, 1.6)
    radii = 1 + (
        lobes[:, None] * np.cos(waves[:, None] * angles + rng.uniform(0, 2 * np.pi, (waves.size, 1)))
    ).sum(0)
    stretch, turn = rng.uniform(0.65, 1.0), rng.uniform(0, np.pi)
    radii *= stretch / np.hypot(stretch * np.cos(angles - turn), np.sin(angles - turn))
    radii = np.clip(radii, 0.35, 1.7)
    return angles.astype(np.float32), (radii * diameter / 2 / np.sqrt((radii**2).mean())).astype(np.float32)


def filled(shape: tuple[int, int], at: tuple[int, int], angles: Values, radii: Values) -> Values:
    """The share of each pixel inside of the outline."""
    y, x = at
    corners = np.stack([x + 0.5 + radii * np.cos(angles), y + 0.5 + radii * np.sin(angles)], 1) * 4
    fine = np.zeros((shape[0] * 4, shape[1] * 4), np.uint8)
    cv2.fillPoly(fine, [np.round(corners).astype(np.int32)], 255)
    return np.asarray(
        cv2.resize(fine, shape[::-1], interpolation=cv2.INTER_AREA) / np.float32(255), np.float32
    )


def strands(
    shape: tuple[int, int],
    at: tuple[int, int],
    angles: Values,
    radii: Values,
    count: int,
    rng: np.random.Generator,
) -> Values:
    """Spicules: thin strands that leave the edge and taper."""
    drawn = np.zeros((shape[0] * 4, shape[1] * 4), np.uint8)
    for n in rng.choice(angles.size, count, replace=False):
        bend = rng.normal(0, 0.15)
        reach = float(radii[n]) + rng.uniform(0.3, 1.1) * float(np.clip(radii.mean(), 5, 14))
        path = np.linspace(0.7 * float(radii[n]), reach, 12)
        direction = angles[n] + bend * (path - path[0]) / max(path[-1] - path[0], 1)
        points = (
            np.stack([at[1] + 0.5 + path * np.cos(direction), at[0] + 0.5 + path * np.sin(direction)], 1) * 4
        )
        thick, bright = rng.uniform(0.8, 2.2), rng.uniform(80, 220)
        for a, b, left in zip(points[:-1], points[1:], np.linspace(1, 0.3, 11), strict=True):
            ends = [tuple(int(v) for v in np.round(p)) for p in (a, b)]
            cv2.line(drawn, ends[0], ends[1], int(bright * left), max(1, round(4 * thick * left)))
    return np.asarray(
        cv2.resize(drawn, shape[::-1], interpolation=cv2.INTER_AREA) / np.float32(255), np.float32
    )


def choose(one: Slice, field: Mask, window: tuple[float, float], rng: np.random.Generator) -> Lesion:
    """A lesion of 6 to 60 mm, or of 2 to 20 % of the width where the size of a pixel is not known."""
    width = one.values.shape[1]
    low, high = (
        (6 / one.millimetres, 60 / one.millimetres) if one.millimetres else (0.02 * width, 0.18 * width)
    )
    diameter = float(np.exp(rng.uniform(np.log(low), np.log(high))))
    depth = ndimage.distance_transform_edt(field)
    diameter = min(diameter, 1.6 * float(depth.max()))
    against_wall = bool(rng.random() < 0.4)
    near = (depth > 0.1 * diameter) & (depth < 0.45 * diameter)
    places = np.argwhere(near if against_wall else depth > 0.55 * diameter)
    if not len(places):
        places = np.argwhere(depth >= 0.6 * depth.max())
    y, x = places[rng.integers(len(places))]
    kinds = ("solid", "part-solid", "ground-glass") if window[0] < -900 else ("solid",)
    kind = str(rng.choice(kinds, p=(0.76, 0.12, 0.12) if len(kinds) > 1 else None))
    large = diameter > 0.05 * width
    return Lesion(
        kind,
        diameter,
        (int(y), int(x)),
        against_wall,
        int(rng.integers(3, 5 + int(min(diameter, 40) / 4)))
        if kind != "ground-glass" and rng.random() < 0.4
        else 0,
        bool(kind == "solid" and large and rng.random() < 0.12),
        bool(kind == "solid" and rng.random() < 0.08),
    )


def draw(
    values: Values, lesion: Lesion, field: Mask, tissue: Tissue, sharpness: float, rng: np.random.Generator
) -> tuple[Values, Mask]:
    """The slice with the lesion, and the lesion's mask: the outline inside of the lung, without spicules."""
    shape = (values.shape[0], values.shape[1])
    lung = ndimage.gaussian_filter(field.astype(np.float32), 0.5)
    angles, radii = outline(lesion.diameter, rng)
    whole = filled(shape, lesion.at, angles, radii) * lung
    airy = field & (values < -600)
    air = float(np.median(values[airy])) if airy.any() else -850.0
    grain = tissue.grain(shape, rng)
    uneven = ndimage.gaussian_filter(rng.normal(size=shape), max(lesion.diameter / 8, 1.5))
    level = tissue.level + rng.normal(0, 18) + 12 * uneven / max(float(uneven.std()), 1e-6)
    edge = sharpness * (rng.uniform(1.5, 2.5) if rng.random() < 0.25 else 1.0)  # thick slices have soft edges
    body = ndimage.gaussian_filter(whole, edge)
    out = values.astype(np.float32)
    if lesion.kind != "solid":
        # Ground glass adds to the lung: the vessels in it stay visible.
        veil = rng.uniform(-620, -380) - air
        soft = ndimage.gaussian_filter(whole, 1.6 * sharpness)
        out = out + soft * np.minimum(
            veil * (1 + 0.12 * uneven / max(float(uneven.std()), 1e-6)), tissue.level - out
        )
        core = radii * rng.uniform(0.3, 0.6) if lesion.kind == "part-solid" else None
        body = (
            ndimage.gaussian_filter(filled(shape, lesion.at, angles, core) * lung, edge)
            if core is not None
            else 0 * body
        )
    elif rng.random() < 0.35:  # a thin haze around it
        halo = ndimage.gaussian_filter(
            filled(shape, lesion.at, angles, radii * rng.uniform(1.15, 1.5)) * lung, 2.5
        )
        out = out + halo * np.minimum(rng.uniform(80, 220), np.maximum(tissue.level - out, 0))
    if lesion.cavity:
        hole = radii * rng.uniform(0.25, 0.6)
        shift = rng.uniform(-0.15, 0.15, 2) * lesion.diameter
        centre = (lesion.at[0] + int(shift[0]), lesion.at[1] + int(shift[1]))
        level = level + (-930 - level) * ndimage.gaussian_filter(filled(shape, centre, angles, hole), edge)
    if lesion.calcified:
        spot = filled(shape, lesion.at, angles, radii * rng.uniform(0.12, 0.5))
        level = level + rng.uniform(150, 500) * ndimage.gaussian_filter(spot, sharpness)
    out = out * (1 - body) + body * (level + grain)
    if lesion.spicules:
        thin = ndimage.gaussian_filter(
            strands(shape, lesion.at, angles, radii, lesion.spicules, rng) * lung, 0.7 * sharpness
        )
        out = np.maximum(out, out + thin * (tissue.level + grain - out))
    return out.astype(np.float32), np.asarray((whole >= 0.5) & field, bool)


def show(values: Values, window: tuple[float, float]) -> NDArray[np.uint8]:
    low, high = window
    return np.asarray(np.clip(np.round((values - low) / (high - low) * 255), 0, 255), np.uint8)


def choose_window(one: Slice, rng: np.random.Generator) -> tuple[float, float]:
    """Mostly the lung window, exactly or nearly, sometimes the mediastinum's."""
    chance = rng.random()
    if one.own_window is not None:
        return one.own_window if chance < 0.7 else (rng.uniform(-400, -120), rng.uniform(200, 400))
    if chance < 0.45:
        return LUNG
    if chance < 0.75:
        return rng.uniform(-1450, -1000), rng.uniform(0, 400)
    return MEDIASTINUM if chance < 0.88 else (rng.uniform(-220, -100), rng.uniform(180, 320))


def simulate(
    one: Slice, field: Mask, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], Mask, dict[str, Any]] | None:
    """One to three lesions on the slice, or None where none could be seen."""
    window = choose_window(one, rng)
    grid = (
        rng.uniform(-0.5, 0.5, one.values.shape) * one.step if one.step > 1 else 0
    )  # hides the file's grey levels
    start = (one.values + grid).astype(np.float32)
    values, marked, drawn = start, np.zeros(field.shape, bool), []
    tissue = Tissue(one.values)
    sharpness = float(rng.uniform(0.7, 1.1))
    for _ in range(int(rng.choice((1, 2, 3), p=(0.65, 0.22, 0.13)))):
        for _attempt in range(12):
            lesion = choose(one, field, window, rng)
            after, mask = draw(values, lesion, field, tissue, sharpness, rng)
            before = show(values, window).astype(int)
            clear = np.abs(show(after, window).astype(int) - before)[mask] >= 25
            apart = not (ndimage.binary_dilation(mask, iterations=4) & marked).any()
            if mask.sum() >= 20 and apart and clear.mean() >= 0.6 and stands_out(values, mask):
                values, marked = after, marked | mask
                drawn.append(asdict(lesion))
                break
    if not drawn:
        return None
    return show(values, window), marked, {"window": [round(v, 1) for v in window], "lesions": drawn}


def stands_out(values: Values, mask: Mask) -> bool:
    """Whether the lesion took the place of lung and has lung around it: between vessels nobody could tell."""
    ring = ndimage.binary_dilation(mask, iterations=4) & ~mask
    small = mask.sum() < 0.0015 * mask.size
    airy = values < -450
    return bool(airy[mask].mean() >= 0.7 and airy[ring].mean() >= (0.6 if small else 0.4))


def write_simulated(data: Path, out: Path, seed: int) -> None:
    for name, each, found in slices(data):
        lines: list[str] = []
        for one in found:
            field = lung_field(one.values)
            if field.mean() < 0.04:
                continue
            for n in range(each):
                rng = np.random.default_rng(stable_hash("nodules", seed, name, one.patient, one.place, n))
                made = simulate(one, field, rng)
                if made is None:
                    continue
                file = f"{one.patient}__{one.place}_{n}.png"
                write_pair(out / name, file, made[0], made[1])
                lines.append(json.dumps({"file": file, **made[2]}))
        if lines:
            atomic_write(out / name / "lesions.jsonl", "\n".join(lines) + "\n")
        print(f"{name}: {len(lines)} images of {len(found)} slices")


def write_upright(data: Path, out: Path) -> None:
    """The Decathlon's slices have the spine on the left; turned by a quarter, they stand upright."""
    root = data / "data/msd_lung_tumor_ct"
    paths = sorted((root / "images").glob("*.png"))
    for path in paths:
        image = np.rot90(read_picture(path).pixels[..., 0])
        mask = np.rot90(read_labels(root / "masks" / path.name) > 0)
        write_pair(out / "msd_lung_tumor_ct", path.name, np.ascontiguousarray(image), mask)
    print(f"msd_lung_tumor_ct: {len(paths)} images, turned upright")


def write_pair(folder: Path, file: str, image: NDArray[np.uint8], mask: Mask) -> None:
    for kind, pixels in (("images", image), ("masks", mask.astype(np.uint8) * np.uint8(255))):
        atomic_write(make_folder(folder / kind) / file, encode_png(np.ascontiguousarray(pixels)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=20260101)
    options = parser.parse_args()
    write_simulated(options.data, options.out, options.seed)
    write_upright(options.data, options.out)


if __name__ == "__main__":
    main()
