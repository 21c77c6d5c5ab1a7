"""One part of a build, made by one worker: units -> cases -> views -> questions -> Parquet files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mie.core.files import atomic_path
from mie.core.hashing import canonical
from mie.datasets.engine import Standing, report
from mie.datasets.names import Names
from mie.datasets.part import part_path, read_cases
from mie.datasets.plan import Part
from mie.datasets.recipe import split_of
from mie.datasets.rejected import write_rejected
from mie.datasets.schema import table
from mie.images.hashes import perceptual, pixel_digest
from mie.images.resize import fitted_size, resize_image, resize_mask
from mie.perspectives.modification.lesions import plane_of
from mie.questions.healed import Healer
from mie.questions.make import Made, Maker, image_key
from mie.questions.recipe import QuestionRecipe
from mie.questions.record import Question
from mie.questions.store import QuestionWriter, row_of
from mie.questions.views import View
from mie.questions.words import paired_modality
from mie.records import Case, Rejection, Unit
from mie.sources.catalog import Entry
from mie.vocabulary import SPLITS

_TEXTS: Final = (
    *("id", "kind", "text", "answer", "letter", "task", "modality", "anatomy", "template", "subject"),
    *("source", "case_id", "patient_id", "split", "sha256", "content"),
)
INDEX_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        ("options", pa.list_(pa.string())),
        ("flags", pa.list_(pa.string())),
        ("cases", pa.list_(pa.string())),  # the images that it is about, by key
    ]
)
IMAGE_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("key", "source", "case_id", "patient_id", "split")),
        ("content", pa.binary()),
        ("hash", pa.uint64()),
        ("thumb", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class QuestionTask:
    """All that a worker needs for one part."""

    part: Part
    sources: dict[int, tuple[Entry, Path]]
    recipe: QuestionRecipe
    folder: Path
    deadly: frozenset[int] = frozenset()  # units that ended a worker process: rejected unread


@dataclass(frozen=True, slots=True)
class PartResult:
    number: int
    units: int
    kept: int
    refused: int


def without_deadly_unit(task: QuestionTask, standing: Standing) -> QuestionTask | None:
    """The part again, after it ended its process: the unit that was being worked on is left out."""
    unit = standing[0]
    return None if unit in task.deadly else replace(task, deadly=task.deadly | {unit})


def make_part(task: QuestionTask) -> PartResult:
    """Write the part's questions, images, rejections and, last, its index, which says that it is whole."""
    recipe, number = task.recipe, task.part.number
    maker = Maker(recipe.seed, recipe.per_image, recipe.templates, recipe.open)
    index, rejections = PartIndex(), []
    views: list[View] = []
    traces: list[dict[str, Any]] = []
    drawn: set[str] = set()
    with QuestionWriter(part_path(task.folder, number, "questions")) as writer:

        def keep(outcome: Made | Rejection) -> None:
            if isinstance(outcome, Rejection):
                rejections.append(outcome)
            else:
                cases = (*outcome.cases, *_drawn(outcome, traces, drawn))
                writer.write(index.add(outcome.question, outcome.subject, cases))

        for unit, found in _views(task):
            report(unit, len(index.rows), len(rejections))
            if isinstance(found, Rejection):
                rejections.append(found)
                continue
            views.append(found)
            if not found.healed:
                traces.append(trace_of(found))
            for outcome in maker.about(found):
                keep(outcome)
        for split in SPLITS:
            for outcome in maker.across([view for view in views if view.split == split]):
                keep(outcome)
    if rejections:
        write_rejected(part_path(task.folder, number, "rejected"), rejections)
    write_index(task.folder, number, index, traces)
    return PartResult(number, len(task.part.units), len(index.rows), len(rejections))


class PartIndex:
    """What curation needs to know about the questions of a part without opening an image."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, question: Question, subject: str, cases: tuple[str, ...]) -> dict[str, Any]:
        """The question's row, after its line in the index."""
        row = row_of(question)
        line = {name: row.get(name) for name in INDEX_SCHEMA.names}
        self.rows.append({**line, "subject": subject, "cases": list(cases), "content": content_of(question)})
        return row


def content_of(question: Question) -> str:
    """Equal for questions that ask the same about the same pixels, whatever their id and option order."""
    text = " ".join(question.text.split()).casefold()
    images = [image.digest for image in question.images]
    options = sorted(question.options)
    return hashlib.sha256(canonical([text, options, question.answer, images]).encode()).hexdigest()


def trace_of(view: View) -> dict[str, Any]:
    """What is compared across images: exact pixels, perceptual hash, thumbnail."""
    value, thumb = perceptual(view.image)
    return {
        "key": image_key(view),
        "source": view.source,
        "case_id": view.case_id,
        "patient_id": view.patient_id,
        "split": view.split,
        "content": pixel_digest(view.image),
        "hash": value,
        "thumb": thumb,
    }


def _drawn(made: Made, traces: list[dict[str, Any]], known: set[str]) -> Iterator[str]:
    """The keys of images that are shown with an outline, with boxes or healed, which are compared as well.

    A drawing may bring an image near to one of another split, as `mie vqa verify` would find.
    """
    question = made.question
    if not (made.drawn or "counterfactual" in question.flags):
        return
    for image in question.images:
        key = f"{made.cases[0]}//{image.digest}"
        yield key
        if key in known:
            continue
        known.add(key)
        value, thumb = perceptual(image.decoded())
        traces.append(
            {
                "key": key,
                "source": question.source,
                "case_id": question.case_id,
                "patient_id": question.patient_id,
                "split": question.split,
                "content": bytes.fromhex(image.digest) + key.encode(),
                "hash": value,
                "thumb": thumb,
            }
        )


def write_index(folder: Path, number: int, index: PartIndex, traces: list[dict[str, Any]]) -> None:
    """The images, and last the index."""
    for what, rows, schema in (("images", traces, IMAGE_SCHEMA), ("index", index.rows, INDEX_SCHEMA)):
        with atomic_path(part_path(folder, number, what)) as temporary:
            pq.write_table(table(rows, schema), temporary, compression="zstd")


def _views(task: QuestionTask) -> Iterator[tuple[int, View | Rejection]]:
    """Each image of the part at its stored size, its pair and its healed form, with its unit's index."""
    recipe = task.recipe
    names = Names(recipe.keep_names)
    healer = Healer(recipe.healed, recipe.seed)
    begin = 0

    def start(unit: int) -> None:
        nonlocal begin
        begin = unit
        report(unit)

    for unit, case in read_cases(task.part, task.sources, start, task.deadly):
        if isinstance(case, Rejection):
            yield unit, names.rejection(case)
            continue
        planned = task.part.units[unit]
        entry = task.sources[planned.source][0]
        stored = _stored(case, recipe.size)
        view = _view(stored, case, entry, planned.unit, recipe, names)
        if min(view.image.shape[:2]) < recipe.least:
            height, width = view.image.shape[:2]
            reason = f"{width} x {height} pixels, the shorter side at least {recipe.least}"
            yield unit, Rejection(view.source, view.case_id, "size", reason)
            continue
        yield unit, view
        second = _pair(stored, view)
        if second is not None:
            yield unit, second
        healed = healer.healed(view, stored)
        if isinstance(healed, Rejection):
            healed = replace(healed, where=view.case_id, gate="healed")
        if healed is not None:
            yield unit, healed


def _stored(case: Case, longer: int) -> Case:
    """The case at the size that is stored; masks that vanish by scaling are left out."""
    height, width = case.image.shape[:2]
    size = (height, width) if max(height, width) <= longer else fitted_size(height, width, longer)
    masks = {name: resize_mask(mask, size) for name, mask in case.masks.items()}
    return replace(
        case,
        image=np.ascontiguousarray(resize_image(case.image, size)),
        masks={name: np.ascontiguousarray(mask) for name, mask in masks.items() if mask.any()},
        pair=None if case.pair is None else np.ascontiguousarray(resize_image(case.pair, size)),
        values=None,
        units=None,
    )


def _view(stored: Case, case: Case, entry: Entry, unit: Unit, recipe: QuestionRecipe, names: Names) -> View:
    pairing = case.pairing
    modality, sequence = entry.modality, entry.submodality or ""
    if pairing is not None and pairing.image:
        modality, sequence = paired_modality(pairing.image, entry.modality)
    spacing = None
    if case.spacing is not None and abs(case.spacing[0] - case.spacing[1]) <= 0.01 * case.spacing[0]:
        spacing = float(case.spacing[0]) * max(case.image.shape[:2]) / max(stored.image.shape[:2])
    plane = plane_of(case.steps)
    return View(
        image=stored.image,
        masks=stored.masks,
        targets={
            t.name: t.target
            for t in entry.targets
            if t.name in case.masks or _annotated(t.masks, t.name, unit, entry)
        },
        modality=modality,
        submodality=sequence,
        anatomy=case.anatomy,
        source=case.source,
        case_id=names.case(case.source, case.case_id),
        patient_id=names.patient(case.patient_id),
        split=split_of(case, recipe.split, recipe.seed),
        license=case.license,
        spacing=spacing,
        plane=plane,
        oriented=plane is not None,
    )


def _annotated(own_masks: str | None, name: str, unit: Unit, entry: Entry) -> bool:
    """Whether somebody looked for the target: a mask file that is missing does not say that it is absent."""
    role = "masks" if own_masks is None else f"mask:{name}"
    return role in unit.files or entry.layout.kind == "medsegbench"


def _pair(stored: Case, view: View) -> View | None:
    """The second image of the place, where the catalogue says what it is. Masks are of the first."""
    if stored.pair is None or stored.pairing is None:
        return None
    modality, sequence = paired_modality(stored.pairing.pair, "")
    if not modality:
        return None
    return replace(
        view,
        image=stored.pair,
        masks={},
        targets={},
        modality=modality,
        submodality=sequence,
        case_id=f"{view.case_id}+pair",
    )
