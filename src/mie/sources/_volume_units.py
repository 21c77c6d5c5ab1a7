"""Pair volumes (or series) with their mask files by the layout's patterns, and say what was left over."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from mie.records import Refusal, Unit
from mie.sources import patterns
from mie.sources.catalog import Entry, TargetEntry
from mie.vocabulary import SPLITS


class Found(NamedTuple):
    """The file or files of one volume, and what the pattern captured from their names."""

    files: tuple[str, ...]
    places: Mapping[str, str]


def targets_of(entry: Entry, role: str) -> tuple[TargetEntry, ...]:
    """The targets that a unit's files of this role mark; "masks" is for those without files of their own."""
    return tuple(t for t in entry.targets if role == (f"mask:{t.name}" if t.masks is not None else "masks"))


def pair(
    entry: Entry, listing: patterns.Listing, images: Mapping[str, Found], masks: str | None
) -> Iterator[Unit | Refusal]:
    """Units by key; then refusals for mask files that no image asked for.

    A file that some image uses as its mask is not an image, even where the image pattern fits it too
    (`{id}.nii.gz` beside `{id}_seg.nii.gz`).
    """
    wanted = {f"mask:{t.name}": t.masks for t in entry.targets if t.masks is not None}
    if masks is not None and targets_of(entry, "masks"):
        wanted["masks"] = masks
    places = next(iter(images.values())).places if images else {}
    finders = {role: _MaskFinder(listing, pattern, places) for role, pattern in wanted.items()}
    paired = {
        key: {role: finder.of(image) for role, finder in finders.items()} for key, image in images.items()
    }
    used = {path for roles in paired.values() for paths in roles.values() for path in paths}
    for key, image in sorted(images.items()):
        files = tuple(path for path in image.files if path not in used)
        if not files:
            continue
        roles = {role: paths for role, paths in paired[key].items() if paths}
        split = _split(entry, image.places)
        if wanted and not roles:
            reason = f"image without a mask; looked for {', '.join(sorted(set(wanted.values())))}"
            yield Refusal(entry.name, key, "source", reason)
        elif split is not None and split not in SPLITS:
            reason = f"unknown split {split!r}; map it to train, val or test under `splits`"
            yield Refusal(entry.name, key, "source", reason)
        else:
            yield Unit(key, {"image": files, **roles}, _patient(entry, key, image.places), split)
    known = used.union(*(image.files for image in images.values()))
    for path in sorted({path for finder in finders.values() for path in finder.paths} - known):
        yield Refusal(entry.name, path, "source", "mask without an image")


class _MaskFinder:
    """The files of one mask pattern, found by what the image pattern captured."""

    def __init__(self, listing: patterns.Listing, pattern: str, image_places: Iterable[str]) -> None:
        self._pattern = pattern
        self._shared = sorted(set(patterns.places(pattern)) & set(image_places))
        self._by_places: dict[tuple[str, ...], list[str]] = defaultdict(list)
        self.paths = []
        for path, found in listing.matches(pattern):
            self.paths.append(path)
            self._by_places[tuple(found[place] for place in self._shared)].append(path)

    def of(self, image: Found) -> tuple[str, ...]:
        paths = self._by_places.get(tuple(image.places[place] for place in self._shared), [])
        if not paths:
            # Left alone, "{id}_{part}" cuts "a_b_liver" at the first "_"; told that id is "a_b", it does not.
            known = tuple((place, image.places[place]) for place in self._shared)
            expression = patterns.compiled(self._pattern, known)
            paths = [path for path in self.paths if expression.fullmatch(path)]
        # A volume is not its own mask ("{id}*.nii.gz"); a series may have its DICOM-SEG among its files.
        return tuple(path for path in paths if image.files != (path,))


def _split(entry: Entry, places: Mapping[str, str]) -> str | None:
    written = places.get("split")
    return entry.split if written is None else entry.splits.get(written, written)


def _patient(entry: Entry, key: str, places: Mapping[str, str]) -> str | None:
    """`cohort/patient`, so that one patient in two data sets of a cohort has one name; None where unknown."""
    patient = places.get("patient")
    if patient is None and entry.patient is not None:
        # "case_01.nii.gz" has the stem "case_01", not "case_01.nii".
        stem = PurePosixPath(re.sub(r"\.gz$", "", key, flags=re.IGNORECASE)).stem
        match = re.search(entry.patient, stem)
        patient = match[1] if match else None
    return None if patient is None else f"{entry.patient_cohort}/{patient}"
