"""Volumes (or series) with their mask files and second volumes, by pattern, and what was left over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mie.records import Refusal, Unit
from mie.sources import patterns
from mie.sources.catalog import Entry
from mie.sources.subjects import patient_of, split_of


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
) -> Iterator[Unit | Refusal]:
    """Units by key; then refusals for mask files, and second volumes, that no image asked for.

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
            yield Refusal(entry.name, key, "source", reason)
        elif marked and not roles.keys() - {"pair"}:
            reason = f"image without a mask; looked for {', '.join(marked)}"
            yield Refusal(entry.name, key, "source", reason)
        elif no_split is not None:
            yield Refusal(entry.name, key, "source", no_split)
        else:
            # Slices of one volume are of one patient, even where nobody says which.
            patient = patient_of(entry, key, image.places) or f"{entry.patient_cohort}/{key}"
            yield Unit(key, {"image": files, **roles}, patient, split)
    known = used.union(*(image.files for image in images.values()))
    for role, finder in finders.items():
        reason = "second image without a first" if role == "pair" else "mask without an image"
        for path in sorted(set(finder.paths) - known):
            known.add(path)
            yield Refusal(entry.name, path, "source", reason)
