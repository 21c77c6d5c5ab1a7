"""How a protocol asks a judge: first about samples, where something is missing there, then about outputs.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mie.core.files import FolderTakenError
from mie.datasets.dataset import Dataset
from mie.editors.runs import Run
from mie.judges import Answer, Draft, Judge, JudgeOptions, Prompt, combine, open_judge
from mie.scoring.chunks import Chunk, Output
from mie.scoring.results import NO_OUTPUT

_WAIT: Final = 0.5  # seconds between two tries

Answers = Mapping[str, tuple[Answer, ...]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a judge said about a sample: `value`, or the reason why there is none, and who said it."""

    value: Any
    reason: str = ""
    stamp: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Filling:
    """What fills one attempt's entry."""

    answers: Answers
    judge: Judge
    variant: str
    prepared: Mapping[str, Prepared]


@dataclass(frozen=True, slots=True)
class Judging:
    """What a protocol asks: about outputs, and before that about samples."""

    metrics: tuple[str, ...]  # that rest on the judge
    drafts: Callable[[Iterable[Chunk], str, Mapping[str, Prepared]], Iterator[Draft]]
    fill: Callable[[dict[str, Any], dict[str, Any], Filling], None]  # (line, attempt's entry, ...)
    prepare: Callable[[Iterable[Chunk]], Iterator[Draft]] | None = None  # key: `<sample id>:...`


@contextlib.contextmanager
def open_judging(
    judging: Judging,
    options: JudgeOptions,
    run: Run,
    dataset: Dataset,
    chunks: Sequence[Chunk],
    variant: str,
) -> Iterator[Asking]:
    """The judge is opened once at once: a wrong key or a private dataset stops before any work."""
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
        yield Asking(judging, about_samples, about_outputs, stack, chunks, variant)


class Asking:
    """A protocol's questions about one run. The dataset's folder is held only while samples are asked for."""

    def __init__(
        self,
        judging: Judging,
        about_samples: Callable[[], AbstractContextManager[Judge]],
        about_outputs: Callable[[float], AbstractContextManager[Judge]],
        stack: contextlib.ExitStack,
        chunks: Sequence[Chunk],
        variant: str,
    ) -> None:
        self._judging = judging
        self._about_samples = about_samples
        self._about_outputs = about_outputs
        self._stack = stack
        self._chunks = chunks
        self._variant = variant
        self._filling: Filling

    def estimate(self) -> dict[str, Any]:
        """Calls and cost of all questions; those that rest on a reply that is still to come count too."""
        with self._about_outputs(0.0) as judge:
            found = judge.estimate(self._judging.drafts(self._chunks, self._variant, {}))
        if self._judging.prepare is None:
            return found
        with self._about_samples() as judge:
            before = judge.estimate(self._judging.prepare(self._chunks))
        for key in ("calls", "already_answered", "input_tokens", "output_tokens", "cost_usd", "spent_usd"):
            found[key] = None if found[key] is None or before[key] is None else found[key] + before[key]
        return found

    def ask(self, progress: Callable[[int], None] | None) -> dict[str, Any]:
        """Ask everything; what the scores' header says of the judge."""
        prepared, preparing = self._prepare()
        judge = self._stack.enter_context(self._about_outputs(preparing.get("cost_usd") or 0.0))
        answers = judge.ask(self._judging.drafts(self._chunks, self._variant, prepared), progress)
        self._filling = Filling(answers, judge, self._variant, prepared)
        record = {**judge.record(self._judging.metrics), "disagreement": disagreement(answers.values())}
        if preparing:
            record["prompts"] = {**preparing["prompts"], **record["prompts"]}
            record["preparing"] = preparing
        return record

    def _prepare(self) -> tuple[dict[str, Prepared], dict[str, Any]]:
        prepare = self._judging.prepare
        if prepare is None or next(prepare(self._chunks), None) is None:
            return {}, {}
        prompts: dict[str, Prompt] = {}

        def drafts() -> Iterator[Draft]:
            for draft in prepare(self._chunks):
                prompts[draft.key] = draft.prompt
                yield draft

        prepared = {}
        with contextlib.ExitStack() as stack:
            judge = _entered(stack, self._about_samples)
            for key, (answer, *_) in judge.ask(drafts()).items():
                reason = "" if answer.done else f"judge {answer.state}: {answer.reason}"
                prepared[key] = Prepared(answer.value, reason, judge.stamp((answer,), prompts[key]))
            record = judge.record(())
        kept = ("prompts", "states", "repaired", "replies", "usage", "cost_usd")
        return prepared, {key: record[key] for key in kept}

    def filled(self, parts: Sequence[Path]) -> Iterator[bytes]:
        """The lines of the parts with the judge's numbers, or the reasons why there are none."""
        for part in parts:
            for line in part.read_text(encoding="utf-8").splitlines(keepends=True):
                yield self._filled(line).encode()

    def _filled(self, line: str) -> str:
        body = json.loads(line)
        if not set(self._judging.metrics).intersection(body["applies"]):
            return line
        for attempt in body["attempts"]:
            if NO_OUTPUT not in attempt["unscored"]:
                self._judging.fill(body, attempt, self._filling)
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")) + "\n"


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


def fill_numbers(
    attempt: dict[str, Any],
    key: str,
    names: Sequence[str],
    filling: Filling,
    prompt: Prompt,
    numbers: Callable[[Any], Sequence[float]] = tuple,
) -> tuple[float, ...] | None:
    """The answers to one question as metrics `names`, or the reason beside each; the stamp beside both."""
    given = filling.answers.get(key, ())
    found = combine(given, numbers)
    stamp: dict[str, Any] = {
        **filling.judge.stamp(given, prompt),
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
