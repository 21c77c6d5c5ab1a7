"""DICOM-SEG objects laid onto the volume they were drawn on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import highdicom as hd
import numpy as np
from numpy.typing import NDArray
from pydicom.errors import InvalidDicomError

from mie.errors import ImageError
from mie.images.volume import Volume
from mie.images.volume_files import LPS_TO_RAS
from mie.records import Mask

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
    try:
        seg = hd.seg.segread(path)
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
        label_map = np.zeros(series.data.shape, np.uint16)
        for index in frames[None]:
            _place(label_map, seg, index, grids[index], path)
        for number, label in labels.items():
            yield Segment(number, label, label_map == number)
        return
    for number, label in labels.items():
        mask = np.zeros(series.data.shape, np.bool_)
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
