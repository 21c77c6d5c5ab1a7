"""DICOM series as volumes, and DICOM-SEG objects laid onto the volume they were drawn on."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import highdicom as hd
import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.errors import InvalidDicomError
from pydicom.pixels.processing import apply_modality_lut

from mie.core import scratch
from mie.errors import ImageError
from mie.images.dicom import open_dicom, read_header
from mie.images.dicom_frames import check_frames, decompressed
from mie.images.limits import DEFAULT_LIMITS, check_pixels, decoding
from mie.images.volume_files import LPS_TO_RAS, MAX_VOXELS, check_size
from mie.images.volumes import Volume, canonical
from mie.records import Mask, Step

_ON_GRID: Final = 0.05  # of a voxel

# What pydicom and its decoders raise on a file that is damaged or not what it says.
BROKEN: Final = (
    InvalidDicomError,
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    AttributeError,
    KeyError,
    TypeError,
    IndexError,
    zlib.error,
)
_TAGS: Final = (
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "Rows", "Columns"),
    *("SamplesPerPixel", "PhotometricInterpretation", "SeriesInstanceUID", "FrameOfReferenceUID"),
    *("SpacingBetweenSlices", "SliceThickness", "NumberOfFrames", "PerFrameFunctionalGroupsSequence"),
)


class Segment(NamedTuple):
    number: int
    label: str
    mask: Mask  # (X, Y, Z) on the series' grid


def read_seg(path: Path, series: Volume) -> dict[str, Mask]:
    """The segments of a DICOM-SEG object by label, on the grid of `series`; equal labels are one mask."""
    masks: dict[str, Mask] = {}
    for _, label, mask in read_segments(path, series):
        masks[label] = masks[label] | mask if label in masks else mask
    return masks


def read_segments(path: Path, series: Volume) -> Iterator[Segment]:
    """One segment at a time, because a hundred organs as whole volumes do not fit in memory."""
    with decoding("DICOM-SEG", where=path):
        yield from _segments(path, series)


def _segments(path: Path, series: Volume) -> Iterator[Segment]:
    try:
        dataset = open_dicom(path)
        check_frames(dataset, None, where=path, limits=DEFAULT_LIMITS)
        seg = hd.seg.Segmentation.from_dataset(decompressed(dataset, where=path), copy=False)
        labels = {int(s.SegmentNumber): str(s.SegmentLabel) for s in seg.SegmentSequence}
        frames = _frames_by_segment(seg)
        to_voxels = np.linalg.inv(series.affine) @ LPS_TO_RAS
        grids = {index: to_voxels @ _frame_affine(seg, index) for found in frames.values() for index in found}
    except BROKEN as error:
        raise ImageError("cannot read the DICOM-SEG object", where=path, found=error) from error
    ours, theirs = series.frame_of_reference, seg.get("FrameOfReferenceUID")
    if ours is not None and theirs != ours:
        raise ImageError(
            "segmentation and series have different frames of reference",
            where=path,
            expected=ours,
            found=theirs,
            fix="pair the segmentation with the series it was drawn on",
        )
    if None in frames:  # LABELMAP: a pixel's value is its segment
        label_map = scratch.zeros(series.data.shape, np.uint16, order="F")
        for index in frames[None]:
            _place(label_map, seg, index, grids[index], path)
        for number, label in labels.items():
            mask = scratch.zeros(label_map.shape, np.bool_, order="F")
            for at in scratch.blocks(mask):
                mask[at] = label_map[at] == number
            yield Segment(number, label, mask)
        return
    for number, label in labels.items():
        mask = scratch.zeros(series.data.shape, np.bool_, order="F")
        for index in frames.get(number, ()):
            _place(mask, seg, index, grids[index], path)
        yield Segment(number, label, mask)


def _group(seg: Any, index: int, name: str) -> Any:
    """A frame's functional group; what all frames agree on is written once, in the shared groups."""
    own = seg.PerFrameFunctionalGroupsSequence[index]
    return (own if name in own else seg.SharedFunctionalGroupsSequence[0])[name].value[0]


def _frames_by_segment(seg: Any) -> dict[int | None, list[int]]:
    frames: dict[int | None, list[int]] = defaultdict(list)
    for index in range(len(seg.PerFrameFunctionalGroupsSequence)):
        number = None
        if seg.SegmentationType != "LABELMAP":
            number = int(_group(seg, index, "SegmentIdentificationSequence").ReferencedSegmentNumber)
        frames[number].append(index)
    return dict(frames)


def _frame_affine(seg: Any, index: int) -> NDArray[np.float64]:
    """(column, row, 0, 1) of one frame to LPS millimetres."""
    orientation = _group(seg, index, "PlaneOrientationSequence").ImageOrientationPatient
    across, down = np.array(orientation, np.float64).reshape(2, 3)
    row_mm, column_mm = map(float, _group(seg, index, "PixelMeasuresSequence").PixelSpacing)
    affine = np.eye(4)
    affine[:3, :3] = np.stack([across * column_mm, down * row_mm, np.cross(across, down)], axis=1)
    affine[:3, 3] = _group(seg, index, "PlanePositionSequence").ImagePositionPatient
    return affine


def _place(into: NDArray[Any], seg: Any, index: int, grid: NDArray[np.float64], path: Path) -> None:
    """Write one frame's marked pixels into the series' voxels; `grid` takes (column, row, 0, 1) to them."""
    try:
        frame = seg.get_stored_frame(index + 1)
        half = seg.MaximumFractionalValue / 2 if seg.SegmentationType == "FRACTIONAL" else 0
    except BROKEN as error:
        raise ImageError("cannot decode a segmentation frame", where=path, found=error) from error
    rows, columns = np.nonzero(frame > half)
    last = np.array([frame.shape[1] - 1, frame.shape[0] - 1])
    corners = grid[:3, :2] * last + grid[:3, 3:]
    off_grid = max(
        float(np.abs(corners - np.rint(corners)).max()),
        float(np.abs(np.abs(grid[:3, :2]).max(axis=0) - 1).max()),
        float(np.abs(grid[:3, 3] - np.rint(grid[:3, 3])).max()),
    )
    voxels = np.rint(grid[:3] @ np.stack([columns, rows, np.zeros_like(rows), np.ones_like(rows)])).astype(
        int
    )
    outside = ((voxels < 0) | (voxels >= np.array(into.shape)[:, None])).any(axis=0)
    if off_grid > _ON_GRID or outside.any():
        raise ImageError(
            "segmentation does not lie on the series' voxels",
            where=path,
            expected=f"frames on the grid of {' x '.join(map(str, into.shape))} voxels",
            found=f"frame {index + 1}: {off_grid:.3g} voxels off, {int(outside.sum())} pixels outside",
            fix="resample the segmentation to the series",
        )
    into[tuple(voxels)] = frame[rows, columns] if into.dtype != np.bool_ else True


# A DICOM series as one volume.
#
# File names and instance numbers say nothing reliable about the order of slices; only ImagePositionPatient
# along the normal of ImageOrientationPatient does. DICOM's patient axes are LPS+; volumes here are RAS+.

__all__ = ["Series", "open_series", "read_seg", "read_series"]

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
    with decoding("DICOM", where=Path(files[0]).parent):
        return _read_series([Path(path) for path in files], max_voxels)


def _read_series(files: Sequence[Path], max_voxels: int) -> Volume:
    headers = _headers(files)
    if is_enhanced(headers):
        return _read_enhanced(*headers[0], max_voxels)
    series = _located(headers)
    check_size(series.shape, max_voxels, series.where, width=4)
    return canonical(
        series.read(0, series.shape[2]),
        series.affine,
        steps=series.steps,
        where=series.where,
        frame_of_reference=series.frame_of_reference,
    )


@dataclass(frozen=True)
class Series:
    """The slices of one series in their order in space, before their pixels are read."""

    planes: Sequence[_Plane]
    affine: NDArray[np.float64]  # (column, row, slice, 1) to RAS+ millimetres
    steps: tuple[Step, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(columns, rows, slices)."""
        first = self.planes[0].header
        return int(first.Columns), int(first.Rows), len(self.planes)

    @property
    def where(self) -> Path:
        return self.planes[0].path.parent

    @property
    def files(self) -> list[Path]:
        return [plane.path for plane in self.planes]

    @property
    def frame_of_reference(self) -> str | None:
        return self.planes[0].header.get("FrameOfReferenceUID")

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Slices `start` to `stop` as (columns, rows, slices), after the modality's rescale."""
        columns, rows, _ = self.shape
        data = scratch.zeros((stop - start, rows, columns), np.float32)
        with decoding("DICOM", where=self.where):
            for at, plane in enumerate(self.planes[start:stop]):
                data[at] = _values(plane)
        return data.transpose(2, 1, 0)


def open_series(files: Sequence[Path]) -> Series:
    """The files of one series, sorted and checked by their headers; nothing else is read."""
    if not files:
        raise ImageError("a series without files")
    with decoding("DICOM", where=Path(files[0]).parent):
        headers = _headers([Path(path) for path in files])
        if is_enhanced(headers):
            raise ImageError(
                "this is an enhanced multi-frame file",
                where=headers[0][0],
                expected="one file for each slice",
            )
        return _located(headers)


def is_enhanced(headers: Sequence[tuple[Path, pydicom.Dataset]]) -> bool:
    """One file that holds all slices."""
    return len(headers) == 1 and "PerFrameFunctionalGroupsSequence" in headers[0][1]


def _headers(files: Sequence[Path]) -> list[tuple[Path, pydicom.Dataset]]:
    headers = [(path, _header(path)) for path in files]
    _one_series(headers)
    return headers


def _located(headers: Sequence[tuple[Path, pydicom.Dataset]]) -> Series:
    planes = [_plane(path, header) for path, header in headers]
    first = planes[0].header
    across, down = _directions(first, planes[0].path)
    _alike(planes)
    check_pixels(first.Rows, first.Columns, where=planes[0].path, limits=DEFAULT_LIMITS)
    normal = np.cross(across, down)
    planes.sort(key=lambda plane: float(normal @ plane.position))
    between = _slice_step(planes, normal)
    row_mm, column_mm = map(float, first.PixelSpacing)
    lps = np.eye(4)
    # PixelSpacing is (between rows, between columns); `across` is the way the column index grows.
    lps[:3, :3] = np.stack([across * column_mm, down * row_mm, between], axis=1)
    lps[:3, 3] = planes[0].position
    tilt = float(
        np.degrees(np.arccos(min(1.0, abs(float(normal @ between)) / float(np.linalg.norm(between)))))
    )
    steps: list[Step] = [{"step": "series", "files": len(planes)}]
    if tilt > _TILT_DEGREES:
        steps.append({"step": "gantry tilt", "degrees": round(tilt, 2)})
    return Series(planes, LPS_TO_RAS @ lps, tuple(steps))


def _header(path: Path) -> pydicom.Dataset:
    try:
        return read_header(path, _TAGS)
    except ImageError as error:
        raise ImageError("cannot read the DICOM file", where=path, found=error.found or error.what) from error


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
    dataset = open_dicom(plane.path)
    try:
        check_frames(dataset, None, where=plane.path, limits=DEFAULT_LIMITS)
        pixels = decompressed(dataset, where=plane.path).pixel_array
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
    check_size((header.get("Columns", 0), header.get("Rows", 0), frames), max_voxels, path, width=4)
    try:
        dataset = open_dicom(path)
        check_frames(dataset, None, where=path, limits=DEFAULT_LIMITS)
        image = hd.Image.from_dataset(decompressed(dataset, where=path), copy=False)
        volume = image.get_volume(dtype=np.float32, apply_real_world_transform=False)
    except BROKEN as error:
        raise ImageError("cannot make one volume of the frames", where=path, found=error) from error
    return canonical(
        volume.array,
        LPS_TO_RAS @ np.asarray(volume.affine, np.float64),
        steps=[{"step": "series", "frames": frames}],
        where=path,
        frame_of_reference=header.get("FrameOfReferenceUID"),
    )
