"""What is asked about an output, and how the reply is read.

`paper`: exactly three scores from 1 to 5; the second and third are capped at the first; their mean counts.
`as_released`: every line `name: digit` counts, whatever its name and number; their mean, rounded to two
digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from mie.images.png import png_size
from mie.judges import Draft, Image, ParseError, Prompt, PromptSet, Question, load_prompt
from mie.judges.parsers import line_scores, yes_no
from mie.judges.prompt_sets import DEFAULT
from mie.scoring.attempts import Chunk, Output
from mie.scoring.benchmarks.imgedit import BENCHMARK, CONVERSATION, CRITERIA, TYPES
from mie.scoring.judging import (
    JudgeAnswers,
    Questions,
    ReplyForm,
    SampleAnswer,
    output_drafts,
    record_numbers,
)
from mie.scoring.metric import GRADES
from mie.scoring.reference import changes_content, read_output, read_stored

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


def drafts(
    chunks: Iterable[Chunk],
    variant: str,
    samples: Mapping[str, SampleAnswer],
    prompts: PromptSet = DEFAULT,
) -> Iterator[Draft]:
    """One question for each output; what it is depends on the suite."""
    chunks = list(chunks)
    draft = partial(_drafts, variant=variant, prompts=prompts)
    yield from output_drafts(chunks, _COLUMNS, draft, _asked_alone, ("id", "turn", "params"))
    yield from turn_drafts(chunks, variant, prompts)


def _asked_alone(row: Mapping[str, Any]) -> bool:
    return suite_of(row) != "multiturn"


def prompt_of(row: Mapping[str, Any]) -> Prompt | None:
    """The rubric; None for a kind of edit that has none."""
    return UGE if suite_of(row) == "uge" else PROMPTS.get(edit_type(row))


def _drafts(row: Mapping[str, Any], output: Output, *, variant: str, prompts: PromptSet) -> Iterator[Draft]:
    ours = prompt_of(row)
    if ours is None:
        return
    prompt = prompts.of(ours)
    text = prompt.fill(instruction=row["prompt"])
    parser = (UGE_PARSERS if ours is UGE else PARSERS)[variant]
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


def record(
    line: dict[str, Any], attempt: dict[str, Any], answers: JudgeAnswers, prompts: PromptSet = DEFAULT
) -> None:
    suite, kind = line["group"]["suite"], line["group"]["edit_type"]
    key = edit_key(line["id"], attempt["k"])
    if suite == "multiturn":
        record_turn(line, attempt, answers, prompts)
    elif suite == "uge":
        record_numbers(attempt, key, ("uge",), answers, prompts.of(UGE))
    elif kind not in PROMPTS:
        attempt["unscored"] |= dict.fromkeys(line["applies"], f"no rubric for the kind of edit {kind!r}")
    elif answers.variant == "as_released":
        record_numbers(attempt, key, ("imgedit",), answers, prompts.of(PROMPTS[kind]))
    else:
        # The cap is on a reply, before repeats are averaged; the criteria are shown as they were given.
        names = ("imgedit", *CRITERIA)
        record_numbers(attempt, key, names, answers, prompts.of(PROMPTS[kind]), _numbers)


def _numbers(scores: Sequence[float]) -> tuple[float, ...]:
    return math.fsum(capped(scores)) / len(scores), *scores


# Which suite and kind of edit a sample belongs to, by its own record or by what it is.
SUITES: Final = ("basic", "uge", "multiturn")
_ALIASES: Final = {"hybrid": "compose"}
# Samples of ours: painting a region changes a property of it, several regions are several edits at once.
_TASKS: Final = {
    "holistic": "compose",
    "removal": "remove",
    "addition": "add",
    "inpainting": "replace",
    "simulation": "add",
    "artifact removal": "remove",
    "modality transfer": "style",
}


def suite_of(row: Mapping[str, Any]) -> str:
    """`basic`, `uge` or `multiturn`; a sample of ours that has a turn is of a conversation."""
    stated = own(row).get("suite")
    if stated in SUITES:
        return str(stated)
    return "basic" if row["turn"] is None else "multiturn"


def edit_type(row: Mapping[str, Any]) -> str:
    """One of TYPES, or what the record says where that is none of them."""
    stated = own(row).get("edit_type")
    if stated:
        name = str(stated).strip().lower()
        return _ALIASES.get(name, name)
    return _TASKS.get(row["task"], "replace" if changes_content(row["perspective"]) else "adjust")


def category_of(row: Mapping[str, Any]) -> str | None:
    """What a conversation is about: memory, understanding or backtracking; None: all of them are asked."""
    stated = own(row).get("category") or json.loads(row["params"]).get("family")  # of one of ours
    return str(stated) if stated else None


def own(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = json.loads(row["params"]).get("imgedit")
    return found if isinstance(found, Mapping) else {}


# Conversations: at each turn a judge sees the first image and every result so far, and says yes or no.
#
# Memory, understanding and backtracking are asked about, or the one that the conversation was written for. A
# result of an earlier turn that is missing leaves the turn unscored.

PROMPT: Final = load_prompt("imgedit_multiturn", 2)
_TEXTS: Final = ["id", "group", "turn", "params", "prompt"]


@dataclass(frozen=True, slots=True)
class _Turn:
    """One turn of a conversation: what was asked, and what came of it at each attempt."""

    number: int
    sample: str
    prompt: str
    outputs: Mapping[int, Output]


def questions_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    category = category_of(row)
    return (category,) if category in CONVERSATION else CONVERSATION


def turn_drafts(chunks: Sequence[Chunk], variant: str, prompts: PromptSet = DEFAULT) -> Iterator[Draft]:
    """A question for each turn whose results so far all exist."""
    talks = _conversations(chunks)
    if not talks:
        return
    first: dict[str, bytes] = {}  # the image a conversation began with, while it lasts
    for chunk in chunks:
        if not any(suite_of(row) == "multiturn" for row, _ in chunk.rows(["turn", "params"])):
            continue
        for row, outputs in chunk.rows([*_TEXTS, "input"]):
            if suite_of(row) != "multiturn":
                continue
            name, turns = _talk(row), talks[_talk(row)]
            image = first.setdefault(name, row["input"]["bytes"])
            if row["id"] == turns[-1].sample:
                first.pop(name)
            so_far = [turn for turn in turns if turn.number <= (row["turn"] or 1)]
            yield from _drafts_of_turn(row, image, outputs, so_far, variant, prompts.of(PROMPT))


def _drafts_of_turn(
    row: Mapping[str, Any],
    image: bytes,
    outputs: Sequence[Output],
    so_far: list[_Turn],
    variant: str,
    prompt: Prompt,
) -> Iterator[Draft]:
    asked = questions_of(row)
    lines = [f"Turn {turn.number}: {turn.prompt}" for turn in so_far]
    text = prompt.fill(instructions="\n".join(lines), questions=", ".join(asked))
    size = png_size(image)
    for output in outputs:
        paths = [turn.outputs[output.k].path for turn in so_far if output.k in turn.outputs]
        if len(paths) == len(so_far) and all(paths):
            question = partial(
                _question, prompt=prompt, text=text, lines=tuple(lines), count=len(asked), variant=variant
            )
            make = partial(question, image, [Path(path or "") for path in paths])
            sizes = (size,) * (1 + len(paths))
            yield Draft(turn_key(row["id"], output.k), make, prompt, sizes=sizes, characters=len(text))


def _question(
    image: bytes,
    paths: list[Path],
    *,
    prompt: Prompt,
    text: str,
    lines: tuple[str, ...],
    count: int,
    variant: str,
) -> Question:
    parts: list[str | Image] = [text, "First image:", Image(read_stored(image))]
    for number, path in enumerate(paths, start=1):
        parts += [f"After turn {number}:", Image(read_output(path, variant))]
    return Question(prompt, tuple(parts), yes_no(count), quotes=lines)


def _conversations(chunks: Sequence[Chunk]) -> dict[str, list[_Turn]]:
    """Each conversation's turns in order. Only texts are read."""
    found: dict[str, list[_Turn]] = {}
    for chunk in chunks:
        for row, outputs in chunk.rows(_TEXTS):
            if suite_of(row) == "multiturn":
                made = {output.k: output for output in outputs}
                turn = _Turn(row["turn"] or 1, row["id"], row["prompt"], made)
                found.setdefault(_talk(row), []).append(turn)
    return {name: sorted(turns, key=lambda turn: turn.number) for name, turns in found.items()}


def _talk(row: Mapping[str, Any]) -> str:
    return row["group"] or row["id"]


def turn_key(sample: str, k: int) -> str:
    return f"{sample}_{k}:multiturn"


def record_turn(
    line: dict[str, Any], attempt: dict[str, Any], answers: JudgeAnswers, prompts: PromptSet
) -> None:
    key = turn_key(line["id"], attempt["k"])
    if key not in answers.answers:
        attempt["unscored"] |= dict.fromkeys(line["applies"], "an earlier turn has no output")
        return
    record_numbers(attempt, key, line["applies"], answers, prompts.of(PROMPT))


def _lines(labels: Sequence[str], grades: Sequence[float]) -> str:
    return "\n".join(f"{label}: {round(grade)}" for label, grade in zip(labels, grades, strict=True))


_LABELS: Final = ("Instruction adherence", "Editing quality", "Detail preservation")
_THREE: Final = ReplyForm(CRITERIA, GRADES, partial(_lines, _LABELS), PARSERS["paper"])
_ONE: Final = ReplyForm(("uge",), GRADES, partial(_lines, ("Score",)), UGE_PARSERS["paper"])


def questions(prompts: PromptSet) -> Questions:
    """The questions in the words of a set of prompts."""
    return Questions(
        BENCHMARK.judged,
        partial(drafts, prompts=prompts),
        partial(record, prompts=prompts),
        using=questions,
        forms={**{prompt.id: _THREE for prompt in PROMPTS.values()}, UGE.id: _ONE},
    )


QUESTIONS: Final = questions(DEFAULT)
