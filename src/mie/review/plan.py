"""From a dataset and runs to the items of a task. Made once; later calls only add what a new run brings."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select

from mie.core.hashing import generator, stable_hash
from mie.core.registry import nearest_name
from mie.errors import ConfigError, MieError
from mie.review.assignments import Settings, raters_of
from mie.review.database import Database, items, meta, runs, tasks
from mie.review.kinds import KINDS
from mie.review.material import Candidate, Material, candidates
from mie.review.proposals import Regions, beside, keep
from mie.scoring.statistics.quality import draw

ANCHORS: Final = 1  # earlier runs beside a new one: with two, people would compare these again
MOST_OUTPUTS: Final = 26  # labels are letters
_CHUNK: Final = 5000


def prepare(
    database: Database,
    material: Material,
    kinds: Iterable[str],
    asked: Mapping[str, Any],
    regions: Regions | None = None,
) -> dict[str, int]:
    """Make the items of each kind, or add those of a new run; kind -> number of items.

    `asked` are the settings that were given; what is not given is as it was, or the default. `regions` are
    what models proposed for the mask work; they are copied into the database.
    """
    counts = {}
    kinds = list(kinds)
    if regions is not None and "mask" not in kinds:
        raise ConfigError("region proposals are for masks", expected="--kind mask", found=", ".join(kinds))
    with database.write() as connection:
        _own(connection, material)
        run_ids = _number_runs(connection, material)
        for kind in kinds:
            of_kind = {"proposals": regions.digest} if regions is not None and kind == "mask" else {}
            task_id, settings = _task(connection, kind, {**asked, **of_kind})
            if not _is_there(connection, task_id) or kind in ("rank", "questions"):
                made = list(_make(connection, material, kind, task_id, settings, run_ids, regions))
                for start in range(0, len(made), _CHUNK):
                    connection.execute(insert(items), made[start : start + _CHUNK])
                if regions is not None and kind == "mask":
                    keep(connection, material, task_id, regions)
            of_task = items.c.task_id == task_id
            counts[kind] = int(connection.scalar(select(func.count()).where(of_task)) or 0)
            if not counts[kind]:
                raise ConfigError(
                    f"nothing to do for {kind!r}", where=material.dataset.folder, **_WANTS[kind]
                )
    return counts


_WANTS: Final[dict[str, dict[str, Any]]] = {
    "inspect": {"expected": "at least one sample"},
    "mask": {"expected": "perception samples, which can be painted anew"},
    "rank": {"expected": "samples with outputs of two runs or more", "fix": "give two run folders or more"},
    "questions": {
        "expected": "samples in groups of several turns, and a run whose edits of them all worked",
        "fix": "give a run folder on a dataset with several turns",
    },
}


def _own(connection: Connection, material: Material) -> None:
    """A review database belongs to one dataset."""
    digest = connection.scalar(select(meta.c.value).where(meta.c.key == "dataset"))
    if digest is None:
        connection.execute(insert(meta), {"key": "dataset", "value": material.dataset.digest})
    elif digest != material.dataset.digest:
        raise MieError(
            "this review is of another dataset",
            where=material.dataset.folder,
            expected=f"digest {digest[:16]}",
            found=f"digest {material.dataset.digest[:16]}",
            fix="choose another database with --db",
        )


def _number_runs(connection: Connection, material: Material) -> dict[str, int]:
    known = {row.name: row for row in connection.execute(select(runs))}
    numbers = {}
    for name in material.runs:
        print_ = material.fingerprint(name)
        if name in known and known[name].fingerprint != print_:
            raise MieError(
                "another run had this name when the review began",
                where=material.runs[name].folder,
                fix="rename the folder: it then counts as a new run",
            )
        if name not in known:
            connection.execute(insert(runs), {"name": name, "fingerprint": print_})
        numbers[name] = int(connection.scalar(select(runs.c.id).where(runs.c.name == name)) or 0)
    return numbers


def _task(connection: Connection, kind: str, asked: Mapping[str, Any]) -> tuple[int, Settings]:
    if kind not in KINDS:
        near = nearest_name(kind, KINDS)
        raise ConfigError(
            f"no kind of work named {kind!r}",
            expected=", ".join(KINDS),
            fix=f"did you mean {near!r}?" if near else None,
        )
    settings = replace(Settings(), **asked)  # refused here if it makes no sense at all
    row = connection.execute(select(tasks).where(tasks.c.kind == kind)).one_or_none()
    if row is None:
        body = {"kind": kind, "settings": asdict(settings)}
        return int(connection.execute(insert(tasks), body).inserted_primary_key[0]), settings  # type: ignore[index]
    settings = Settings(**{**row.settings, "stratify": tuple(row.settings["stratify"])})
    other = {name: value for name, value in asked.items() if getattr(settings, name) != value}
    if other:
        raise ConfigError(
            f"the review of kind {kind!r} was begun with other settings",
            expected=", ".join(f"{name} {getattr(settings, name)}" for name in other),
            found=", ".join(f"{name} {value}" for name, value in other.items()),
            fix="leave the option out, or begin another review with --db",
        )
    return int(row.id), settings


def _is_there(connection: Connection, task_id: int) -> bool:
    return connection.scalar(select(items.c.id).where(items.c.task_id == task_id).limit(1)) is not None


def _make(
    connection: Connection,
    material: Material,
    kind: str,
    task_id: int,
    settings: Settings,
    run_ids: Mapping[str, int],
    regions: Regions | None,
) -> Iterable[dict[str, Any]]:
    found = {c.sample_id: c for c in candidates(material, kind, settings.stratify, regions)}
    chosen = draw(list(found), {i: c.strata for i, c in found.items()}, settings.sample, settings.seed)
    of_task = items.c.task_id == task_id
    start = int(
        connection.scalar(select(func.coalesce(func.max(items.c.position) + 1, 0)).where(of_task)) or 0
    )
    drawn = [found[i] for i in chosen]
    if kind in ("inspect", "mask"):
        shown = beside(material, drawn, regions if kind == "mask" else None)
    else:
        shown = _shown(connection, kind, task_id, drawn, material, run_ids, settings.seed)
    for at, (candidate, outputs) in enumerate(shown, start=start):
        wanted = raters_of(candidate.sample_id, settings.raters, settings.overlap, settings.seed)
        content = [candidate.sha256, *(sha for _, _, sha in outputs)]
        yield {
            "task_id": task_id,
            "sample_id": candidate.sample_id,
            "variant": ""
            if kind == "mask"
            else ",".join(str(r) for r in sorted({run for run, _, _ in outputs})),
            "version": hashlib.sha256("\n".join(content).encode()).hexdigest()[:32],
            "position": at,
            "wanted": wanted,
            "open": wanted,
            "answered": 0,
            "strata": candidate.strata,
            "places": candidate.places,
            "outputs": outputs,
        }


def _shown(
    connection: Connection,
    kind: str,
    task_id: int,
    chosen: Sequence[Candidate],
    material: Material,
    run_ids: Mapping[str, int],
    seed: int,
) -> Iterable[tuple[Candidate, list[tuple[int, str, str]]]]:
    """Each item's sample and the outputs [(run, sample, sha256), ...] that stand beside it."""
    there = {run_ids[name]: material.outputs(name) for name in material.runs}
    covered: dict[str, set[int]] = defaultdict(set)
    for sample_id, variant in connection.execute(
        select(items.c.sample_id, items.c.variant).where(items.c.task_id == task_id)
    ):
        covered[sample_id] |= {int(number) for number in variant.split(",")}
    if missing := {number for known in covered.values() for number in known} - set(there):
        names = connection.scalars(select(runs.c.name).where(runs.c.id.in_(missing)))
        raise ConfigError(
            "runs of this review are not there",
            expected=", ".join(sorted(names)),
            fix="give their folders too",
        )
    for candidate in chosen:
        able = [run for run, outputs in there.items() if all(turn in outputs for turn in candidate.turns)]
        old = covered[candidate.sample_id]
        new = [run for run in able if run not in old]
        if kind == "questions":
            for run in new:
                yield candidate, [(run, turn, there[run][turn]) for turn in candidate.turns]
        elif new and len(able) > 1:
            anchors = sorted(
                old & set(able), key=lambda run: stable_hash("anchor", seed, candidate.sample_id, run)
            )
            side = sorted([*new, *anchors[:ANCHORS]])[:MOST_OUTPUTS]
            if len(side) > 1:
                yield candidate, [(run, candidate.sample_id, there[run][candidate.sample_id]) for run in side]


def order_of(outputs: Sequence[Sequence[Any]], seed: int) -> list[int]:
    """Run ids in the order in which they are labelled A, B, C, ..."""
    numbers = [int(run) for run, _, _ in outputs]
    return [numbers[at] for at in generator(seed).permutation(len(numbers))]


def strata_of(text: str) -> dict[str, Any]:
    return dict(json.loads(text))
