"""The questions on the page: examples that were answered right and wrong, and how the set was made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image

from mie.core.hashing import stable_hash
from mie.errors import MieError
from mie.images.resize import fitted_size, resize_image
from mie.questions.record import LETTERS, Question
from mie.report.answer_rows import AnswerRow, labels
from mie.report.question_charts import funnel_chart, funnel_steps
from mie.report.views import NONE, Label, Section

EXAMPLES: Final = 6  # of each list
_PICTURE: Final = 320  # pixels of the longer side
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Example:
    """A question with its images on disk, its key, and what each answerer said."""

    id: str
    about: str
    text: str
    options: list[tuple[str, str, bool]]  # letter, text, whether it is the key
    key: str
    images: list[tuple[str, int, int]]  # file, width, height
    said: list[tuple[Label, str, str]]  # answerer, what it said, "right", "wrong" or "unscored"


def questions_sections(
    rows: Sequence[AnswerRow], folder: Path | str | None, out: Path, progress: Progress | None
) -> list[Section]:
    try:
        part = rows[0].run.questions(folder)
    except MieError as error:
        note = f"The question set is not there, so no examples are shown: {error}"
        return [
            Section("examples", "Examples", "Examples", "question_examples.html", {"lists": [], "note": note})
        ]
    sections = []
    chosen = _chosen(rows)
    wanted = {name: at for at, name in enumerate(part.ids()) if any(name in ids for ids in chosen.values())}
    made: dict[str, Example] = {}
    for done, (name, at) in enumerate(sorted(wanted.items(), key=lambda item: item[1]), start=1):
        made[name] = _example(part[at], rows, out)
        if progress is not None:
            progress(done, len(wanted))
    lists = [(title, [made[name] for name in ids if name in made]) for title, ids in chosen.items()]
    content = {"lists": [one for one in lists if one[1]], "note": ""}
    sections.append(Section("examples", "Examples", "Examples", "question_examples.html", content))
    steps = funnel_steps(part.whole.info)
    if len(steps) > 1:
        chart = funnel_chart(out / "plots", "funnel", "Questions left after each step", steps)
        sections.append(
            Section(
                "funnel",
                "How the set was made",
                "Funnel",
                "question_groups.html",
                {"table": None, "charts": [chart]},
            )
        )
    return sections


def _chosen(rows: Sequence[AnswerRow]) -> dict[str, list[str]]:
    """Ids by list: what most answerers got right, and what most got wrong; by a hash among equals."""
    right: dict[str, list[float]] = {}
    for row in rows:
        if "accuracy@1" in row.results.keys:
            for name, value in row.results.values("accuracy@1").dropna().items():
                right.setdefault(str(name), []).append(float(value))
    order = sorted(
        right, key=lambda name: (sum(right[name]) / len(right[name]), stable_hash("example", name))
    )
    wrong = [name for name in order if sum(right[name]) < len(right[name])][:EXAMPLES]
    best = [name for name in reversed(order) if sum(right[name]) > 0 and name not in wrong][:EXAMPLES]
    return {"Most often right": best, "Most often wrong": wrong}


def _example(question: Question, rows: Sequence[AnswerRow], out: Path) -> Example:
    images = []
    for at, image in enumerate(question.images):
        pixels = image.decoded()
        if max(pixels.shape[:2]) > _PICTURE:
            pixels = resize_image(pixels, fitted_size(pixels.shape[0], pixels.shape[1], _PICTURE))
        file = f"images/{question.id}-{at}.png"
        Image.fromarray(pixels).save(out / file, optimize=True)
        images.append((file, pixels.shape[1], pixels.shape[0]))
    said = []
    for label, row in zip(labels(rows), rows, strict=True):
        one = row.lines.get(question.id)
        if one is None:
            continue
        (attempt,) = one.attempts
        score = attempt.score("accuracy")
        words = attempt.body.get("said")
        if row.people:
            words = ", ".join(
                f"{rater}: {choice or NONE}" for rater, choice in attempt.body["people"].items()
            )
        state = (
            "unscored" if not score.scored else ("right" if score.value and score.value > 0.5 else "wrong")
        )
        said.append((label, str(words) if words is not None else score.reason, state))
    options = [(LETTERS[at], text, text == question.answer) for at, text in enumerate(question.options)]
    place = " · ".join(
        filter(None, (question.task, question.modality, question.submodality, question.source))
    )
    return Example(question.id, place, question.text, options, question.answer, images, said)
