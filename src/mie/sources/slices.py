"""From a volume and its marked regions to cases: which slices, which grey window, square pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.errors import ImageError
from mie.images.volumes import (
    AXIS,
    Volume,
    is_square,
    resampled,
    same_geometry,
    scaling,
    slice_of,
    slice_spacing,
    square_pixels,
)
from mie.images.windows import apply_window, find_window, holds_air, volume_window
from mie.records import Case, Mask, Pixels, Rejection, Step, Unit
from mie.sources.catalog import DicomLayout, Entry, VolumeLayout


@dataclass(frozen=True)
class Region:
    """One target's voxels, kept as their bounding box: a hundred organs as whole volumes fill the memory."""

    shape: tuple[int, ...]  # of the volume
    start: tuple[int, ...]
    inside: Mask  # (X, Y, Z) of the box
    steps: tuple[Step, ...] = ()  # how it came onto the volume's grid, where it was drawn on another

    @classmethod
    def of(cls, mask: Mask) -> Region | None:
        """None when nothing is marked."""
        box = []
        for axis in range(3):
            others = tuple(a for a in range(3) if a != axis)
            marked = np.flatnonzero(mask.any(axis=others))
            if not marked.size:
                return None
            box.append(slice(int(marked[0]), int(marked[-1]) + 1))
        found = mask[tuple(box)]
        inside = scratch.zeros(found.shape, np.bool_, order="F")
        for at in scratch.blocks(inside):
            inside[at] = found[at]
        return cls(mask.shape, tuple(s.start for s in box), inside)

    def __or__(self, other: Region) -> Region:
        start = np.minimum(self.start, other.start)
        stop = np.maximum(*(np.add(r.start, r.inside.shape) for r in (self, other)))
        inside = scratch.zeros(tuple(int(n) for n in stop - start), np.bool_, order="F")
        for region in (self, other):
            at = np.subtract(region.start, start)
            ends = at + region.inside.shape
            inside[tuple(slice(a, b) for a, b in zip(at, ends, strict=True))] |= region.inside
        return Region(self.shape, tuple(int(s) for s in start), inside, self.steps + other.steps)

    def areas(self, plane: str) -> NDArray[np.int64]:
        """Marked voxels in each slice of the plane."""
        axis = AXIS[plane]
        areas = np.zeros(self.shape[axis], np.int64)
        counts = self.inside.sum(axis=tuple(a for a in range(3) if a != axis))
        areas[self.start[axis] : self.start[axis] + counts.size] = counts
        return areas

    def slice(self, plane: str, index: int) -> Mask | None:
        """The slice as `slice_of` shows it; None when the target is not in it."""
        axis = AXIS[plane]
        within = index - self.start[axis]
        if not 0 <= within < self.inside.shape[axis]:
            return None
        cut = np.take(self.inside, [within], axis=axis)
        if not cut.any():
            return None
        slab = np.zeros([1 if a == axis else n for a, n in enumerate(self.shape)], np.bool_)
        start = [0 if a == axis else s for a, s in enumerate(self.start)]
        slab[tuple(slice(s, s + n) for s, n in zip(start, cut.shape, strict=True))] = cut
        return slice_of(slab, plane, 0)


def cases(
    entry: Entry,
    unit: Unit,
    volume: Volume,
    regions: Mapping[str, Region] | None,
    second: Volume | None = None,
) -> Iterator[Case | Rejection]:
    """The chosen slices of one volume, plane by plane; `regions` is None for a data set without masks.

    `second`, another volume of the same place, is brought onto the first one's grid by what the headers say.
    """
    layout = entry.layout
    assert isinstance(layout, VolumeLayout | DicomLayout)  # noqa: S101 (for the type checker)
    if regions is not None and not regions:
        yield Rejection(entry.name, unit.key, "source", "no target is marked anywhere in the volume")
        return
    window = _window(entry, volume.data, unit.key)
    hounsfield = entry.modality == "CT" and holds_air(volume.data)
    pair = None if second is None else _second(entry, volume, second, window, unit.key)
    for plane in layout.planes:
        count, thickness = volume.data.shape[AXIS[plane]], volume.spacing[AXIS[plane]]
        whole = layout.slices == "all"
        if layout.slices == "all":
            chosen = all_slices(volume, regions, plane, window, layout.around)
        elif regions is None:
            chosen = middle_slices(count, layout.slices)
        else:
            chosen = sorted(
                {
                    index
                    for region in regions.values()
                    for index in largest_slices(region.areas(plane), thickness, layout.slices, layout.gap)
                }
            )
        for index in chosen:
            case = _case(entry, unit, volume, regions or {}, plane, index, window, pair, hounsfield, whole)
            # All slices of a whole volume are wanted together, and may not fit in memory.
            yield scratch.aside(case) if whole else case


def largest_slices(areas: NDArray[np.int64], thickness: float, most: int, gap: float) -> list[int]:
    """The slice of largest area, then the next largest at least `gap` mm from all before; at most `most`.

    >>> largest_slices(np.array([0, 4, 9, 8, 1]), thickness=2.0, most=3, gap=4.0)
    [2, 4]
    """
    chosen: list[int] = []
    for index in np.argsort(-areas, kind="stable").tolist():
        if len(chosen) == most or areas[index] == 0:
            break
        # A hair less than the gap, so that 5 slices of 1.0000001/0.9999999 mm still are 5 mm.
        if all(abs(index - other) * thickness >= gap * (1 - 1e-6) for other in chosen):
            chosen.append(index)
    return chosen


def all_slices(
    volume: Volume, regions: Mapping[str, Region] | None, plane: str, window: Step, around: float | None
) -> list[int]:
    """Every slice from the first to the last that shows something, or to `around` mm beyond what is marked.

    Slices of one grey value at both ends, such as the padding of a series, are left out.
    """
    count, thickness = volume.data.shape[AXIS[plane]], volume.spacing[AXIS[plane]]
    first, last = 0, count - 1
    if regions and around is not None:
        marked = np.flatnonzero(sum(region.areas(plane) for region in regions.values()))
        beyond = math.ceil(around / thickness - 1e-6)
        first, last = max(0, int(marked[0]) - beyond), min(last, int(marked[-1]) + beyond)
    shown = [index for index in range(first, last + 1) if _shows(volume, plane, index, window)]
    return list(range(shown[0], shown[-1] + 1)) if shown else []


def _shows(volume: Volume, plane: str, index: int, window: Step) -> bool:
    grey = apply_window(slice_of(volume.data, plane, index), window)
    return bool((grey != grey[0, 0]).any())


def slice_affine(volume: Volume, plane: str, index: int) -> NDArray[np.float64]:
    """(column, row, slices from this one, 1) of a slice as `slice_of` shows it to RAS+ millimetres."""
    axis = AXIS[plane]
    down, across = {"axial": (1, 0), "coronal": (2, 0), "sagittal": (2, 1)}[plane]
    to_voxel = np.zeros((4, 4))
    to_voxel[3, 3] = 1
    for place, along in enumerate((across, down)):  # both run against the voxels' axes
        to_voxel[along, place], to_voxel[along, 3] = -1, volume.data.shape[along] - 1
    to_voxel[axis, 2], to_voxel[axis, 3] = 1, index
    return volume.affine @ to_voxel


def middle_slices(count: int, most: int) -> list[int]:
    """`most` slices spread evenly over the middle half.

    >>> middle_slices(100, 3)
    [37, 50, 62]
    """
    places = np.linspace(count / 4, 3 * count / 4, most + 2)[1:-1]
    return sorted({min(count - 1, int(place)) for place in places})


def _window(entry: Entry, data: NDArray[Any], where: str) -> dict[str, Any]:
    """One grey window for the whole volume, so that its slices can be compared."""
    if entry.window is not None:
        given = entry.window
        window = find_window(data, low=given.low, high=given.high, percentiles=given.percentiles, where=where)
    else:
        window = volume_window(data, hounsfield=entry.modality == "CT" and holds_air(data), where=where)
    if window.get("constant"):
        raise ImageError("volume holds one value only", where=where, found=window["low"])
    return window


def _second(entry: Entry, first: Volume, second: Volume, window: Step, where: str) -> tuple[Volume, Step]:
    """The second volume on the first one's grid, with its grey window: one window for two of a kind in HU."""
    other = second if same_geometry(first, second) is None else resampled(second, first, where=where)
    modality = (entry.pairing and entry.pairing.modality) or entry.modality
    if modality == entry.modality == "CT" and "percentiles" not in window:
        return other, window
    changed = entry.model_copy(update={"modality": modality, "window": None})
    return other, _window(changed, other.data, where)


def _case(
    entry: Entry,
    unit: Unit,
    volume: Volume,
    regions: Mapping[str, Region],
    plane: str,
    index: int,
    window: Step,
    second: tuple[Volume, Step] | None,
    hounsfield: bool,
    whole: bool,
) -> Case:
    spacing = slice_spacing(volume.spacing, plane)

    def grey(data: NDArray[Any], window: Step) -> Pixels:
        shown = square_pixels(apply_window(slice_of(data, plane, index), window), spacing, is_mask=False)
        return np.repeat(shown[..., None], 3, axis=2)

    image = grey(volume.data, window)
    pair = None if second is None else grey(second[0].data, second[1])
    values = None
    if hounsfield:
        measured = slice_of(volume.data, plane, index).astype(np.float32)
        values = np.ascontiguousarray(square_pixels(measured, spacing, is_mask=False))
    masks = {}
    for name, region in regions.items():
        mask = region.slice(plane, index)
        if mask is not None:
            masks[name] = np.ascontiguousarray(square_pixels(mask, spacing, is_mask=True))
    cut: dict[str, Any] = {"step": "slice", "plane": plane, "index": index}
    if whole:
        rows, columns = slice_of(volume.data, plane, index).shape
        affine = slice_affine(volume, plane, index) @ scaling(columns / image.shape[1], rows / image.shape[0])
        cut["affine"] = affine.tolist()
    moved = [step for name, region in regions.items() if name in masks for step in region.steps]
    steps: list[Step] = [*volume.steps, *moved, window, cut]
    if not is_square(spacing):
        side = min(spacing)
        steps.append({"step": "square pixels", "found": list(spacing), "to": [side, side]})
        spacing = (side, side)
    return Case(
        source=entry.name,
        case_id=f"{unit.key}#{plane}-{index:04d}",
        image=image,
        modality=entry.modality,
        anatomy=entry.anatomy,
        masks=masks,
        targets={t.name: t.target for t in entry.targets},
        pair=pair,
        pair_steps=() if second is None else (*second[0].steps, second[1]),
        pairing=None if entry.pairing is None else entry.pairing.pairing,
        values=values,
        units=None if values is None else "HU",
        patient_id=unit.patient_id,
        split=unit.split,
        spacing=spacing,
        license=entry.license.name,
        steps=tuple(steps),
    )
