"""NIfTI, NRRD and MetaImage volumes with label maps, or with one mask volume for each target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mie.images.volume import read_volume
from mie.records import Case, Refusal, Unit
from mie.sources._labels import label_regions, marked_regions
from mie.sources._slices import cases
from mie.sources._volume_units import Found, pair
from mie.sources.catalog import Entry, VolumeLayout
from mie.sources.patterns import Listing


class VolumeSource:
    """One unit is one volume; its cases are slices, chosen by the area of what is marked in them."""

    def __init__(self, entry: Entry, root: Path) -> None:
        assert isinstance(entry.layout, VolumeLayout)  # noqa: S101 (the caller chose by layout.kind)
        self.entry = entry
        self.root = root
        self.layout = entry.layout

    def scan(self) -> Iterator[Unit | Refusal]:
        listing = Listing(self.root)
        images = {path: Found((path,), places) for path, places in listing.matches(self.layout.images)}
        yield from pair(self.entry, listing, images, self.layout.masks, self.layout.pair)

    def load(self, unit: Unit) -> Iterator[Case | Refusal]:
        listing = Listing(self.root)
        volume = read_volume(listing.inside(unit.files["image"][0]))
        regions = marked_regions(
            self.entry,
            unit,
            lambda path, targets: label_regions(listing.inside(path), volume, targets, self.entry),
        )
        second = read_volume(listing.inside(unit.files["pair"][0])) if "pair" in unit.files else None
        yield from cases(self.entry, unit, volume, regions, second)
