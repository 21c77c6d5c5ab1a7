"""How steady fills are from slice to slice: real tissue, a fill through the volume, and slices filled alone.

    python -m bench.flicker VOLUME.nii.gz ... [--inpainter exemplar] [--radius 8] [--places 4]

In each volume, ellipsoidal holes are cut into tissue that is there. `fill_flicker` of the untouched tissue
says what no fill can be blamed for; slices that are filled alone, each with its own seed, are what the gate
`flicker` is for. Every volume is one patient: rates are means over patients, of the mean over their holes.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mie.images.png import encode_png
from mie.images.slice_consistency import fill_flicker
from mie.images.volumes import Volume, read_volume, slice_of, slice_spacing, square_pixels
from mie.images.windows import apply_window, holds_air, volume_window
from mie.perspectives.modification.inpainters import make_inpainter
from mie.perspectives.modification.inpainters.blend import blend
from mie.perspectives.modification.inpainters.volume import fill_volume
from mie.records import Mask, Pixels

LIMITS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0)
KINDS = ("tissue", "volume", "slices")


def shown(volume: Volume) -> tuple[list[Pixels], tuple[float, float]]:
    """The axial slices as pictures, and (slice step, pixel) millimetres."""
    window = volume_window(volume.data, hounsfield=holds_air(volume.data), where="volume")
    spacing = slice_spacing(volume.spacing, "axial")
    slices = []
    for index in range(volume.data.shape[2]):
        grey = square_pixels(
            apply_window(slice_of(volume.data, "axial", index), window), spacing, is_mask=False
        )
        slices.append(np.repeat(grey[..., None], 3, axis=2))
    return slices, (volume.spacing[2], min(spacing))


def holes(
    slices: Sequence[Pixels], millimetres: tuple[float, float], radius: float, places: int, seed: int
) -> Iterator[list[Mask]]:
    """Ellipsoids in tissue: at most a tenth of one, and of its neighbourhood, is black."""
    step, pixel = millimetres
    height, width = slices[0].shape[:2]
    radius = max(radius, 3 * pixel)
    half = max(1, min(round(radius / step), (len(slices) - 1) // 2))
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    found = 0
    for _ in range(400):
        z = int(draw.integers(half, len(slices) - half))
        row, column = int(draw.integers(height)), int(draw.integers(width))
        distance = ((y - row) ** 2 + (x - column) ** 2) * (pixel / radius) ** 2
        cut = [
            np.ascontiguousarray(distance + ((at - z) / (half + 0.5)) ** 2 <= 1) for at in range(len(slices))
        ]
        near = distance <= 2.5
        inside = [slices[at][..., 0][near] for at in range(z - half, min(z + half + 1, len(slices)))]
        if np.mean(np.concatenate(inside) < 12) > 0.1:
            continue
        yield cut
        found += 1
        if found == places:
            return


def measure(
    path: Path, inpainter: str, radius: float, places: int
) -> tuple[dict[str, list[float]], list[Pixels]]:
    """The largest `fill_flicker` of each hole by kind, and rows for a sheet."""
    volume = read_volume(path)
    slices, millimetres = shown(volume)
    filler = make_inpainter(inpainter, family="ct" if holds_air(volume.data) else "mri")
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    rows: list[Pixels] = []
    original = np.stack([s[..., 0] for s in slices])
    for number, cut in enumerate(holes(slices, millimetres, radius, places, zlib.crc32(path.name.encode()))):
        alone = [
            blend("poisson", s, filler.fill(s, m, seed=100 * number + at), m) if m.any() else s
            for at, (s, m) in enumerate(zip(slices, cut, strict=True))
        ]
        together = fill_volume(filler, slices, cut, seed=number, blend="poisson")
        for kind, made in zip(KINDS, (slices, together, alone), strict=True):
            pairs = fill_flicker(np.stack([s[..., 0] for s in made]), original, np.stack(cut))
            if pairs:
                ratios[kind].append(max(pairs))
        if number == 0:
            rows = [_row(made, cut) for made in (slices, together, alone)]
    return ratios, rows


def _row(slices: Sequence[Pixels], cut: Sequence[Mask]) -> Pixels:
    at = [k for k, mask in enumerate(cut) if mask.any()]
    middle = cut[at[len(at) // 2]]
    row, column = (int(v.mean()) for v in np.nonzero(middle))
    size = 48
    tiles = []
    for k in at[:: max(1, len(at) // 6)][:6]:
        padded = np.pad(slices[k], ((size, size), (size, size), (0, 0)))
        tiles.append(padded[row : row + 2 * size, column : column + 2 * size])
    return np.hstack(tiles + [np.zeros_like(tiles[0])] * (6 - len(tiles)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("volumes", nargs="+", type=Path)
    parser.add_argument("--inpainter", default="exemplar")
    parser.add_argument("--radius", type=float, default=8.0, help="millimetres, at least three pixels")
    parser.add_argument("--places", type=int, default=4)
    parser.add_argument("--sheet", type=Path)
    options: Any = parser.parse_args()
    patients: list[dict[str, list[float]]] = []
    sheet: list[Pixels] = []
    for path in options.volumes:
        ratios, rows = measure(path, options.inpainter, options.radius, options.places)
        if not ratios["tissue"]:
            print(f"{path.name}: no hole whose slices can be compared", flush=True)
            continue
        patients.append(ratios)
        sheet += rows
        text = "; ".join(f"{kind} {np.round(ratios[kind], 2).tolist()}" for kind in KINDS)
        print(f"{path.name}: {text}", flush=True)
    print(f"\n{len(patients)} patients, {sum(len(p['tissue']) for p in patients)} holes")
    print("share above   " + "  ".join(f"{limit:5.1f}" for limit in LIMITS))
    for kind in KINDS:
        shares = [np.mean([np.mean(np.array(p[kind]) > limit) for p in patients]) for limit in LIMITS]
        print(f"{kind:13} " + "  ".join(f"{share:5.0%}" for share in shares))
    if options.sheet is not None:
        options.sheet.write_bytes(encode_png(np.vstack(sheet)))


if __name__ == "__main__":
    main()
