"""Stack numbered slices (PNG) and their masks into NIfTI volumes, one for each patient.

    python examples/volumes/stack_slices.py IMAGES MASKS OUT --spacing 1 1 4

Files are called PATIENT_zNUMBER.png in both folders. A gap in the numbers begins a new volume. Rows run from
anterior to posterior and columns from the patient's right to left, as axial slices hang.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

import nibabel as nib
import numpy as np

from mie.images.read import read_labels, read_picture

NAME = re.compile(r"(?P<patient>.+)_z\+?(?P<number>\d+)\.png")


def runs(images: Path) -> dict[str, list[tuple[int, Path]]]:
    """Slices by patient and stretch of evenly numbered files."""
    found: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    for path in sorted(images.iterdir()):
        if match := NAME.fullmatch(path.name):
            found[match["patient"]].append((int(match["number"]), path))
    stretches: dict[str, list[tuple[int, Path]]] = {}
    for patient, slices in found.items():
        slices.sort()
        steps = np.diff([number for number, _ in slices])
        usual = int(np.median(steps)) if steps.size else 1
        part = 0
        for at, one in enumerate(slices):
            part += int(at > 0 and steps[at - 1] != usual)
            stretches.setdefault(f"{patient}_{part}", []).append(one)
    return {name: slices for name, slices in stretches.items() if len(slices) > 2}


def main() -> None:
    """Write `OUT/images` and `OUT/masks`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path)
    parser.add_argument("masks", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--spacing", type=float, nargs=3, default=(1.0, 1.0, 4.0), help="column, row, slice mm"
    )
    options = parser.parse_args()
    column, row, step = options.spacing
    affine = np.diag([-column, -row, step, 1.0])  # LPS: as the slices hang
    for name in ("images", "masks"):
        (options.out / name).mkdir(parents=True, exist_ok=True)
    for name, slices in runs(options.images).items():
        grey = np.stack([read_picture(path).pixels[..., 0] for _, path in slices], axis=2)
        labels = np.stack([read_labels(options.masks / path.name) > 0 for _, path in slices], axis=2)
        for kind, data in (("images", grey), ("masks", labels.astype(np.uint8))):
            nib.save(nib.Nifti1Image(data.transpose(1, 0, 2), affine), options.out / kind / f"{name}.nii.gz")
        print(f"{name}: {len(slices)} slices, {int(labels.sum())} marked voxels")


if __name__ == "__main__":
    main()
