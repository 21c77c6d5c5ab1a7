"""Questions that masks cannot prove: a language model writes them from findings, and people must accept them.

A model writes one question per patient and task, in a strict form. It then has to answer its own question,
with the options in other orders, and a second model has to answer it too. What all of them answer with the
key becomes a question with the flag `written`, which counts only once people accept it in `mie review`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from mie.core.files import inside
from mie.core.registry import unknown_name
from mie.errors import ConfigError, ImageError, MieError
from mie.judges import (
    Answer,
    Draft,
    Image,
    JudgeOptions,
    ParseError,
    Prompt,
    load_prompt,
    open_judge,
    open_prompts,
)
from mie.judges import Question as Ask
from mie.judges.parsers import json_object
from mie.questions.asking import rotated
from mie.questions.record import LETTERS, TASKS, Question, QuestionImage, question_id
from mie.questions.scoring.parse import read_letter
from mie.questions.store import MARKER, QuestionSet
from mie.questions.write import stated_of, write_questions
from mie.records import Rejection
from mie.vocabulary import UNKNOWN

WRITTEN_TASKS: Final = ("AFU", "PMC", "RS", "PFA", "CSP", "DRP", "PA", "TPS", "POA")
_KEYS: Final = ("question", "options", "answer", "explanation")
_OPTIONS: Final = 5
_LONGEST: Final = 400  # characters of a question or an option
_UNLIKE: Final = 4.0  # the key may be this many times as long as the other options, or as short
_TELLS: Final = re.compile(r"\b(findings?|reports?|as described|given text)\b", re.IGNORECASE)
_NONE: Final = re.compile(r"\W*none\W*", re.IGNORECASE)
_MOST_FACTS: Final = 12
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known about the images of one patient."""

    case_id: str
    text: str
    images: tuple[QuestionImage, ...]
    patient_id: str | None = None
    modality: str = UNKNOWN
    submodality: str = ""
    anatomy: str = UNKNOWN
    source: str = UNKNOWN
    license: str = ""
    split: str = "test"


@dataclass(frozen=True, slots=True)
class Writing:
    """How questions are written: by whom, for which tasks, checked how often and by whom."""

    writer: JudgeOptions
    second: JudgeOptions
    tasks: tuple[str, ...] = WRITTEN_TASKS
    consistency: int = 2  # times that the writer answers its own question, each with the options rotated

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in WRITTEN_TASKS:
                raise unknown_name("task that a model writes for", task, WRITTEN_TASKS)
        if not 1 <= self.consistency < _OPTIONS:
            raise ConfigError(
                "not a number of checks", expected=f"1 to {_OPTIONS - 1}", found=self.consistency
            )
        if self.writer.spec == self.second.spec:
            raise ConfigError(
                "the second model is the writer itself",
                found=self.writer.spec,
                fix="name another with --second",
            )


def read_findings(place: Path | str) -> list[Findings]:
    """Findings from a question set, whose keys are facts, or from JSON lines.

    A line has `findings` (text) and `images` (paths beside the file), optionally `case_id`, `patient_id`,
    `modality`, `submodality`, `anatomy`, `source`, `license` and `split`.
    """
    path = Path(place)
    if (path / MARKER).is_file():
        return _from_set(QuestionSet(path))
    found = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                found.append(_from_line(line, path, number))
    except OSError as error:
        raise ConfigError("cannot read the findings", where=path, found=error.strerror) from None
    if not found:
        raise ConfigError("no findings here", where=path, expected="JSON lines, or a question set")
    return found


def _from_line(line: str, path: Path, number: int) -> Findings:
    where = f"{path}:{number}"
    known = ("case_id", "patient_id", "modality", "submodality", "anatomy", "source", "license", "split")
    try:
        body = json.loads(line)
        text, names = body["findings"], body["images"]
        if not (isinstance(text, str) and text.strip() and isinstance(names, list) and names):
            raise ValueError("findings without text or images")
        if strange := sorted(set(body) - {"findings", "images", *known}):
            raise ValueError(f"unknown keys {', '.join(strange)}")
    except (ValueError, KeyError, TypeError) as error:
        expected = '{"findings": text, "images": [paths], ...}'
        raise ConfigError("not a line of findings", where=where, expected=expected, found=error) from None
    images = tuple(QuestionImage(inside(path.parent, path.parent, n).read_bytes(), str(n)) for n in names)
    return Findings(
        **{"case_id": f"{path.stem} {number}", **{k: body[k] for k in known if k in body}},
        text=text,
        images=images,
    )


def _from_set(questions: QuestionSet) -> list[Findings]:
    """One of each case: its closed, number and open questions with their keys, as sentences."""
    facts: dict[tuple[str, str], list[str]] = {}
    first: dict[tuple[str, str], Question] = {}
    for question in questions:
        if (
            question.kind in ("closed", "number", "open")
            and "written" not in question.flags
            and len(question.images) == 1
        ):
            key = question.source, question.case_id
            first.setdefault(key, question)
            facts.setdefault(key, []).append(f"{question.text} {question.answer} {question.unit}".strip())
    return [
        Findings(
            one.case_id,
            "\n".join(dict.fromkeys(facts[key][:_MOST_FACTS])),
            one.images,
            one.patient_id,
            one.modality,
            one.submodality,
            one.anatomy,
            one.source,
            one.license,
            one.split,
        )
        for key, one in first.items()
    ]


def write_written(
    findings: Sequence[Findings],
    writing: Writing,
    folder: Path | str,
    *,
    name: str,
    dataset: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Have questions written and checked; write those that pass as a set; what its `questions.json` says.

    Replies lie in `FOLDER-replies` and are paid for once: after a kill the same call resumes. `dataset` is
    the `questions.json` of the set that the findings come from, which may say that they are de-identified.
    """
    folder = Path(folder)
    replies = folder.with_name(f"{folder.name}-replies")
    total = len(findings) * len(writing.tasks)
    told = (lambda done: progress(done, total)) if progress else None
    with open_judge(replace(writing.writer, repeats=1), replies / "writer", dataset=dataset or {}) as judge:
        written = judge.ask(_write_drafts(findings, writing), told)
        drafts = {key: answer.value for key, (answer,) in written.items() if answer.done and answer.value}
        own = judge.ask(_check_drafts(findings, writing, drafts, range(1, writing.consistency + 1)))
        writer = judge.record(())
    with open_judge(replace(writing.second, repeats=1), replies / "second", dataset=dataset or {}) as judge:
        other = judge.ask(_check_drafts(findings, writing, drafts, [0]))
        second = judge.record(())
    kept, lost = _questions(findings, writing, written, {**own, **other}, writer, second)
    steps = [
        ("asked for", total),
        ("written in the form asked for", len(drafts)),
        ("both models agree with the key", len(kept)),
    ]
    if not kept:
        reasons = "; ".join(dict.fromkeys(one.reason for one in lost)) or "nothing was asked"
        raise MieError("no question was written", where=folder, found=reasons[:500])
    return write_questions(
        [*kept, *lost],
        folder,
        name=name,
        description="Written by a language model; a question counts once people accept it in `mie review`.",
        recipe={"written": {"writer": writer, "second": second, "consistency": writing.consistency}},
        deidentified=stated_of(dataset) if dataset else {},
        funnel=[{"step": step, "questions": count, "note": ""} for step, count in steps],
    )


def estimate_writing(findings: Sequence[Findings], writing: Writing, folder: Path | str) -> dict[str, Any]:
    """Calls, tokens and cost, with every question written and checked. Asks nothing."""
    folder = Path(folder)
    total: dict[str, Any] = {}
    placeholder = {
        "question": "?" * 120,
        "options": ["?" * 20] * _OPTIONS,
        "answer": "?",
        "explanation": "?" * 80,
    }
    drafts = dict.fromkeys((_key(f, t) for f in findings for t in writing.tasks), placeholder)
    own = _check_drafts(findings, writing, drafts, range(1, writing.consistency + 1))
    rounds = (
        (writing.writer, "writer", [*_write_drafts(findings, writing), *own]),
        (writing.second, "second", list(_check_drafts(findings, writing, drafts, [0]))),
    )
    replies = folder.with_name(f"{folder.name}-replies")
    fresh = not replies.exists()
    for options, place, asked in rounds:
        with open_judge(replace(options, dry_run=True, repeats=1), replies / place, dataset={}) as judge:
            total[place] = judge.estimate(asked)
    if fresh:
        shutil.rmtree(replies)
    return total


def _key(findings: Findings, task: str) -> str:
    return f"{findings.source}/{findings.case_id}:{task}"


def _write_drafts(findings: Iterable[Findings], writing: Writing) -> Iterator[Draft]:
    prompt = open_prompts(writing.writer.prompts).of(load_prompt("vqa_write", 1))
    for one in findings:
        for task in writing.tasks:
            text = prompt.fill(task=f"{TASKS[task].name}, {TASKS[task].phase}", findings=one.text)
            make = partial(_ask, prompt, text, one.images, read_written)
            yield Draft(_key(one, task), make, prompt, characters=len(text))


def _check_drafts(
    findings: Iterable[Findings], writing: Writing, written: Mapping[str, Any], turns: Iterable[int]
) -> Iterator[Draft]:
    prompt = open_prompts(writing.second.prompts).of(load_prompt("vqa_check", 1))
    for one in findings:
        for task in writing.tasks:
            body = written.get(_key(one, task))
            if not body:
                continue
            for turn in turns:
                options = [body["options"][at] for at in rotated(_OPTIONS, turn)]
                lines = "\n".join(f"{LETTERS[at]}. {option}" for at, option in enumerate(options))
                text = prompt.fill(findings=one.text, question=body["question"], options=lines)
                make = partial(_ask, prompt, text, one.images, partial(_read_check, options))
                yield Draft(f"{_key(one, task)}:check{turn}", make, prompt, characters=len(text))


def _ask(prompt: Prompt, text: str, images: Sequence[QuestionImage], parser: Callable[[str], Any]) -> Ask:
    return Ask(prompt, (*(Image(image.decoded()) for image in images), text), parser)


def read_written(reply: str) -> dict[str, Any] | None:
    """A reply of the writer: the question, or None where it says that there is none. Strict."""
    body = json_object(reply)
    if set(body) == {"none"}:
        return None
    if set(body) != set(_KEYS):
        raise ParseError(f"the object must have the keys {', '.join(_KEYS)} and no others")
    texts = [
        body["question"],
        body["answer"],
        body["explanation"],
        *(body["options"] if isinstance(body["options"], list) else [None]),
    ]
    if not all(isinstance(text, str) and 0 < len(text.strip()) <= _LONGEST for text in texts[:2] + texts[3:]):
        raise ParseError(f"question, answer and options must be text of at most {_LONGEST} characters")
    options = [" ".join(option.split()) for option in body["options"]]
    answer = " ".join(body["answer"].split())
    if len(options) != _OPTIONS or len({option.casefold() for option in options}) != _OPTIONS:
        raise ParseError(f"there must be {_OPTIONS} options, all different")
    if answer not in options:
        raise ParseError("the answer must be one of the options, word for word")
    if _TELLS.search(body["question"]):
        raise ParseError("the question must not mention the findings or a report")
    if len(answer) > 3 and answer.casefold() in body["question"].casefold():
        raise ParseError("the question must not contain its answer")
    others = sorted(len(option) for option in options if option != answer)
    middle = others[len(others) // 2]
    if not middle / _UNLIKE <= len(answer) <= middle * _UNLIKE + 8:
        raise ParseError("the answer must be about as long as the other options")
    return {**body, "question": " ".join(body["question"].split()), "options": options, "answer": answer}


def _read_check(options: Sequence[str], reply: str) -> str:
    """The text of the chosen option; empty for "None". `ParseError` for anything else."""
    if _NONE.fullmatch(reply):
        return ""
    said = read_letter(reply, options)
    if said.reason:
        raise ParseError(f"{said.reason}: reply with one letter, or None")
    return options[said.value]


def _questions(
    findings: Sequence[Findings],
    writing: Writing,
    written: Mapping[str, tuple[Answer, ...]],
    checks: Mapping[str, tuple[Answer, ...]],
    writer: Mapping[str, Any],
    second: Mapping[str, Any],
) -> tuple[list[Question], list[Rejection]]:
    kept: list[Question] = []
    lost: list[Rejection] = []
    for one in findings:
        for task in writing.tasks:
            key = _key(one, task)
            (answer,) = written[key]
            body, trouble = answer.value, ("", "")
            if not answer.done:
                trouble = "writer", f"{answer.state}: {answer.reason}"
            elif body is None:
                trouble = "writer", "the findings allow no such question"
            else:
                trouble = _disagreement(key, body["answer"], writing, checks)
            if trouble[0]:
                lost.append(Rejection(one.source, one.case_id, trouble[0], f"{task}: {trouble[1]}"[:300]))
                continue
            try:
                kept.append(_question(one, task, body, answer.model, writer, second, writing.consistency))
            except (MieError, ImageError) as error:
                lost.append(Rejection(one.source, one.case_id, "record", f"{task}: {error.reason}"))
    return kept, lost


def _disagreement(
    key: str, right: str, writing: Writing, checks: Mapping[str, tuple[Answer, ...]]
) -> tuple[str, str]:
    """(gate, reason) of the first check that did not choose the key; empty where all did."""
    for turn in (*range(1, writing.consistency + 1), 0):
        gate = "second model" if turn == 0 else "self-consistency"
        (answer,) = checks[f"{key}:check{turn}"]
        if not answer.done:
            return gate, f"{answer.state}: {answer.reason}"
        if answer.value != right:
            return gate, f"chose {answer.value!r} for {right!r}" if answer.value else "no one option is right"
    return "", ""


def _question(
    one: Findings, task: str, body: Mapping[str, Any], model: str,
    writer: Mapping[str, Any], second: Mapping[str, Any], consistency: int,
) -> Question:  # fmt: skip
    id = question_id("written", one.source, one.case_id, task, body["question"], body["options"])
    turn = int(id, 16) % _OPTIONS  # the model's own order has its habits
    return Question(
        id=id,
        kind="closed",
        text=body["question"],
        answer=body["answer"],
        options=tuple(body["options"][at] for at in rotated(_OPTIONS, turn)),
        images=one.images,
        task=task,
        modality=one.modality,
        submodality=one.submodality,
        anatomy=one.anatomy,
        template="written",
        source=one.source,
        case_id=one.case_id,
        patient_id=one.patient_id,
        split=one.split,
        license=one.license,
        flags=("written",),
        evidence={
            "written_by": model,
            "prompts": dict(writer["prompts"]),
            "findings": one.text,
            "explanation": body["explanation"],
            "self_consistency": consistency,
            "second_model": second["model"],
        },
    )
