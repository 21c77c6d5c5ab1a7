"""What is asked about an output, and how the reply is read.

`paper`: exactly three scores from 1 to 5; the second and third are capped at the first; their mean counts.
`as_released`: every line `name: digit` counts, whatever its name and number; their mean, rounded to two
digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from mie.images.png import png_size
from mie.judges import Draft, Image, ParseError, Prompt, Question, load_prompt
from mie.judges.parsers import line_scores
from mie.scoring.benchmarks.imgedit import BENCHMARK, CRITERIA, TYPES
from mie.scoring.benchmarks.imgedit.turns import edit_type, record_turn, suite_of, turn_drafts
from mie.scoring.chunks import Chunk, Output
from mie.scoring.judging import JudgeAnswers, Questions, SampleAnswer, output_drafts, record_numbers
from mie.scoring.pixels import read_output, read_stored

PROMPTS: Final = {name: load_prompt(f"imgedit_{name}", 2) for name in TYPES}
UGE: Final = load_prompt("imgedit_uge", 2)
_COLUMNS: Final = ("id", "perspective", "task", "turn", "params", "prompt", "input")


def released_scores(reply: str) -> tuple[float]:
    """The public script's reading: lines of two pieces around `: ` whose second is digits."""
    found = []
    for line in reply.splitlines():
        pieces = line.strip().split(": ")
        if len(pieces) == 2 and pieces[1].isdecimal():
            found.append(int(pieces[1]))
    if not found:
        raise ParseError("no line `name: number`")
    return (round(sum(found) / len(found), 2),)


def capped(scores: Sequence[float]) -> tuple[float, ...]:
    """The scores with none above the first.

    >>> capped((3, 5, 2))
    (3, 3, 2)
    """
    return tuple(min(score, scores[0]) for score in scores)


PARSERS: Final = {"paper": line_scores(3, 1, 5), "as_released": released_scores}
UGE_PARSERS: Final = {"paper": line_scores(1, 1, 5), "as_released": released_scores}


def drafts(chunks: Iterable[Chunk], variant: str, samples: Mapping[str, SampleAnswer]) -> Iterator[Draft]:
    """One question for each output; what it is depends on the suite."""
    chunks = list(chunks)
    yield from output_drafts(
        chunks, _COLUMNS, partial(_drafts, variant=variant), _asked_alone, ("id", "turn", "params")
    )
    yield from turn_drafts(chunks, variant)


def _asked_alone(row: Mapping[str, Any]) -> bool:
    return suite_of(row) != "multiturn"


def prompt_of(row: Mapping[str, Any]) -> Prompt | None:
    """The rubric; None for a kind of edit that has none."""
    return UGE if suite_of(row) == "uge" else PROMPTS.get(edit_type(row))


def _drafts(row: Mapping[str, Any], output: Output, *, variant: str) -> Iterator[Draft]:
    prompt = prompt_of(row)
    if prompt is None:
        return
    text = prompt.fill(instruction=row["prompt"])
    parser = (UGE_PARSERS if prompt is UGE else PARSERS)[variant]
    path = Path(output.path or "")

    def question() -> Question:
        images = (Image(read_stored(row["input"]["bytes"])), Image(read_output(path, variant)))
        parts = (text, "Before:", images[0], "After:", images[1])
        return Question(prompt, parts, parser, quotes=(row["prompt"],))

    size = png_size(row["input"]["bytes"])
    key = edit_key(row["id"], output.k)
    yield Draft(key, question, prompt, sizes=(size, size), characters=len(text))


def edit_key(sample: str, k: int) -> str:
    return f"{sample}_{k}:imgedit"


def record(line: dict[str, Any], attempt: dict[str, Any], answers: JudgeAnswers) -> None:
    suite, kind = line["group"]["suite"], line["group"]["edit_type"]
    key = edit_key(line["id"], attempt["k"])
    if suite == "multiturn":
        record_turn(line, attempt, answers)
    elif suite == "uge":
        record_numbers(attempt, key, ("uge",), answers, UGE)
    elif kind not in PROMPTS:
        attempt["unscored"] |= dict.fromkeys(line["applies"], f"no rubric for the kind of edit {kind!r}")
    elif answers.variant == "as_released":
        record_numbers(attempt, key, ("imgedit",), answers, PROMPTS[kind])
    else:
        # The cap is on a reply, before repeats are averaged; the criteria are shown as they were given.
        names = ("imgedit", *CRITERIA)
        record_numbers(attempt, key, names, answers, PROMPTS[kind], _numbers)


def _numbers(scores: Sequence[float]) -> tuple[float, ...]:
    return math.fsum(capped(scores)) / len(scores), *scores


QUESTIONS: Final = Questions(BENCHMARK.judged, drafts, record)
