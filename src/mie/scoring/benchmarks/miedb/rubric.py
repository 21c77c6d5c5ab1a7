"""The rubric of MieDB: a judge looks at [I | M | O] and grades eight criteria from 1 to 5.

score = (mean - 1) / 4 * 100, so that all ones are 0 and all fives are 100. The released code has no mapping;
its published values (8.4, 15.0, 19.7) lie below the 20 that mean / 5 * 100 could give at the least.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.errors import ImageError
from mie.images.png import png_size
from mie.judges import Draft, Image, Prompt, PromptSet, Question, combine, load_prompt
from mie.judges.parsers import json_scores, json_scores_schema
from mie.records import Pixels
from mie.scoring.attempts import Chunk, Output
from mie.scoring.benchmarks.miedb import BENCHMARK, CRITERIA
from mie.scoring.judging import JudgeAnswers, Questions, ReplyForm, output_drafts
from mie.scoring.metrics import resize_to
from mie.scoring.reference import in_colour, metrics_of, read_output, read_stored

PROMPT: Final = load_prompt("miedb_rubric", 2)
RUBRIC: Final = BENCHMARK.judged
_SCALE: Final = (1, 5)
_FORM: Final = ("score_list", len(CRITERIA), *_SCALE)
_PARSER: Final = json_scores(*_FORM, texts=("conclusion",))
_SCHEMA: Final = json_scores_schema(*_FORM, texts=("conclusion",))
_COLUMNS: Final = ["id", "perspective", "prompt", "input", "target_image"]


def rubric_score(criteria: Sequence[float]) -> float:
    """0 to 100 from the eight grades.

    >>> rubric_score([3] * 8)
    50.0
    """
    low, high = _SCALE
    return (math.fsum(criteria) / len(criteria) - low) / (high - low) * 100


def collage(image: Pixels, output: Pixels, target: Pixels) -> Pixels:
    """[I | M | O] side by side without a gap; M takes the size of I. `(H, 3 W, 3) uint8`."""
    if target.shape[:2] != image.shape[:2]:
        raise ImageError("input and target differ in size", expected=image.shape[:2], found=target.shape[:2])
    if output.shape[:2] != image.shape[:2]:
        output = resize_to(output, image.shape[:2])
    return np.hstack([in_colour(image), in_colour(output), in_colour(target)])


def rubric_drafts(chunks: Iterable[Chunk], variant: str, prompt: Prompt = PROMPT) -> Iterator[Draft]:
    """A question for each output of a sample whose perspective names the rubric."""
    return output_drafts(
        chunks,
        _COLUMNS,
        lambda row, output: [_draft(row, output, variant, prompt)],
        wanted=lambda row: "rubric" in metrics_of(row["perspective"]),
        wanted_by=("perspective",),
    )


def _draft(row: Mapping[str, Any], output: Output, variant: str, prompt: Prompt) -> Draft:
    text = prompt.fill(instruction=row["prompt"])
    height, width = png_size(row["input"]["bytes"])
    return Draft(
        rubric_key(row["id"], output.k),
        partial(_question, row, prompt, text, Path(output.path or ""), variant),
        prompt,
        sizes=((height, 3 * width),),
        characters=len(text),
    )


def _question(row: Mapping[str, Any], prompt: Prompt, text: str, path: Path, variant: str) -> Question:
    output = read_output(path, variant)
    shown = collage(read_stored(row["input"]["bytes"]), output, read_stored(row["target_image"]["bytes"]))
    return Question(prompt, (Image(shown), text), _PARSER, _SCHEMA, quotes=(row["prompt"],))


def rubric_key(sample: str, k: int) -> str:
    """What the question about an attempt is called."""
    return f"{sample}_{k}:rubric"


def record_rubric(
    line: dict[str, Any], attempt: dict[str, Any], answers: JudgeAnswers, prompt: Prompt = PROMPT
) -> None:
    """The rubric's numbers for one attempt, or the reason why there are none."""
    given = answers.answers.get(rubric_key(line["id"], attempt["k"]), ())
    found = combine(given)
    attempt["judge"] = {**answers.judge.stamp(given, prompt), "repeats": sum(answer.done for answer in given)}
    if found.values is None:
        attempt["unscored"] |= dict.fromkeys(RUBRIC, found.reason)
        return
    attempt["judge"]["spread"] = found.spread
    numbers = (rubric_score(found.values), *found.values)
    attempt["metrics"] |= dict(zip(RUBRIC, numbers, strict=True))


def _reply(grades: Sequence[float]) -> str:
    body = {"conclusion": "Graded by people.", "score_list": [round(grade) for grade in grades]}
    return json.dumps(body)


def questions(prompts: PromptSet) -> Questions:
    """The rubric in the words of a set of prompts."""
    prompt = prompts.of(PROMPT)
    return Questions(
        RUBRIC,
        lambda chunks, variant, _: rubric_drafts(chunks, variant, prompt),
        partial(record_rubric, prompt=prompt),
        using=questions,
        forms={PROMPT.id: ReplyForm(RUBRIC[1:], _SCALE, _reply, _PARSER)},
    )


QUESTIONS: Final = questions(PromptSet())
