"""Slices of volumes: which volume a case was cut from, which slices are neighbours, and whole volumes.

A whole volume is stored as one sample for each slice, in order. What belongs together says so in
`params["volume"]`: the same `id`, how many `slices` it has, which one this is (`index`, from 0), how many
pixels of it are `marked`, the `spacing` (slice, row, column) in mm, and the `affine` that takes (column, row,
index, 1) of the stored pixels to RAS+ mm. So each slice is a triplet like any other, and a volume can be put
together from its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mie.core.hashing import stable_hash
from mie.records import Case, Sample

Item = TypeVar("Item")


def _cut(case: Case) -> Mapping[str, Any] | None:
    cuts = [step for step in case.steps if step["step"] == "slice"]
    return cuts[-1] if cuts else None


def slice_place(case: Case) -> tuple[str, int] | None:
    """(plane, index) of a slice of a volume; None for a picture."""
    cut = _cut(case)
    return None if cut is None else (str(cut["plane"]), int(cut["index"]))


def plane_of(case: Case) -> str:
    """The plane of a slice; "" for a picture."""
    place = slice_place(case)
    return "" if place is None else place[0]


def volume_of(case: Case) -> tuple[str, str] | None:
    """The volume that a slice was cut from, (data set, volume); None for a picture."""
    return None if slice_place(case) is None else (case.source, case.case_id.rpartition("#")[0])


def is_whole(case: Case) -> bool:
    """Whether all slices of the case's volume are there: a data set with `slices: all`."""
    cut = _cut(case)
    return cut is not None and "affine" in cut


def volume_id(sample: Sample) -> str | None:
    """The whole volume that a sample is a slice of; None for any other sample."""
    found = sample.params.get("volume")
    return str(found["id"]) if isinstance(found, Mapping) and "id" in found else None


def consecutive(items: Iterable[Item], about: Callable[[Item], tuple[Case, Hashable]]) -> list[list[Item]]:
    """Runs of neighbouring slices that show the same; a picture is a run of its own.

    `about` gives an item's case and what it shows. Slices come in any order of planes, each in the order of
    its index.
    """
    runs: list[list[Item]] = []
    open_runs: dict[Hashable, tuple[int, list[Item]]] = {}
    for item in items:
        case, shows = about(item)
        place = slice_place(case)
        if place is None:
            runs.append([item])
            continue
        plane, index = place
        key = (volume_of(case), plane, shows, case.image.shape)
        before = open_runs.get(key)
        if before is not None and index == before[0] + 1:
            run = before[1]
            run.append(item)
        else:
            run = [item]
            runs.append(run)
        open_runs[key] = (index, run)
    return runs


def stacked(samples: Sequence[Sample], cases: Sequence[Case]) -> list[Sample]:
    """The samples of neighbouring slices, in order, as one whole volume; `cases` are theirs."""
    identity = f"{stable_hash('volume', *(sample.id for sample in samples)):016x}"
    first = _cut(cases[0])
    assert first is not None  # noqa: S101 (whole volumes are cut into slices)
    affine = stored_affine(cases[0], (samples[0].input.shape[0], samples[0].input.shape[1]))
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    column, row, step = (round(float(mm), 6) for mm in spacing)
    facts = {
        "id": identity,
        "plane": first["plane"],
        "slices": len(samples),
        "spacing": [step, row, column],
        "affine": [[round(float(v), 6) for v in line] for line in affine],
    }
    return [
        replace(sample, params={**sample.params, "volume": {**facts, "index": at, "marked": _marked(sample)}})
        for at, sample in enumerate(samples)
    ]


def _marked(sample: Sample) -> int:
    """Pixels of the region."""
    return 0 if sample.mask is None else int(np.count_nonzero(sample.mask))


def stored_affine(case: Case, size: tuple[int, int]) -> NDArray[np.float64]:
    """(column, row, slices from this one, 1) of the case's image, scaled to `size`, to RAS+ millimetres."""
    from mie.images.volumes import scaling  # imports nibabel, which most builds do without

    cut = _cut(case)
    assert cut is not None  # noqa: S101 (see above)
    affine = np.array(cut["affine"], np.float64)
    height, width = case.image.shape[:2]
    return affine @ scaling(width / size[1], height / size[0])
