"""`mie vqa verify`: the evidence of every question, recomputed from the masks that are stored with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.datasets.dataset import dataset_digest
from mie.datasets.engine import run_tasks
from mie.datasets.leaks import Traces, image_leaks, patient_leaks
from mie.datasets.schema import read_rows
from mie.errors import MieError
from mie.images.hashes import perceptual
from mie.questions.make import HEALED_AREA, check_options
from mie.questions.record import Question, QuestionImage
from mie.questions.store import QuestionSet, question_of
from mie.questions.templates import TEMPLATES
from mie.questions.views import View
from mie.questions.write import question_line
from mie.records import Mask, Pixels
from mie.vocabulary import SPLITS

_REMEMBERED: Final = 256  # decoded pictures


@dataclass(frozen=True, slots=True)
class QuestionProblem:
    """One thing that is wrong with a stored question."""

    check: str
    where: str
    reason: str


@dataclass(slots=True)
class QuestionProof:
    """What `verify` found."""

    questions: int = 0
    proved: int = 0  # whose key was recomputed
    problems: list[QuestionProblem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


class _Pictures:
    """Decoded pictures by their bytes: ten questions about an image decode it once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Pixels, str]] = {}

    def pixels(self, image: QuestionImage) -> Pixels:
        if image.data not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[image.data] = image.pixels, image.digest
        pixels, digest = self._known[image.data]
        image.__dict__["pixels"], image.__dict__["digest"] = pixels, digest
        return pixels


def prove(question: Question, pictures: _Pictures | None = None) -> bool:
    """Whether the key follows from the evidence; False where there is none to recompute.

    Raises:
        MieError: If the evidence contradicts the key, several options are true, or a mark is not drawn.

    """
    pictures = pictures or _Pictures()
    template = TEMPLATES.get(str(question.evidence.get("template")))
    if template is None:
        return False
    views = views_of(question, pictures)
    params = question.evidence["params"]
    if template.value is not None:
        value = template.value(views, params)
        if value != question.answer:
            raise MieError("the evidence gives another answer", expected=question.answer, found=value)
    else:
        options = question.options or (question.answer,)
        check_options(template, views, params, options, question.answer)
    if template.check is not None:
        template.check(views, params)
    return True


def views_of(question: Question, pictures: _Pictures | None = None) -> list[View]:
    """The views that a question was made from, as far as they are stored."""
    pictures = pictures or _Pictures()
    views = []
    facts = question.evidence.get("images") or []
    if len(facts) != len(question.images):
        raise MieError("the evidence is of other images", expected=len(question.images), found=len(facts))
    for at, image in enumerate(question.images):
        masks: dict[str, Mask] = {
            one.target: pictures.pixels(one.mask) > 0 for one in question.masks if one.image == at
        }
        pixels = pictures.pixels(image)
        if any(mask.shape != pixels.shape[:2] for mask in masks.values()):
            raise MieError("mask and image differ in size", where=question.id, expected=pixels.shape[:2])
        hole = masks.pop(HEALED_AREA, None)
        if unknown := set(masks) - {name for name, _, _ in facts[at]["targets"]}:
            raise MieError("a mask is of a target that the evidence does not name", found=", ".join(unknown))
        views.append(View.from_facts(facts[at], pixels, masks, hole))
    return views


def verify_questions(
    folder: Path | str,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> QuestionProof:
    """Recompute every key and digest, and look for patients and images on both sides of a split."""
    found = QuestionSet(folder)
    shards = found.shards()
    results: dict[int, _Shard] = {}
    progress(0, len(shards))
    for number, result in run_tasks(_verify_shard, list(enumerate(shards)), workers=workers):
        results[number] = result
        progress(len(results), len(shards))
    proof = QuestionProof()
    lines: dict[str, list[str]] = {split: [] for split in SPLITS}
    seen: Counter[str] = Counter()
    traces: dict[tuple[int, bytes], dict[str, Any]] = {}
    for number in range(len(shards)):
        shard = results[number]
        proof.questions += len(shard.lines)
        proof.proved += shard.proved
        proof.problems += shard.problems
        for split, line, ident in shard.lines:
            lines.get(split, []).append(line)
            seen[ident] += 1
        for trace in shard.traces:
            traces.setdefault((trace["hash"], trace["content"] + trace["split"].encode()), trace)
    problem = proof.problems.append
    for ident, count in seen.items():
        if count > 1:
            problem(QuestionProblem("id", ident, f"{count} questions have this id"))
    if proof.questions != len(found):
        problem(
            QuestionProblem(
                "count", MARKER_NAME, f"says {len(found)} questions, the shards hold {proof.questions}"
            )
        )
    if dataset_digest(line for split in SPLITS for line in lines[split]) != found.digest:
        problem(
            QuestionProblem("digest", MARKER_NAME, "the shards hold other questions than the digest says")
        )
    for key, reason in _leaks(list(traces.values())):
        problem(QuestionProblem("leak", key, reason))
    return proof


MARKER_NAME: Final = "questions.json"


def _leaks(traces: list[dict[str, Any]]) -> list[tuple[str, str]]:
    if not traces:
        return []
    compared = Traces(
        ids=[trace["id"] for trace in traces],
        splits=[trace["split"] for trace in traces],
        sources=[trace["source"] for trace in traces],
        case_ids=[trace["case"] for trace in traces],
        patients=[trace["patient"] for trace in traces],
        content=[trace["content"] for trace in traces],
        hashes=np.array([trace["hash"] for trace in traces], np.uint64),
        thumbs=np.frombuffer(b"".join(trace["thumb"] for trace in traces), np.uint8).reshape(-1, 256),
    )
    offences = (*patient_leaks(compared), *image_leaks(compared))
    return [(compared.ids[one.index], one.reason) for one in offences]


@dataclass(slots=True)
class _Shard:
    lines: list[tuple[str, str, str]] = field(default_factory=list)  # split, line of the digest, id
    proved: int = 0
    problems: list[QuestionProblem] = field(default_factory=list)
    traces: list[dict[str, Any]] = field(default_factory=list)


def _verify_shard(task: tuple[int, Path]) -> tuple[int, _Shard]:
    number, path = task
    shard, pictures = _Shard(), _Pictures()
    traced: set[tuple[bytes, str]] = set()
    for row in read_rows(path):
        shard.lines.append((row["split"], question_line(row), row["id"]))
        if not path.name.startswith(f"{row['split']}-"):
            shard.problems.append(
                QuestionProblem("split", row["id"], f"{row['split']} stands in {path.name}")
            )
        try:
            question = question_of(row)
            for image in (*question.images, *(mask.mask for mask in question.masks)):
                pictures.pixels(image)
            if question.digest != row["sha256"]:
                shard.problems.append(
                    QuestionProblem("digest", row["id"], "it was changed after it was written")
                )
            shard.proved += prove(question, pictures)
        except MieError as error:
            shard.problems.append(QuestionProblem("evidence", str(row["id"]), error.reason))
            continue
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = f"the evidence cannot be read: {type(error).__name__}: {error}"
            shard.problems.append(QuestionProblem("evidence", str(row["id"]), reason))
            continue
        for at, image in enumerate(question.images):
            if (image.data, question.split) not in traced:
                traced.add((image.data, question.split))
                shard.traces.append(_trace(question, at, pictures.pixels(image)))
    return number, shard


def _trace(question: Question, at: int, pixels: Pixels) -> dict[str, Any]:
    value, thumb = perceptual(pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, axis=2))
    facts: Mapping[str, Any] = (question.evidence.get("images") or [{}] * (at + 1))[at]
    patient = facts.get("patient") if len(question.images) > 1 else question.patient_id
    return {
        "id": question.id,
        "split": question.split,
        "source": question.source,
        # Images of one question may be of several cases; without a patient each stands for itself.
        "case": question.case_id if len(question.images) == 1 else f"{question.images[at].digest}",
        "patient": patient,
        "content": bytes.fromhex(question.images[at].digest),
        "hash": value,
        "thumb": thumb,
    }
