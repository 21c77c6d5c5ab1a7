"""The samples of a dataset that a kind of work can be about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from mie.review.material import Material, Place
from mie.store.schema import canonical


@dataclass(frozen=True, slots=True)
class Candidate:
    sample_id: str
    sha256: str
    strata: str
    places: tuple[Place, ...]
    turns: tuple[str, ...]  # sample ids; itself where there is one turn
    painted: bool = True  # a perception sample
    several: bool = False  # classes in its mask


def candidates(
    material: Material, kind: str, stratify: Sequence[str], regions: Container[str] | None
) -> Iterable[Candidate]:
    texts: dict[str, str] = {}  # one string per stratum, not one per sample
    dialogues: dict[tuple[str, str], list[tuple[int, Candidate]]] = defaultdict(list)
    for entry in material.entries():
        row = entry.fields
        strata = canonical({name: row[name] for name in stratify})
        strata = texts.setdefault(strata, strata)
        painted, several = row["perspective"] == "perception", "," in (row["colour"] or "")
        one = Candidate(
            row["id"], row["sha256"], strata, (entry.place,), (row["id"],), painted=painted, several=several
        )
        if kind == "questions":
            if row["group"] is not None and row["turn"] is not None:
                dialogues[row["source"], row["group"]].append((row["turn"], one))
        elif kind != "mask" or painted or (regions is not None and one.sample_id in regions):
            yield one
    for turns in dialogues.values():
        if len(turns) > 1:
            ordered = [one for _, one in sorted(turns, key=lambda t: t[0])]
            yield replace(
                ordered[0],
                sha256="\n".join(one.sha256 for one in ordered),
                places=tuple(one.places[0] for one in ordered),
                turns=tuple(one.sample_id for one in ordered),
            )
