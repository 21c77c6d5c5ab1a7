"""How a benchmark asks a judge: first about samples, where something is missing there, then about outputs.

What is asked about a sample (a description of its change, questions about its target) is the same for every
run: those replies lie in the dataset's folder `judge/`, and are asked for once. What is asked about an output
lies in the run's.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from mie.core.files import FolderTakenError
from mie.datasets.dataset import Dataset
from mie.editors.runs import Run
from mie.errors import ConfigError
from mie.images.png import png_size
from mie.judges import (
    Answer,
    Draft,
    Judge,
    JudgeOptions,
    Prompt,
    PromptSet,
    Question,
    combine,
    open_judge,
    open_prompts,
)
from mie.scoring.attempts import Chunk, Output
from mie.scoring.scores import NO_OUTPUT, encode_line

_WAIT: Final = 0.5  # seconds between two tries


@dataclass(frozen=True, slots=True)
class SampleAnswer:
    """What a judge said about a sample: `value`, or the reason why there is none, and who said it."""

    value: Any
    reason: str = ""
    stamp: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class JudgeAnswers:
    """All that a judge has answered, from which attempts get their numbers."""

    answers: Mapping[str, tuple[Answer, ...]]  # question's key -> an answer for each repeat
    judge: Judge
    variant: str
    samples: Mapping[str, SampleAnswer]


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """The reply that a prompt asks for, both ways: people's grades as a reply, and a reply as grades.

    A judge is tuned on the first and held to people by the second.
    """

    names: tuple[str, ...]  # of the grades, as people's ratings name their criteria
    scale: tuple[float, float]
    write: Callable[[Sequence[float]], str]
    read: Callable[[str], Sequence[float]]  # `ParseError` for any other reply


@dataclass(frozen=True, slots=True)
class Questions:
    """What a benchmark asks: about outputs, and before that about samples."""

    metrics: tuple[str, ...]  # that rest on the judge
    drafts: Callable[[Iterable[Chunk], str, Mapping[str, SampleAnswer]], Iterator[Draft]]
    record: Callable[[dict[str, Any], dict[str, Any], JudgeAnswers], None]  # (line, attempt's entry, ...)
    sample_drafts: Callable[[Iterable[Chunk]], Iterator[Draft]] | None = None  # key: `<sample id>:...`
    using: Callable[[PromptSet], Questions] | None = None  # the same questions in other words
    forms: Mapping[str, ReplyForm] = field(default_factory=dict)  # by the prompt's id
    adds: tuple[str, ...] = ()  # metrics that only some words ask for: they apply where the others do


@contextlib.contextmanager
def open_session(
    questions: Questions,
    options: JudgeOptions,
    run: Run,
    dataset: Dataset,
    chunks: Sequence[Chunk],
    variant: str,
) -> Iterator[JudgeSession]:
    """The judge is opened once at once: a wrong key or a private dataset stops before any work."""
    prompts = open_prompts(options.prompts)
    if prompts.prompts:
        if questions.using is None:
            raise ConfigError("this benchmark asks in its own words alone", fix="leave out --prompts")
        questions = questions.using(prompts)
    home = dataset.folder / "judge" if os.access(dataset.folder, os.W_OK) else run.folder / "judge/samples"

    def about_samples() -> AbstractContextManager[Judge]:
        return open_judge(replace(options, repeats=1), home, dataset=dataset.info)

    def about_outputs(spent: float = 0.0) -> AbstractContextManager[Judge]:
        """`spent` on samples counts against the same limit."""
        limit = None if options.cost_limit is None else max(0.0, options.cost_limit - spent)
        return open_judge(replace(options, cost_limit=limit), run.folder / "judge", dataset=dataset.info)

    with about_outputs():
        pass
    with contextlib.ExitStack() as stack:
        yield JudgeSession(questions, about_samples, about_outputs, stack, chunks, variant)


class JudgeSession:
    """A benchmark's questions about one run. The dataset's folder is held while samples are asked about."""

    def __init__(
        self,
        questions: Questions,
        about_samples: Callable[[], AbstractContextManager[Judge]],
        about_outputs: Callable[[float], AbstractContextManager[Judge]],
        stack: contextlib.ExitStack,
        chunks: Sequence[Chunk],
        variant: str,
    ) -> None:
        self._questions = questions
        self._about_samples = about_samples
        self._about_outputs = about_outputs
        self._stack = stack
        self._chunks = chunks
        self._variant = variant
        self._answers: JudgeAnswers

    def estimate(self) -> dict[str, Any]:
        """Calls and cost of all questions; those that rest on a reply that is still to come count too."""
        with self._about_outputs(0.0) as judge:
            total = judge.estimate(self._questions.drafts(self._chunks, self._variant, {}))
        if self._questions.sample_drafts is None:
            return total
        with self._about_samples() as judge:
            samples = judge.estimate(self._questions.sample_drafts(self._chunks))
        for key in ("calls", "already_answered", "input_tokens", "output_tokens", "cost_usd", "spent_usd"):
            total[key] = None if total[key] is None or samples[key] is None else total[key] + samples[key]
        return total

    def ask(self, progress: Callable[[int], None] | None) -> dict[str, Any]:
        """Ask everything; what the scores' header says of the judge."""
        samples, sample_record = self._ask_about_samples()
        judge = self._stack.enter_context(self._about_outputs(sample_record.get("cost_usd") or 0.0))
        answers = judge.ask(self._questions.drafts(self._chunks, self._variant, samples), progress)
        self._answers = JudgeAnswers(answers, judge, self._variant, samples)
        record = {**judge.record(self._questions.metrics), "disagreement": disagreement(answers.values())}
        if sample_record:
            record["prompts"] = {**sample_record["prompts"], **record["prompts"]}
            record["preparing"] = sample_record
        return record

    def _ask_about_samples(self) -> tuple[dict[str, SampleAnswer], dict[str, Any]]:
        """The answers by key, and what the header says of them; nothing where no sample needs any."""
        sample_drafts = self._questions.sample_drafts
        if sample_drafts is None or next(sample_drafts(self._chunks), None) is None:
            return {}, {}
        prompts: dict[str, Prompt] = {}

        def drafts() -> Iterator[Draft]:
            for draft in sample_drafts(self._chunks):
                prompts[draft.key] = draft.prompt
                yield draft

        answers = {}
        with contextlib.ExitStack() as stack:
            judge = _entered(stack, self._about_samples)
            for key, (answer, *_) in judge.ask(drafts()).items():
                reason = "" if answer.done else f"judge {answer.state}: {answer.reason}"
                answers[key] = SampleAnswer(answer.value, reason, judge.stamp((answer,), prompts[key]))
            record = judge.record(())
        kept = ("prompts", "states", "repaired", "replies", "usage", "cost_usd")
        return answers, {key: record[key] for key in kept}

    def lines(self, parts: Sequence[Path]) -> Iterator[bytes]:
        """The lines of the parts with the judge's numbers, or the reasons why there are none."""
        for part in parts:
            for line in part.read_text(encoding="utf-8").splitlines(keepends=True):
                yield self._with_answers(line).encode()

    def _with_answers(self, line: str) -> str:
        body = json.loads(line)
        if not set(self._questions.metrics).intersection(body["applies"]):
            return line
        body["applies"] = list(dict.fromkeys((*body["applies"], *self._questions.adds)))
        for attempt in body["attempts"]:
            if NO_OUTPUT not in attempt["unscored"]:
                self._questions.record(body, attempt, self._answers)
        return encode_line(body)


def _entered(stack: contextlib.ExitStack, open_: Callable[[], AbstractContextManager[Judge]]) -> Judge:
    """Runs on one dataset may be scored at once: the second waits, and finds the first one's replies."""
    while True:
        try:
            return stack.enter_context(open_())
        except FolderTakenError:
            time.sleep(_WAIT)


def output_drafts(
    chunks: Iterable[Chunk],
    columns: Sequence[str],
    draft: Callable[[Mapping[str, Any], Output], Iterable[Draft]],
    wanted: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    wanted_by: Sequence[str] = ("id",),
) -> Iterator[Draft]:
    """`draft` for each output that exists, in dataset order; a row group lies in memory.

    `wanted` looks at the columns `wanted_by` alone: a chunk in which it wants nothing is not read.
    """
    for chunk in chunks:
        if not any(wanted(row) for row, _ in chunk.rows(list(wanted_by))):
            continue
        for row, outputs in chunk.rows(list(columns)):
            if wanted(row):
                for output in outputs:
                    if output.path is not None:
                        yield from draft(row, output)


def sample_drafts(
    chunks: Iterable[Chunk],
    columns: Sequence[str],
    prompt: Prompt,
    *,
    key: Callable[[str], str],
    question: Callable[[Mapping[str, Any], Prompt, str], Question],
    wanted: Callable[[Mapping[str, Any]], bool],
    wanted_by: Sequence[str],
) -> Iterator[Draft]:
    """A draft about input and target image for each sample that is `wanted`; a row group lies in memory.

    `wanted` looks at the columns `wanted_by` alone: a chunk in which it wants nothing is not read.
    """
    for chunk in chunks:
        if not any(wanted(row) for row, _ in chunk.rows(list(wanted_by))):
            continue
        for row, _ in chunk.rows(list(columns)):
            if wanted(row):
                text = prompt.fill(instruction=row["prompt"])
                size = png_size(row["input"]["bytes"])
                make = partial(question, row, prompt, text)
                yield Draft(key(row["id"]), make, prompt, sizes=(size, size), characters=len(text))


def record_numbers(
    attempt: dict[str, Any],
    key: str,
    names: Sequence[str],
    answers: JudgeAnswers,
    prompt: Prompt,
    numbers: Callable[[Any], Sequence[float]] = tuple,
) -> tuple[float, ...] | None:
    """The answers to one question as metrics `names`, or the reason beside each; the stamp beside both."""
    given = answers.answers.get(key, ())
    found = combine(given, numbers)
    stamp: dict[str, Any] = {
        **answers.judge.stamp(given, prompt),
        "repeats": sum(answer.done for answer in given),
    }
    attempt.setdefault("judge", {})[key.rpartition(":")[2]] = stamp
    if found.values is None:
        attempt["unscored"] |= dict.fromkeys(names, found.reason)
        return None
    stamp["spread"] = found.spread
    attempt["metrics"] |= dict(zip(names, found.values, strict=True))
    return found.values


def disagreement(answers: Iterable[Sequence[Answer]]) -> dict[str, float] | None:
    """How far repeats lie apart: the largest difference in any criterion, as its mean and its maximum."""
    spreads = [combine(given, _numbers).spread for given in answers if sum(a.done for a in given) > 1]
    if not spreads:
        return None
    return {"n": len(spreads), "mean": math.fsum(spreads) / len(spreads), "largest": max(spreads)}


def _numbers(value: Any) -> Sequence[float]:
    """What a parser made of a reply, as numbers; "unclear" lies halfway between yes and no."""
    found = value.values() if isinstance(value, Mapping) else value
    return tuple(0.5 if one is None else one for one in found)
