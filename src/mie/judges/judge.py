"""A judge for one run: opened with the user's options, asked by a benchmark, and put on record."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mie.core.files import folder_lock
from mie.core.spec import parse_spec
from mie.errors import ConfigError
from mie.judges.clients import open_client
from mie.judges.contracts import Answer, Client, Draft, JudgeOptions, Prompt, Usage
from mie.judges.cost import FREE, Budget, find_price, guess_draft, read_prices, usage_of
from mie.judges.executor import Executor
from mie.judges.journal import ReplyJournal
from mie.judges.prompt_sets import open_prompts
from mie.privacy.gate import LOG, Gate, Policy

T = TypeVar("T")


class Judge:
    """What a benchmark asks. Open one with `open_judge`."""

    def __init__(
        self, options: JudgeOptions, client: Client, journal: ReplyJournal, gate: Gate | None = None
    ) -> None:
        self._options = options
        self._gate = gate
        self._client = client
        self._journal = journal
        price = FREE if client.free else find_price(client.model, read_prices(options.prices))
        if price is None and options.cost_limit is not None:
            raise ConfigError(
                "a cost limit needs a price",
                where=f"model {client.model}",
                found="not in the price table",
                fix=f"give --prices FILE with `{client.model}: {{input: ..., output: ...}}`",
            )
        self._executor = Executor(
            client,
            journal,
            Budget(price, options.cost_limit, map(usage_of, journal.lines())),
            repeats=options.repeats,
            concurrency=options.concurrency,
            time_limit=options.time_limit,
            gate=gate,
        )
        self._loop = asyncio.Runner()

    def ask(
        self, drafts: Iterable[Draft], progress: Callable[[int], None] | None = None
    ) -> dict[str, tuple[Answer, ...]]:
        """Each draft's answers, one per repeat. What the journal holds is not asked again."""
        return _outside_loop(lambda: self._loop.run(self._executor.run(drafts, progress)))

    def estimate(self, drafts: Iterable[Draft]) -> dict[str, Any]:
        """Count the calls that are missing, their tokens and cost, within a factor of two. Makes none."""
        calls = answered = 0
        usage = Usage()
        for draft in drafts:
            for repeat in range(self._options.repeats):
                if self._journal.has_key(draft.key, repeat):
                    answered += 1
                else:
                    calls += 1
                    usage += guess_draft(draft)
        price = self._executor.budget.price
        return {
            **self._identity(),
            "calls": calls,
            "already_answered": answered,
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "cost_usd": None if price is None else price.of(usage),
            "spent_usd": None if price is None else self._executor.budget.spent,
        }

    def record(self, metrics: Sequence[str]) -> dict[str, Any]:
        """Who judged, with which prompts and outcome: for the scores' header and the summary.

        `metrics` are those that come from the judge: they can only be compared under the same judge.
        """
        tally, price = self._executor.tally, self._executor.budget.price
        return {
            **self._identity(),
            "metrics": list(metrics),
            "answered_by": sorted(tally.models),
            "prompts": dict(sorted(tally.prompts.items())),
            "prompt_set": open_prompts(self._options.prompts).record(),
            "repeats": self._options.repeats,
            "states": dict(sorted(tally.states.items())),
            "repaired": tally.repaired,
            "replies": tally.replies,
            "usage": {"input": tally.usage.input, "output": tally.usage.output},
            "cost_usd": None if price is None else price.of(tally.usage),
            "deidentified_by_user": self._options.deidentified,
        }

    def stamp(self, answers: Sequence[Answer], prompt: Prompt) -> dict[str, str]:
        """What is stored with one score."""
        models = sorted({answer.model for answer in answers if answer.model})
        return {
            "provider": self._client.provider,
            "model": ", ".join(models) or self._client.model,
            "prompt": prompt.name,
            "sha256": prompt.sha256,
        }

    @property
    def calls(self) -> int:
        """Calls made since this judge was opened."""
        return self._executor.tally.asked

    def close(self) -> None:
        _outside_loop(lambda: self._loop.run(self._client.close()))
        _outside_loop(self._loop.close)
        self._journal.close()
        if self._gate is not None:
            self._gate.close()

    def _identity(self) -> dict[str, Any]:
        return {
            "judge": str(parse_spec(self._options.spec, noun="judge").masked()),
            "provider": self._client.provider,
            "model": self._client.model,
            "parameters": dict(self._client.parameters),
        }


def _outside_loop(work: Callable[[], T]) -> T:
    """Run `work` in this thread, or in another where this one runs an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


@contextlib.contextmanager
def open_judge(
    options: JudgeOptions,
    folder: Path,
    *,
    dataset: Mapping[str, Any] | None,
    client: Client | None = None,
) -> Iterator[Judge]:
    """Open the judge; its replies are kept in `folder`.

    `dataset` is the content of `dataset.json`; None where no image is sent. `MieError` where images may not
    leave this machine; a dry run sends none. `client` is asked instead of the one that the spec names.
    """
    if options.repeats < 1 or options.concurrency < 1:
        raise ConfigError(
            "an option of the judge is out of range", expected="repeats and concurrency of 1 or more"
        )
    client = open_client(options.spec) if client is None else client
    gate = None
    if client.remote and dataset is not None:
        gate = Gate(_policy(options), client.provider, folder / LOG)
    if not options.dry_run:
        check_consent(options, client, "images" if dataset is not None else "words")
        if gate is not None:
            gate.check_statement(dataset)
        client.ready()
    with folder_lock(folder):
        judge = Judge(options, client, ReplyJournal(folder / f"{file_name(client)}.jsonl"), gate)
        try:
            yield judge
        finally:
            judge.close()


def check_consent(options: JudgeOptions, client: Client, what: str) -> None:
    """Raise where the judge is on another machine, and the user has not allowed that it is asked."""
    if client.remote:
        Gate(_policy(options), client.provider).check_consent(what)


def _policy(options: JudgeOptions) -> Policy:
    return Policy(options.deidentified, options.redact, options.allow_phi, options.allow_remote)


def file_name(client: Client) -> str:
    """`host-model`, in characters that every file system accepts."""
    name = f"{client.provider}-{client.model}"
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80]
    if safe == name:
        return safe
    return f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class Combined:
    """Several repeats as one: the means of their values, or the reason why there are none."""

    values: tuple[float, ...] | None
    reason: str = ""
    spread: float = 0.0  # the largest difference between two repeats in any value


def combine(answers: Sequence[Answer], numbers: Callable[[Any], Sequence[float]] = tuple) -> Combined:
    """Average the repeats that are done; `numbers` turns an answer's value into numbers."""
    rows = [tuple(map(float, numbers(answer.value))) for answer in answers if answer.done]
    if not rows:
        reasons = dict.fromkeys(f"judge {answer.state}: {answer.reason}" for answer in answers)
        return Combined(None, "; ".join(reasons) or "the judge was not asked")
    columns = list(zip(*rows, strict=True))
    spread = max((max(column) - min(column) for column in columns), default=0.0)
    return Combined(tuple(math.fsum(column) / len(column) for column in columns), "", spread)
