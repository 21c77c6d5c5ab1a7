"""Volumes in one orientation, and the slices of them as radiologists look at them.

Every volume comes out as RAS+: axis 0 grows towards the patient's Right, axis 1 Anterior, axis 2 Superior
(nibabel's convention). DICOM and ITK think in LPS+; the readers turn that round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import cv2
import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mie.core import scratch
from mie.errors import ImageError
from mie.images.volume_files import MAX_VOXELS, read_stored
from mie.records import Step
from mie.vocabulary import PLANES

# The axis that runs through a plane's slices.
AXIS: Final = {"axial": 2, "coronal": 1, "sagittal": 0}

_VOXEL_MM: Final = (1e-6, 1e4)
_SHEARED: Final = 0.01  # the volume of a voxel with edges of length 1; 1 is a cube
_OBLIQUE_DEGREES: Final = 0.01  # below is rounding in the header
_SAME_PLACE: Final = 0.01  # of a voxel
_SQUARE: Final = 1.02
_MAX_STRETCH: Final = 100.0


@dataclass(frozen=True)
class Volume:
    """`data` is (X, Y, Z), RAS+; `affine` takes (i, j, k, 1) to RAS+ millimetres of the voxel's centre."""

    data: NDArray[Any]
    spacing: tuple[float, float, float]
    affine: NDArray[np.float64]
    steps: tuple[Step, ...] = ()
    frame_of_reference: str | None = None  # DICOM's UID, where the file has one


def read_volume(
    path: Path, *, labels: bool = False, max_voxels: int = MAX_VOXELS, channel: int | None = None
) -> Volume:
    """A NIfTI, NRRD or MetaImage volume in RAS+ orientation.

    With `labels`, values must be whole numbers and come as integers. An oblique volume is not resampled: its
    axes are taken as the nearest patient axes and the angle is recorded. `channel` chooses one volume of a
    NIfTI file with four axes.
    """
    stored = read_stored(Path(path), max_voxels, channel)
    data = _whole_numbers(stored.data, path) if labels else stored.data
    return canonical(data, stored.affine, steps=stored.steps, where=path)


def canonical(
    data: NDArray[Any],
    affine: NDArray[np.float64],
    *,
    steps: Sequence[Step] = (),
    where: object = None,
    frame_of_reference: str | None = None,
) -> Volume:
    """Permute and flip the axes to the nearest RAS+ ones; `affine` is the RAS+ affine of `data` as given."""
    check_affine(affine, where)
    if data.dtype.kind == "f":
        wrong = data.size - sum(int(np.isfinite(data[at]).sum()) for at in scratch.blocks(data))
        if wrong:
            raise ImageError(
                "volume holds values that are no numbers",
                where=where,
                expected="finite values",
                found=f"{wrong} of {data.size} voxels are NaN or infinite",
            )
    found = "".join(nib.aff2axcodes(affine))
    steps = list(steps)
    if not any(step["step"] == "orientation" for step in steps):
        steps.append({"step": "orientation", "found": found, "to": "RAS"})
    steps += obliquity_steps(affine)
    turn = nib.io_orientation(affine)
    affine = affine @ nib.orientations.inv_ornt_aff(turn, data.shape)
    x, y, z = (float(mm) for mm in np.linalg.norm(affine[:3, :3], axis=0))
    return Volume(nib.apply_orientation(data, turn), (x, y, z), affine, tuple(steps), frame_of_reference)


def check_affine(affine: NDArray[np.float64], where: object) -> None:
    """Refuse axes that do not span space, and voxels of absurd sizes."""
    sizes = np.linalg.norm(affine[:3, :3], axis=0)
    small, large = _VOXEL_MM
    if (
        not np.isfinite(affine).all()
        or not ((sizes >= small) & (sizes <= large)).all()
        or abs(np.linalg.det(affine[:3, :3] / sizes)) < _SHEARED
    ):
        raise ImageError(
            "the volume's axes do not span space",
            where=where,
            expected=f"three directions and voxels of {small:g} to {large:g} mm",
            found=affine[:3].tolist(),
        )


def obliquity_steps(affine: NDArray[np.float64]) -> list[Step]:
    """A step that says by how much the axes differ from the patient's; none where they do not."""
    degrees = _obliquity(affine)
    return [{"step": "oblique", "degrees": round(degrees, 2)}] if degrees > _OBLIQUE_DEGREES else []


def _obliquity(affine: NDArray[np.float64]) -> float:
    """The largest angle in degrees between a voxel axis and the patient axis nearest to it."""
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    # By the sine: the arc cosine of a number near 1 turns 32-bit rounding into hundredths of a degree.
    off_axis = np.sqrt(np.maximum(0, (axes**2).sum(axis=0) - (axes**2).max(axis=0)))
    return float(np.degrees(np.arcsin(np.minimum(1, off_axis))).max())


def _whole_numbers(data: NDArray[Any], path: object) -> NDArray[Any]:
    if data.dtype.kind in "iu":
        return data
    limits = np.iinfo(np.int32)
    labels, wrong, example = scratch.zeros(data.shape, np.int32, order="F"), 0, 0.0
    for at in scratch.blocks(labels):
        values = data[at]
        # NaN fails every comparison, so it counts as broken here too.
        whole = (values == np.rint(values)) & (values >= limits.min) & (values <= limits.max)
        if not whole.all():
            example = example if wrong else float(values[~whole][0])
            wrong += int((~whole).sum())
        labels[at] = np.where(whole, values, 0)
    if wrong:
        raise ImageError(
            "label map holds values that are no labels",
            where=path,
            expected="whole numbers",
            found=f"{wrong} voxels such as {example:g}",
        )
    return labels


def slice_of(data: NDArray[Any], plane: str, index: int) -> NDArray[Any]:
    """One slice of RAS+ data as a 2-D view, the way it hangs on a light box (radiological convention).

    axial: rows run anterior to posterior, columns from the patient's right to left, so that the patient's
    right is on the image's left. coronal: rows superior to inferior, columns right to left. sagittal: rows
    superior to inferior, columns anterior to posterior.
    """
    if plane == "axial":
        return data[::-1, ::-1, index].T
    if plane == "coronal":
        return data[::-1, index, ::-1].T
    if plane == "sagittal":
        return data[index, ::-1, ::-1].T
    raise ValueError(f"plane must be one of {PLANES}, got {plane!r}")


def slice_spacing(spacing: tuple[float, float, float], plane: str) -> tuple[float, float]:
    """(row, column) millimetres of a slice from `slice_of`."""
    x, y, z = spacing
    return {"axial": (y, x), "coronal": (z, x), "sagittal": (z, y)}[plane]


def is_square(spacing: tuple[float, float]) -> bool:
    return max(spacing) <= _SQUARE * min(spacing)


def square_pixels(image: NDArray[Any], spacing: tuple[float, float], *, is_mask: bool) -> NDArray[Any]:
    """`image` (H, W[, C]) uint8, float32 (H, W), or a bool mask, with pixels as wide as they are high.

    The smaller spacing is kept, so nothing is thrown away; within 2% of square the array comes back as it is.
    """
    if is_square(spacing):
        return image
    if max(spacing) > _MAX_STRETCH * min(spacing):
        raise ImageError(
            "pixels are too far from square", expected=f"at most {_MAX_STRETCH:g} to 1", found=f"{spacing} mm"
        )
    rows, columns = (round(n * mm / min(spacing)) for n, mm in zip(image.shape[:2], spacing, strict=True))
    # NEAREST_EXACT samples at pixel centres, as LINEAR does; plain NEAREST would shift masks by half a pixel.
    way = cv2.INTER_NEAREST_EXACT if is_mask else cv2.INTER_LINEAR
    pixels = np.ascontiguousarray(image, dtype=np.float32 if image.dtype.kind == "f" else np.uint8)
    return cv2.resize(pixels, (columns, rows), interpolation=way).astype(image.dtype, copy=False)


def scaling(columns: float, rows: float) -> NDArray[np.float64]:
    """From pixel centres of a scaled image to those of the original, which has so many pixels for one."""
    matrix = np.eye(4)
    matrix[0, 0], matrix[1, 1] = columns, rows
    matrix[0, 3], matrix[1, 3] = (columns - 1) / 2, (rows - 1) / 2
    return matrix


def resampled(volume: Volume, onto: Volume, *, labels: bool = False, where: object = None) -> Volume:
    """`volume` on the grid of `onto`, both in the same patient space, linearly; outside it is its minimum.

    With `labels` each voxel takes the nearest value, and outside it is 0.
    """
    to_own = np.linalg.inv(volume.affine) @ onto.affine
    corners = np.array([(*c, 1) for c in product(*((0, n - 1) for n in onto.data.shape))], np.float64).T
    box = (to_own @ corners)[:3]
    if (box.max(axis=1) < 0).any() or (box.min(axis=1) > np.array(volume.data.shape) - 1).any():
        raise ImageError(
            "the two volumes do not overlap",
            where=where,
            expected=f"{_times(onto.data.shape)} voxels from {np.round(onto.affine[:3, 3], 1).tolist()} mm",
            found=f"{_times(volume.data.shape)} voxels from {np.round(volume.affine[:3, 3], 1).tolist()} mm",
        )
    values = volume.data
    if not labels:
        values = scratch.zeros(values.shape, np.float32, order="F")
        for at in scratch.blocks(values):
            values[at] = volume.data[at]
    data = scratch.zeros(onto.data.shape, values.dtype)
    ndimage.affine_transform(
        values,
        to_own[:3, :3],
        to_own[:3, 3],
        output=data,
        order=0 if labels else 1,
        cval=0.0 if labels else float(volume.data.min()),
    )
    step = {"step": "resample", "found": list(volume.spacing), "to": list(onto.spacing)}
    return Volume(data, onto.spacing, onto.affine, (*volume.steps, step), volume.frame_of_reference)


def same_geometry(a: Volume, b: Volume) -> str | None:
    """None where the two grids lie on each other, else the reason in words.

    The corners may differ by a hundredth of a voxel: headers are written in 32-bit floats or a few digits.
    """
    if a.data.shape != b.data.shape:
        return f"shapes differ: {_times(a.data.shape)} and {_times(b.data.shape)} voxels"
    corners = np.array([(*c, 1) for c in product(*((0, n - 1) for n in a.data.shape))], np.float64).T
    apart = np.linalg.norm(((a.affine - b.affine) @ corners)[:3], axis=0).max()
    if apart <= _SAME_PLACE * min(a.spacing):
        return None
    if not np.allclose(a.spacing, b.spacing, rtol=1e-3):
        return f"spacings differ: {_times(a.spacing)} and {_times(b.spacing)} mm"
    return f"positions differ by up to {apart:.3g} mm (voxels of {_times(a.spacing)} mm)"


def _times(numbers: Sequence[float]) -> str:
    return " x ".join(f"{n:.4g}" if isinstance(n, float) else str(n) for n in numbers)
