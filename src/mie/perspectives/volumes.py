"""Slices of volumes: which volume a case was cut from, and which slices are neighbours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from mie.records import Case

Item = TypeVar("Item")


def slice_place(case: Case) -> tuple[str, int] | None:
    """(plane, index) of a slice of a volume; None for a picture."""
    cuts = [step for step in case.steps if step["step"] == "slice"]
    return (str(cuts[-1]["plane"]), int(cuts[-1]["index"])) if cuts else None


def volume_of(case: Case) -> tuple[str, str] | None:
    """The volume that a slice was cut from, (data set, volume); None for a picture."""
    return None if slice_place(case) is None else (case.source, case.case_id.rpartition("#")[0])


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
