"""DICOM series with DICOM-SEG objects or label volumes as masks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mie.errors import MieError
from mie.images.dicom_seg import Segment, read_segments
from mie.images.dicom_series import read_series
from mie.images.volume import Volume
from mie.images.volume_files import is_volume
from mie.records import Case, Refusal, Unit
from mie.sources._labels import label_regions, marked_regions
from mie.sources._slices import Region, cases
from mie.sources._volume_units import Found, pair
from mie.sources.catalog import DicomLayout, Entry, TargetEntry
from mie.sources.patterns import Listing, fixed_folder


class DicomSource:
    """One unit is one series: the files that agree in every place of `layout.series` but `{instance}`.

    In a DICOM-SEG object a target's `value` is the segment's number; `nonzero` takes the segment whose label
    is the target's name, or every segment when the target has mask files of its own.
    """

    def __init__(self, entry: Entry, root: Path) -> None:
        assert isinstance(entry.layout, DicomLayout)  # noqa: S101 (the caller chose by layout.kind)
        self.entry = entry
        self.root = root
        self.layout = entry.layout

    def scan(self) -> Iterator[Unit | Refusal]:
        listing = Listing(self.root)
        series: dict[str, Found] = {}
        for path, places in listing.matches(self.layout.series):
            shared = {name: text for name, text in places.items() if name != "instance"}
            key = "/".join(shared.values()) or fixed_folder(self.layout.series) or "series"
            before = series[key].files if key in series else ()
            series[key] = Found((*before, path), shared)
        yield from pair(self.entry, listing, series, self.layout.masks, self.layout.pair)

    def load(self, unit: Unit) -> Iterator[Case | Refusal]:
        listing = Listing(self.root)
        volume = read_series([listing.inside(path) for path in unit.files["image"]])
        regions = marked_regions(
            self.entry, unit, lambda path, targets: self._regions(listing.inside(path), volume, targets)
        )
        files = [listing.inside(path) for path in unit.files.get("pair", ())]
        yield from cases(self.entry, unit, volume, regions, read_series(files) if files else None)

    def _regions(self, path: Path, volume: Volume, targets: tuple[TargetEntry, ...]) -> dict[str, Region]:
        if is_volume(path.name):
            return label_regions(path, volume, targets, self.entry)
        regions: dict[str, Region] = {}
        strange = []
        for segment in read_segments(path, volume):
            region = Region.of(segment.mask)
            owners = [target for target in targets if _is_segment(target, segment)]
            if region is None:
                continue
            if not owners and segment.number not in self.entry.ignore:
                voxels = int(region.inside.sum())
                strange.append(f"segment {segment.number} {segment.label!r} ({voxels} voxels)")
            for target in owners:
                regions[target.name] = regions[target.name] | region if target.name in regions else region
        if strange:
            raise MieError(
                "segmentation holds segments that are no target",
                where=path,
                expected=", ".join(_asked(target) for target in targets),
                found=", ".join(strange[:10])
                + (f" and {len(strange) - 10} more" if len(strange) > 10 else ""),
                fix="add them to the data set's targets, or their numbers to `ignore`",
            )
        return regions


def _is_segment(target: TargetEntry, segment: Segment) -> bool:
    if target.value is not None:
        return segment.number in target.values
    return target.masks is not None or segment.label.strip().casefold() == target.name.casefold()


def _asked(target: TargetEntry) -> str:
    if target.value is not None:
        return f"segment {' or '.join(map(str, target.values))} for {target.name!r}"
    return (
        f"every segment for {target.name!r}"
        if target.masks is not None
        else f"a segment named {target.name!r}"
    )
