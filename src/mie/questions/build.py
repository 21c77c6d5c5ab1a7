"""`mie vqa build`: make a question set, or resume one that was interrupted.

Units are listed in blocks of a few neighbours of one data set, and the blocks are mixed: a part then holds
several images of each of several data sets, which questions about several images need. When all parts are
there, images are compared across parts, candidates are curated, and `questions.json` is written last.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.core.documents import plural
from mie.core.files import folder_lock
from mie.core.hashing import canonical, stable_hash
from mie.datasets.build import Progress
from mie.datasets.engine import Standing, run_tasks
from mie.datasets.finish import claim_parts, part_rejections
from mie.datasets.leaks import Traces, duplicates, image_leaks, patient_leaks
from mie.datasets.part import part_path
from mie.datasets.plan import Part, PlannedUnit, cut, file_facts, first_files
from mie.datasets.schema import read_rows, read_table
from mie.errors import MieError
from mie.questions.curate import Curation, curate
from mie.questions.healed import prepare
from mie.questions.part import QuestionTask, make_part, without_deadly_unit
from mie.questions.recipe import QuestionRecipe
from mie.questions.store import MARKER, QuestionSet
from mie.questions.write import clear, refuse_other_files, write_into
from mie.records import Rejection, Unit
from mie.sources.catalog import Entry, deidentification
from mie.sources.source import open_source, refuse_missing_folders

_BLOCK: Final = 8  # neighbouring units of a data set that stay together

Listener = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class QuestionPlan:
    """Every unit in a fixed order, cut into parts whatever the number of workers."""

    sources: tuple[tuple[Entry, Path], ...]
    parts: tuple[Part, ...]
    rejections: tuple[Rejection, ...]
    fingerprint: str

    @property
    def units(self) -> int:
        return sum(len(part.units) for part in self.parts)

    def listed(self) -> Iterator[tuple[Entry, Path, list[Unit]]]:
        """Every data set, where it lies, and its units."""
        for at, (entry, root) in enumerate(self.sources):
            units = [planned.unit for part in self.parts for planned in part.units if planned.source == at]
            yield entry, root, units


def build_questions(
    recipe: QuestionRecipe,
    folder: Path | str,
    *,
    workers: int | None = None,
    engine: str = "local",
    limit: int | None = None,
    overwrite: bool = False,
    isolate: bool = False,
    progress: Listener = lambda _: None,
) -> QuestionSet:
    """Build the recipe's questions in `folder`. An interrupted build resumes; a finished one stays."""
    folder = Path(folder)
    recipe = recipe if limit is None else recipe.limited(limit)
    refuse_other_files(folder)
    with folder_lock(folder):
        if overwrite:
            clear(folder)
        if (folder / MARKER).exists():
            return _finished(recipe, folder)
        plan = plan_questions(recipe, lambda name: progress(Progress("scan", note=name)))
        parts = claim_parts(folder, plan.fingerprint)
        _make_parts(plan, recipe, parts, engine, workers, isolate, progress)
        progress(Progress("finish", plan.units, plan.units))
        numbers = [part.number for part in plan.parts]
        licenses = {entry.name: entry.license.model_dump() for entry, _ in plan.sources}
        stated = {entry.name: deidentification(entry, root, units) for entry, root, units in plan.listed()}
        finish(
            folder,
            numbers,
            recipe.curate,
            seed=recipe.seed,
            rejections=plan.rejections,
            name=recipe.name,
            description=recipe.description,
            recipe=recipe.public(),
            licenses=licenses,
            deidentified=stated,
        )
    found = QuestionSet(folder)
    progress(Progress("done", plan.units, plan.units, len(found)))
    return found


def _finished(recipe: QuestionRecipe, folder: Path) -> QuestionSet:
    found = QuestionSet(folder)
    if found.info["recipe"] != recipe.public():
        raise MieError(
            "this folder holds another question set",
            where=folder,
            expected=f"a set made by this recipe ({recipe.name})",
            found=f"{found.name}, made by another recipe",
            fix="choose another folder, or give --overwrite to replace it",
        )
    return found


def plan_questions(recipe: QuestionRecipe, progress: Callable[[str], None] = lambda _: None) -> QuestionPlan:
    """List every data set. Nothing is decoded yet."""
    refuse_missing_folders((item.entry, item.root) for item in recipe.sources)
    sources: list[tuple[Entry, Path]] = []
    rejections: list[Rejection] = []
    blocks: list[tuple[int, list[PlannedUnit]]] = []
    digest = hashlib.sha256(canonical(recipe.public()).encode())
    for index, item in enumerate(recipe.sources):
        progress(item.entry.name)
        source = open_source(item.entry, item.root)
        sources.append((item.entry, source.root))
        units: list[PlannedUnit] = []
        limit = item.limit_for("")
        for found in source.scan():
            if isinstance(found, Rejection):
                rejections.append(found)
            elif limit is None or len(units) < limit:
                units.append(PlannedUnit(index, found))
                digest.update(file_facts(source.root, item.entry.name, found).encode())
        for start in range(0, len(units), _BLOCK):
            order = stable_hash("block", recipe.seed, item.entry.name, start)
            blocks.append((order, units[start : start + _BLOCK]))
    blocks.sort(key=lambda block: block[0])
    parts = cut([unit for _, block in blocks for unit in block], sources)
    if not parts:
        raise MieError(
            "no image was found",
            where=", ".join(str(root) for _, root in sources),
            expected="files that match the data sets' patterns",
            found=f"{plural(len(rejections), 'file')} that match none",
            fix="`mie sources check NAME ROOT` shows what matches and what does not",
        )
    weights = prepare(recipe.healed, {entry.name: entry.modality for entry, _ in sources})
    digest.update(canonical(weights or {}).encode())
    return QuestionPlan(tuple(sources), parts, tuple(rejections), digest.hexdigest())


def _make_parts(
    plan: QuestionPlan,
    recipe: QuestionRecipe,
    folder: Path,
    engine: str,
    workers: int | None,
    isolate: bool,
    progress: Listener,
) -> None:
    todo = [part for part in plan.parts if not part_path(folder, part.number, "index").exists()]
    tasks = [
        QuestionTask(part, {unit.source: plan.sources[unit.source] for unit in part.units}, recipe, folder)
        for part in todo
    ]
    before = plan.units - sum(len(part.units) for part in todo)
    standings: dict[int, Standing] = {}

    def show(index: int, standing: Standing) -> None:
        standings[index] = standing
        units, kept, refused = (sum(numbers) for numbers in zip(*standings.values(), strict=True))
        progress(Progress("make", before + units, plan.units, kept, refused))

    progress(Progress("make", before, plan.units))
    places = {part.number: at for at, part in enumerate(todo)}
    for result in run_tasks(
        make_part,
        tasks,
        engine=engine,
        workers=workers,
        listen=show,
        isolate=isolate,
        rescue=without_deadly_unit,
        output=folder,
        inputs=first_files(plan.parts, plan.sources),
    ):
        show(places[result.number], (result.units, result.kept, result.refused))


def finish(
    folder: Path,
    numbers: Sequence[int],
    config: Any,
    *,
    seed: int,
    rejections: Sequence[Rejection] = (),
    **texts: Any,
) -> dict[str, Any]:
    """From parts to a set: compare images, curate, write. Safe to repeat from the start."""
    parts = folder / "parts"
    lines: list[dict[str, Any]] = []
    owners: list[int] = []
    images: dict[str, dict[str, Any]] = {}
    for number in numbers:
        found = read_table(part_path(parts, number, "index")).to_pylist()
        lines += found
        owners += [number] * len(found)
        for image in read_table(part_path(parts, number, "images")).to_pylist():
            images.setdefault(image["key"], image)
    curation = curate(lines, images, leaks_of(images), config, seed)
    refused = [*rejections, *part_rejections(parts, numbers), *curation.rejections]
    rows = _rows(parts, numbers, lines, owners, curation)
    return write_into(
        (item for items in (refused, rows) for item in items), folder, funnel=curation.funnel, **texts
    )


def leaks_of(images: Mapping[str, Mapping[str, Any]]) -> dict[str, Rejection]:
    """Images that are twice there, or whose patient or look is also in a better guarded split, by key."""
    keys = list(images)
    if not keys:
        return {}
    traces = Traces(
        ids=keys,
        splits=[images[key]["split"] for key in keys],
        sources=[images[key]["source"] for key in keys],
        case_ids=[images[key]["case_id"] for key in keys],
        patients=[images[key]["patient_id"] for key in keys],
        content=[images[key]["content"] for key in keys],
        hashes=np.array([images[key]["hash"] for key in keys], np.uint64),
        thumbs=np.frombuffer(b"".join(images[key]["thumb"] for key in keys), np.uint8).reshape(-1, 256),
    )
    found: dict[str, Rejection] = {}
    for offence in (*duplicates(traces), *patient_leaks(traces), *image_leaks(traces)):
        at = offence.index
        rejection = Rejection(traces.sources[at], traces.case_ids[at], offence.gate, offence.reason)
        found.setdefault(keys[at], rejection)
    return found


def _rows(
    parts: Path,
    numbers: Sequence[int],
    lines: Sequence[Mapping[str, Any]],
    owners: Sequence[int],
    curation: Curation,
) -> Iterator[dict[str, Any]]:
    """The rows that are kept, part by part, with the flag of those that a blind guess answers."""
    kept: dict[int, set[str]] = defaultdict(set)
    for at in curation.kept:
        kept[owners[at]].add(lines[at]["id"])
    blind = {lines[at]["id"] for at in curation.blind}
    for number in numbers:
        if not kept[number]:
            continue
        for row in read_rows(part_path(parts, number, "questions")):
            if row["id"] in kept[number]:
                kept[number].discard(row["id"])  # a part holds no question twice
                if row["id"] in blind:
                    row["flags"] = [*row["flags"], "blind"]
                yield row
