"""Data sets of volumes: NIfTI, NRRD, MetaImage, DICOM series; with label maps, mask volumes or DICOM-SEG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mie.errors import MieError
from mie.images.dicom_series import Segment, read_segments, read_series
from mie.images.volume_files import is_volume
from mie.images.volumes import Volume, read_volume
from mie.records import Case, Rejection, Unit
from mie.sources import patterns
from mie.sources.catalog import DicomLayout, Entry, TargetEntry, VolumeLayout, patient_of, split_of
from mie.sources.markings import label_regions, marked_regions
from mie.sources.patterns import Listing, fixed_folder
from mie.sources.slices import Region, cases


class Found(NamedTuple):
    """The file or files of one volume, and what the pattern captured from their names."""

    files: tuple[str, ...]
    places: Mapping[str, str]


def pair(
    entry: Entry,
    listing: patterns.Listing,
    images: Mapping[str, Found],
    masks: str | None,
    second: str | None,
) -> Iterator[Unit | Rejection]:
    """Units by key; then rejections for mask files, and second volumes, that no image asked for.

    A file that some image uses as its mask is not an image, even where the image pattern fits it too
    (`{id}.nii.gz` beside `{id}_seg.nii.gz`).
    """
    wanted = {f"mask:{t.name}": t.masks for t in entry.targets if t.masks is not None}
    if masks is not None and entry.targets_of("masks"):
        wanted["masks"] = masks
    marked = sorted(set(wanted.values()))
    if second is not None:
        wanted["pair"] = second
    places = next(iter(images.values())).places if images else {}
    finders = {role: patterns.Companions(listing, pattern, places) for role, pattern in wanted.items()}
    # A volume is not its own mask ("{id}*.nii.gz"); a series may have its DICOM-SEG among its files.
    paired = {
        key: {
            role: tuple(path for path in finder.of(image.places) if image.files != (path,))
            for role, finder in finders.items()
        }
        for key, image in images.items()
    }
    used = {path for roles in paired.values() for paths in roles.values() for path in paths}
    for key, image in sorted(images.items()):
        files = tuple(path for path in image.files if path not in used)
        if not files:
            continue
        roles = {role: paths for role, paths in paired[key].items() if paths}
        split, no_split = split_of(entry, image.places)
        if second is not None and "pair" not in roles:
            reason = f"no file matches {finders['pair'].expected(image.places)}"
            yield Rejection(entry.name, key, "source", reason)
        elif marked and not roles.keys() - {"pair"}:
            reason = f"image without a mask; looked for {', '.join(marked)}"
            yield Rejection(entry.name, key, "source", reason)
        elif no_split is not None:
            yield Rejection(entry.name, key, "source", no_split)
        else:
            # Slices of one volume are of one patient, even where nobody says which.
            patient = patient_of(entry, key, image.places) or f"{entry.patient_cohort}/{key}"
            yield Unit(key, {"image": files, **roles}, patient, split)
    known = used.union(*(image.files for image in images.values()))
    for role, finder in finders.items():
        reason = "second image without a first" if role == "pair" else "mask without an image"
        for path in sorted(set(finder.paths) - known):
            known.add(path)
            yield Rejection(entry.name, path, "source", reason)


class VolumeSource:
    """One unit is one volume; its cases are slices, chosen by the area of what is marked in them."""

    def __init__(self, entry: Entry, root: Path) -> None:
        assert isinstance(entry.layout, VolumeLayout)  # noqa: S101 (the caller chose by layout.kind)
        self.entry = entry
        self.root = root
        self.layout = entry.layout

    def scan(self) -> Iterator[Unit | Rejection]:
        listing = Listing(self.root)
        images = {path: Found((path,), places) for path, places in listing.matches(self.layout.images)}
        yield from pair(self.entry, listing, images, self.layout.masks, self.layout.pair)
        yield from listing.odd(self.entry.name)

    def load(self, unit: Unit) -> Iterator[Case | Rejection]:
        listing = Listing(self.root)
        volume = read_volume(listing.inside(unit.files["image"][0]), channel=self.layout.channel)
        regions = marked_regions(
            self.entry,
            unit,
            lambda path, targets: label_regions(listing.inside(path), volume, targets, self.entry),
        )
        second = read_volume(listing.inside(unit.files["pair"][0])) if "pair" in unit.files else None
        yield from cases(self.entry, unit, volume, regions, second)


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

    def scan(self) -> Iterator[Unit | Rejection]:
        listing = Listing(self.root)
        series: dict[str, Found] = {}
        for path, places in listing.matches(self.layout.series):
            shared = {name: text for name, text in places.items() if name != "instance"}
            key = "/".join(shared.values()) or fixed_folder(self.layout.series) or "series"
            before = series[key].files if key in series else ()
            series[key] = Found((*before, path), shared)
        yield from pair(self.entry, listing, series, self.layout.masks, self.layout.pair)
        yield from listing.odd(self.entry.name)

    def load(self, unit: Unit) -> Iterator[Case | Rejection]:
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
