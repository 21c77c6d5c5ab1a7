"""A DICOM series as one volume.

File names and instance numbers say nothing reliable about the order of slices; only ImagePositionPatient
along the normal of ImageOrientationPatient does. DICOM's patient axes are LPS+; volumes here are RAS+.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import highdicom as hd
import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.pixels.processing import apply_modality_lut

from mie.errors import ImageError
from mie.images.dicom_seg import BROKEN, read_seg
from mie.images.volume import MAX_VOXELS, Volume, canonical
from mie.images.volume_files import LPS_TO_RAS, check_size
from mie.records import Step

__all__ = ["read_seg", "read_series"]

_UNEVEN: Final = 0.05  # of the slice distance; scanners round positions, but a lost slice is a whole one
_OFF_LINE: Final = 0.1  # mm sideways
_TILT_DEGREES: Final = 0.1


class _Plane(NamedTuple):
    """Where one image lies: its header and its place along the series' normal."""

    path: Path
    header: pydicom.Dataset
    position: NDArray[np.float64]  # LPS millimetres of the first pixel's centre


def read_series(files: Sequence[Path], *, max_voxels: int = MAX_VOXELS) -> Volume:
    """The files of one series (or one enhanced multi-frame file) as a RAS+ volume of float32 values.

    The modality's rescale (to Hounsfield units in CT) is applied slice by slice.
    """
    if not files:
        raise ImageError("a series without files")
    headers = [(Path(path), _read(Path(path), stop_before_pixels=True)) for path in files]
    _one_series(headers)
    if len(headers) == 1 and "PerFrameFunctionalGroupsSequence" in headers[0][1]:
        return _read_enhanced(*headers[0], max_voxels)
    planes = [_plane(path, header) for path, header in headers]
    first = planes[0].header
    across, down = _directions(first, planes[0].path)
    _alike(planes)
    check_size((first.Columns, first.Rows, len(planes)), max_voxels, planes[0].path.parent)
    normal = np.cross(across, down)
    planes.sort(key=lambda plane: float(normal @ plane.position))
    between = _slice_step(planes, normal)
    row_mm, column_mm = map(float, first.PixelSpacing)
    lps = np.eye(4)
    # PixelSpacing is (between rows, between columns); `across` is the way the column index grows.
    lps[:3, :3] = np.stack([across * column_mm, down * row_mm, between], axis=1)
    lps[:3, 3] = planes[0].position
    data = np.empty((len(planes), first.Rows, first.Columns), np.float32)
    for index, plane in enumerate(planes):
        data[index] = _values(plane)
    tilt = float(
        np.degrees(np.arccos(min(1.0, abs(float(normal @ between)) / float(np.linalg.norm(between)))))
    )
    steps: list[Step] = [{"step": "series", "files": len(planes)}]
    if tilt > _TILT_DEGREES:
        steps.append({"step": "gantry tilt", "degrees": round(tilt, 2)})
    return canonical(
        data.transpose(2, 1, 0),
        LPS_TO_RAS @ lps,
        steps=steps,
        where=planes[0].path.parent,
        frame_of_reference=first.get("FrameOfReferenceUID"),
    )


def _read(path: Path, *, stop_before_pixels: bool = False) -> pydicom.Dataset:
    try:
        return pydicom.dcmread(path, stop_before_pixels=stop_before_pixels)
    except BROKEN as error:
        raise ImageError("cannot read the DICOM file", where=path, found=error) from error


def _one_series(headers: Sequence[tuple[Path, pydicom.Dataset]]) -> None:
    counts: dict[str, int] = defaultdict(int)
    for _, header in headers:
        counts[str(header.get("SeriesInstanceUID", "none"))] += 1
    if len(counts) > 1:
        raise ImageError(
            "files of several series",
            where=headers[0][0].parent,
            expected="one SeriesInstanceUID",
            found=", ".join(f"{uid} ({n} files)" for uid, n in sorted(counts.items())),
            fix="give the series a place of their own in the file pattern",
        )


def _plane(path: Path, header: pydicom.Dataset) -> _Plane:
    for keyword in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns"):
        if header.get(keyword) is None:
            raise ImageError(
                "slice does not say where it lies", where=path, expected=keyword, found="nothing"
            )
    if header.get("SamplesPerPixel", 1) != 1 or header.get("PhotometricInterpretation") != "MONOCHROME2":
        raise ImageError(
            "slice is not a plain grey image",
            where=path,
            expected="MONOCHROME2",
            found=header.get("PhotometricInterpretation"),
        )
    return _Plane(path, header, np.array(header.ImagePositionPatient, np.float64))


def _directions(header: pydicom.Dataset, path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unit vectors (LPS) along growing column index and growing row index."""
    across, down = np.array(header.ImageOrientationPatient, np.float64).reshape(2, 3)
    lengths = np.linalg.norm(across), np.linalg.norm(down)
    if not np.allclose(lengths, 1, atol=1e-2) or abs(across @ down) > 1e-2:
        raise ImageError(
            "broken slice orientation",
            where=path,
            expected="two unit vectors at right angles",
            found=list(map(float, header.ImageOrientationPatient)),
        )
    return across / lengths[0], down / lengths[1]


def _alike(planes: Sequence[_Plane]) -> None:
    first = planes[0]
    for plane in planes[1:]:
        for keyword in ("Rows", "Columns", "PixelSpacing", "ImageOrientationPatient"):
            a, b = (np.array(p.header.get(keyword), np.float64) for p in (first, plane))
            if not np.allclose(a, b, atol=1e-3):
                raise ImageError(
                    f"slices of one series differ in {keyword}",
                    where=plane.path,
                    expected=f"{a.tolist()} as in {first.path.name}",
                    found=b.tolist(),
                )


def _slice_step(planes: Sequence[_Plane], normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """The LPS vector from one slice to the next; refuses doubled, missing and wandering slices."""
    where = planes[0].path.parent
    if len(planes) == 1:
        header = planes[0].header
        thickness = header.get("SpacingBetweenSlices") or header.get("SliceThickness")
        if not thickness:
            raise ImageError("a single slice without thickness", where=where, expected="SliceThickness")
        return normal * abs(float(thickness))
    heights = np.array([normal @ plane.position for plane in planes])
    gaps = np.diff(heights)
    usual = float(np.median(gaps))
    doubled = np.flatnonzero(gaps < 1e-3)
    if doubled.size:
        at = int(doubled[0])
        raise ImageError(
            "slices share a position",
            where=where,
            expected="one slice for each position",
            found=f"{doubled.size} doubled, the first at {heights[at]:.3f} mm: "
            f"{planes[at].path.name} and {planes[at + 1].path.name}",
            fix="keep one acquisition, or give each its own place in the file pattern",
        )
    uneven = np.flatnonzero(np.abs(gaps - usual) > _UNEVEN * usual)
    if uneven.size:
        at = int(uneven[0])
        raise ImageError(
            "slices are missing or unevenly spaced",
            where=where,
            expected=f"{usual:.3f} mm between slices",
            found=f"{uneven.size} of {gaps.size} distances differ, the first is {gaps[at]:.3f} mm "
            f"after {heights[at]:.3f} mm ({planes[at].path.name})",
        )
    positions = np.stack([plane.position for plane in planes])
    step = (positions[-1] - positions[0]) / (len(planes) - 1)
    sideways = positions - (positions[0] + np.outer(heights - heights[0], step / float(normal @ step)))
    wander = float(np.linalg.norm(sideways, axis=1).max())
    if wander > _OFF_LINE:
        raise ImageError(
            "slices do not lie behind one another",
            where=where,
            expected=f"at most {_OFF_LINE} mm off their line",
            found=f"{wander:.3f} mm",
        )
    return step


def _values(plane: _Plane) -> NDArray[np.float32]:
    dataset = _read(plane.path)
    try:
        pixels = dataset.pixel_array
        if pixels.shape != (plane.header.Rows, plane.header.Columns):
            raise ImageError(
                "not one slice in the file",
                where=plane.path,
                expected=f"{plane.header.Rows} x {plane.header.Columns}",
                found=" x ".join(map(str, pixels.shape)),
            )
        return np.asarray(apply_modality_lut(pixels, dataset), np.float32)
    except BROKEN as error:
        raise ImageError("cannot decode the slice", where=plane.path, found=error) from error


def _read_enhanced(path: Path, header: pydicom.Dataset, max_voxels: int) -> Volume:
    frames = int(header.get("NumberOfFrames", 1))
    check_size((header.get("Columns", 0), header.get("Rows", 0), frames), max_voxels, path)
    try:
        volume = hd.imread(path).get_volume(dtype=np.float32, apply_real_world_transform=False)
    except BROKEN as error:
        raise ImageError("cannot make one volume of the frames", where=path, found=error) from error
    return canonical(
        volume.array,
        LPS_TO_RAS @ np.asarray(volume.affine, np.float64),
        steps=[{"step": "series", "frames": frames}],
        where=path,
        frame_of_reference=header.get("FrameOfReferenceUID"),
    )
