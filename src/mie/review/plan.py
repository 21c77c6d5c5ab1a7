"""From a dataset and runs to the items of a task. Items are created once; a run added later adds its own."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, func, insert, select

from mie.core.hashing import canonical, stable_hash
from mie.core.registry import unknown_name
from mie.errors import ConfigError, MieError
from mie.images.png import png_size
from mie.review.api import KINDS
from mie.review.database import Database, items, masks, meta, runs, tasks
from mie.review.masks import RegionProposals
from mie.review.material import INDEXED, Material, Place
from mie.review.question_material import QuestionMaterial
from mie.scoring.statistics.sheet import draw

ANCHORS: Final = 1  # earlier runs beside a new one; with two, people would compare those two again
MAX_OUTPUTS: Final = 26  # labels are letters
_INSERT_ROWS: Final = 5000
_STRATA: Final = tuple(name for name in INDEXED if name not in ("id", "sha256", "group", "turn", "colour"))
_REQUIREMENTS: Final[dict[str, dict[str, Any]]] = {
    "inspect": {"expected": "at least one sample"},
    "grade": {"expected": "at least one sample"},
    "mask": {"expected": "samples with a painted region, which can be painted again"},
    "rank": {"expected": "samples with outputs of at least two runs", "fix": "give at least two run folders"},
    "question": {"expected": "questions that a language model wrote and nobody has checked"},
    "answer": {"expected": "questions that count"},
    "questions": {
        "expected": "samples in groups of several turns, and a run that edited all turns of a group",
        "fix": "give a run folder on a dataset with several turns",
    },
}
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "grade": {"raters": 2, "overlap": 0.5}
}  # a second review of half


@dataclass(frozen=True, slots=True)
class Settings:
    """How a task is distributed; fixed once its items exist."""

    raters: int = 1
    overlap: float = 1.0  # share of the items that `raters` people see; one person sees the others
    sample: int | None = None
    stratify: tuple[str, ...] = ()
    seed: int = 0
    proposals: str | None = None  # for masks: a digest of the proposed regions

    def __post_init__(self) -> None:
        for name in self.stratify:
            if name not in _STRATA:
                raise unknown_name("stratum", name, _STRATA)
        if self.raters < 1 or not 0 <= self.overlap <= 1 or (self.sample is not None and self.sample < 1):
            raise ConfigError(
                "the numbers of the review are out of range",
                expected="raters and sample of at least 1, overlap from 0 to 1",
                found=f"raters {self.raters}, overlap {self.overlap}, sample {self.sample}",
            )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sample, or a dialogue of several, that a task can be about."""

    sample_id: str
    sha256: str
    strata: str
    places: tuple[Place, ...]
    turns: tuple[str, ...]  # sample ids; its own if there is one turn
    colours: int  # regions painted on its target image; 0 if its mask is not painted


def create_items(
    database: Database,
    material: Material | QuestionMaterial,
    kinds: Iterable[str],
    requested: Mapping[str, Any],
    regions: RegionProposals | None = None,
) -> dict[str, int]:
    """Create the items of each kind, or add those of a new run; return kind -> number of items.

    `requested` are the settings that were given; others keep their stored value or default. `regions` are
    proposals for the masks; they are copied into the database.
    """
    counts = {}
    kinds = list(kinds)
    for kind in kinds:
        if kind in KINDS and kind not in material.kinds:
            raise ConfigError(
                f"the kind {kind!r} is not for this folder",
                where=material.dataset.folder,
                expected=", ".join(material.kinds),
                found="a question set" if kind not in ("question", "answer") else "a dataset",
            )
    if regions is not None and "mask" not in kinds:
        raise ConfigError("region proposals are for masks", expected="--kind mask", found=", ".join(kinds))
    with database.write() as connection:
        _check_dataset(connection, material)
        run_ids = _register_runs(connection, material)
        for kind in kinds:
            extra = {"proposals": regions.digest} if regions is not None and kind == "mask" else {}
            task_id, settings = _find_or_create_task(connection, kind, {**requested, **extra})
            if not _has_items(connection, task_id) or kind in ("rank", "questions"):
                rows = list(_item_rows(connection, material, kind, task_id, settings, run_ids, regions))
                for start in range(0, len(rows), _INSERT_ROWS):
                    connection.execute(insert(items), rows[start : start + _INSERT_ROWS])
                if regions is not None and kind == "mask" and isinstance(material, Material):
                    _copy_regions(connection, material, task_id, regions)
            of_task = items.c.task_id == task_id
            counts[kind] = int(connection.scalar(select(func.count()).where(of_task)) or 0)
            if not counts[kind]:
                raise ConfigError(
                    f"the dataset has nothing for the kind {kind!r}",
                    where=material.dataset.folder,
                    **_REQUIREMENTS[kind],
                )
    return counts


def _check_dataset(connection: Connection, material: Material | QuestionMaterial) -> None:
    """A review database belongs to one dataset."""
    digest = connection.scalar(select(meta.c.value).where(meta.c.key == "dataset"))
    if digest is None:
        connection.execute(insert(meta), {"key": "dataset", "value": material.dataset.digest})
    elif digest != material.dataset.digest:
        raise MieError(
            "this review belongs to another dataset",
            where=material.dataset.folder,
            expected=f"digest {digest[:16]}",
            found=f"digest {material.dataset.digest[:16]}",
            fix="choose another database with --db",
        )


def _register_runs(connection: Connection, material: Material | QuestionMaterial) -> dict[str, int]:
    """Return run name -> id."""
    if not isinstance(material, Material):
        return {}
    known = {row.name: row for row in connection.execute(select(runs))}
    numbers = {}
    for name in material.runs:
        fingerprint = material.fingerprint(name)
        if name in known and known[name].fingerprint != fingerprint:
            raise MieError(
                "another run had this name when the review started",
                where=material.runs[name].folder,
                fix="rename the folder, so that it counts as a new run",
            )
        if name not in known:
            connection.execute(insert(runs), {"name": name, "fingerprint": fingerprint})
        numbers[name] = int(connection.scalar(select(runs.c.id).where(runs.c.name == name)) or 0)
    return numbers


def _find_or_create_task(
    connection: Connection, kind: str, requested: Mapping[str, Any]
) -> tuple[int, Settings]:
    if kind not in KINDS:
        raise unknown_name("kind of work", kind, KINDS)
    settings = replace(Settings(), **{**_DEFAULTS.get(kind, {}), **requested})  # validates them
    row = connection.execute(select(tasks).where(tasks.c.kind == kind)).one_or_none()
    if row is None:
        task = connection.execute(insert(tasks), {"kind": kind, "settings": asdict(settings)})
        return int(task.inserted_primary_key[0]), settings  # type: ignore[index]
    settings = Settings(**{**row.settings, "stratify": tuple(row.settings["stratify"])})
    other = {name: value for name, value in requested.items() if getattr(settings, name) != value}
    if other:
        raise ConfigError(
            f"the review of kind {kind!r} was started with other settings",
            expected=", ".join(f"{name} {getattr(settings, name)}" for name in other),
            found=", ".join(f"{name} {value}" for name, value in other.items()),
            fix="leave the option out, or start another review with --db",
        )
    return int(row.id), settings


def _has_items(connection: Connection, task_id: int) -> bool:
    return connection.scalar(select(items.c.id).where(items.c.task_id == task_id).limit(1)) is not None


def _item_rows(
    connection: Connection,
    material: Material | QuestionMaterial,
    kind: str,
    task_id: int,
    settings: Settings,
    run_ids: Mapping[str, int],
    regions: RegionProposals | None,
) -> Iterable[dict[str, Any]]:
    by_id = {c.sample_id: c for c in _candidates(material, kind, settings.stratify, regions)}
    drawn = draw(list(by_id), {i: c.strata for i, c in by_id.items()}, settings.sample, settings.seed)
    of_task = items.c.task_id == task_id
    start = int(
        connection.scalar(select(func.coalesce(func.max(items.c.position) + 1, 0)).where(of_task)) or 0
    )
    chosen = [by_id[i] for i in drawn]
    pairs: Iterable[tuple[Candidate, list[tuple[Any, str, str]]]]
    if not isinstance(material, Material):
        pairs = ((candidate, []) for candidate in chosen)
    elif kind in ("inspect", "mask", "grade"):
        pairs = _with_regions(material, chosen, regions if kind == "mask" else None)
    else:
        pairs = _with_outputs(connection, kind, task_id, chosen, material, run_ids, settings.seed)
    for at, (candidate, outputs) in enumerate(pairs, start=start):
        wanted = raters_per_item(candidate.sample_id, settings.raters, settings.overlap, settings.seed)
        content = [candidate.sha256, *(sha for _, _, sha in outputs)]
        shown_runs = [] if kind == "mask" else sorted({run for run, _, _ in outputs})
        yield {
            "task_id": task_id,
            "sample_id": candidate.sample_id,
            "variant": ",".join(map(str, shown_runs)),
            "version": hashlib.sha256("\n".join(content).encode()).hexdigest()[:32],
            "position": at,
            "wanted": wanted,
            "open": wanted,
            "answered": 0,
            "strata": candidate.strata,
            "places": candidate.places,
            "outputs": outputs,
        }


def raters_per_item(sample_id: str, raters: int, overlap: float, seed: int) -> int:
    """Return `raters` for a share `overlap` of the samples, 1 for the others."""
    return raters if stable_hash("overlap", seed, sample_id) < overlap * 2**64 else 1


def _candidates(
    material: Material | QuestionMaterial, kind: str, stratify: Sequence[str], regions: Container[str] | None
) -> Iterable[Candidate]:
    interned: dict[str, str] = {}  # one string per stratum, not one per sample
    # A whole volume is looked at once: the item is the slice with most of its region.
    volumes = material.volumes if kind in ("inspect", "rank") else {}
    digests = (
        {entry.fields["id"]: entry.fields["sha256"] for entry in material.entries(kind)} if volumes else {}
    )
    dialogues: dict[tuple[str, str], list[tuple[int, Candidate]]] = defaultdict(list)
    for entry in material.entries(kind):
        row = entry.fields
        strata = canonical({name: row[name] for name in stratify})
        strata = interned.setdefault(strata, strata)
        if kind in ("question", "answer"):
            yield Candidate(row["id"], row["sha256"], strata, (entry.place,), (row["id"],), 0)
            continue
        colours = len(row["colour"].split(",")) if row["colour"] else 0
        stack = volumes.get(entry.place)
        if stack is not None:
            if entry.place != stack.first:
                continue
            row = {**row, "sha256": "\n".join(digests[sample] for _, sample in stack.slices)}
        candidate = Candidate(row["id"], row["sha256"], strata, (entry.place,), (row["id"],), colours)
        if kind == "questions":
            if row["group"] is not None and row["turn"] is not None:
                dialogues[row["source"], row["group"]].append((row["turn"], candidate))
        elif kind != "mask" or colours or (regions is not None and candidate.sample_id in regions):
            yield candidate
    for turns in dialogues.values():
        if len(turns) > 1:
            ordered = [candidate for _, candidate in sorted(turns, key=lambda t: t[0])]
            yield replace(
                ordered[0],
                sha256="\n".join(one.sha256 for one in ordered),
                places=tuple(one.places[0] for one in ordered),
                turns=tuple(one.sample_id for one in ordered),
            )


def _with_regions(
    material: Material, chosen: Sequence[Candidate], regions: RegionProposals | None
) -> Iterable[tuple[Candidate, list[tuple[Any, str, str]]]]:
    """Yield each sample and, for masks, its proposed regions [(name, sample, sha256), ...].

    A region has one class, so samples with several keep the proposals derived from their own mask.
    """
    for candidate in chosen:
        shown: list[tuple[Any, str, str]] = []
        if regions is not None and candidate.colours <= 1:
            pngs = _load_regions(material, candidate.sample_id, candidate.places[0], regions)
            shown = [
                (name, candidate.sample_id, hashlib.sha256(png).hexdigest()) for name, png in pngs.items()
            ]
        if shown or candidate.colours or regions is None:
            yield candidate, shown


def _load_regions(
    material: Material, sample_id: str, place: Sequence[Any], regions: RegionProposals
) -> dict[str, bytes]:
    return regions.load(sample_id, png_size(material.row(place, ["input"])["input"]["bytes"]))


def _copy_regions(connection: Connection, material: Material, task_id: int, regions: RegionProposals) -> None:
    """Copy the regions of the items into the database, beside the masks that people repair."""
    of_task = select(items.c.id, items.c.sample_id, items.c.places, items.c.outputs)
    for row in connection.execute(of_task.where(items.c.task_id == task_id)).all():
        if row.outputs:
            pngs = _load_regions(material, row.sample_id, row.places[0], regions)
            bodies = [
                {"sha256": sha256, "item_id": row.id, "png": pngs[name], "at": time.time()}
                for name, _, sha256 in row.outputs
            ]
            connection.execute(insert(masks), bodies)


def _with_outputs(
    connection: Connection,
    kind: str,
    task_id: int,
    chosen: Sequence[Candidate],
    material: Material,
    run_ids: Mapping[str, int],
    seed: int,
) -> Iterable[tuple[Candidate, list[tuple[int, str, str]]]]:
    """Yield each item's sample and the outputs [(run, sample, sha256), ...] that it shows."""
    outputs = {run_ids[name]: material.outputs(name) for name in material.runs}
    covered: dict[str, set[int]] = defaultdict(set)
    for sample_id, variant in connection.execute(
        select(items.c.sample_id, items.c.variant).where(items.c.task_id == task_id)
    ):
        covered[sample_id] |= {int(number) for number in variant.split(",")}
    if missing := {number for known in covered.values() for number in known} - set(outputs):
        names = connection.scalars(select(runs.c.name).where(runs.c.id.in_(missing)))
        raise ConfigError(
            "runs of this review are missing",
            expected=", ".join(sorted(names)),
            fix="give their folders too",
        )
    for candidate in chosen:
        complete = [run for run, done in outputs.items() if all(turn in done for turn in candidate.turns)]
        old = covered[candidate.sample_id]
        new = [run for run in complete if run not in old]
        if kind == "questions":
            for run in new:
                yield candidate, [(run, turn, outputs[run][turn]) for turn in candidate.turns]
        elif new and len(complete) > 1:
            anchors = sorted(
                old & set(complete), key=lambda run: stable_hash("anchor", seed, candidate.sample_id, run)
            )
            compared = sorted([*new, *anchors[:ANCHORS]])[:MAX_OUTPUTS]
            if len(compared) > 1:
                sample_id = candidate.sample_id
                yield candidate, [(run, sample_id, outputs[run][sample_id]) for run in compared]
