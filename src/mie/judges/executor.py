"""The one place that calls a model: drafts in, answers out, every reply on disk before it counts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mie.core.retry import LONGEST_RETRY_AFTER, call_with_retries
from mie.errors import ImageError, MieError
from mie.judges.contracts import (
    Answer,
    CallError,
    Client,
    Draft,
    Image,
    Message,
    ParseError,
    Question,
    Reply,
    Request,
    Usage,
)
from mie.judges.cost import Budget, guess_tokens, usage_of
from mie.judges.journal import ReplyJournal
from mie.judges.quotes import own_verdict
from mie.privacy.gate import Gate

# Questions that are read, or whose replies are written, while others wait for a reply. A sync takes 10 ms
# on a slow disk and a reply may come after 50: fewer would leave connections idle.
_AHEAD: Final = 16
_DECLINES: Final = re.compile(
    r"\W*(?:(?:i['’]m|i am) (?:sorry|unable|not able)|sorry,|i can(?:no|['’])t)\b",
    re.IGNORECASE,
)


class AdaptiveLimit:
    """How many calls run at the same time: one more after a round of good ones, half as many after an error.

    This is what retries of single calls (`mie.core.retry`) cannot do: all calls slow down together, and
    `Retry-After` holds back every call, not only the one that received it. For one event loop.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.limit = float(most)
        self.running = 0
        self._resume = 0.0  # the loop's time before which no call starts
        self._halved = 0.0  # when the limit was last halved
        self._queue: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> float:
        """Wait until a call may start. Returns the time of the start, which `leave` takes."""
        loop = asyncio.get_running_loop()
        while True:
            while self.running >= int(self.limit):
                turn = loop.create_future()
                self._queue.append(turn)
                await turn
            pause = self._resume - loop.time()
            if pause <= 0:
                self.running += 1
                return loop.time()
            await asyncio.sleep(pause)

    def leave(self, started: float, *, failed: bool, retry_after: float | None = None) -> None:
        now = asyncio.get_running_loop().time()
        self.running -= 1
        if not failed:
            self.limit = min(self.most, self.limit + 1 / self.limit)
        elif started >= self._halved:  # else it began under the old limit and tells nothing about the new one
            self.limit = max(1.0, self.limit / 2)
            self._halved = now
        if retry_after:
            self._resume = max(self._resume, now + min(retry_after, LONGEST_RETRY_AFTER))
        free = int(self.limit) - self.running
        while self._queue and free > 0:
            turn = self._queue.popleft()
            if not turn.done():  # cancelled while it waited
                turn.set_result(None)
                free -= 1


@dataclass
class Tally:
    """What became of the questions: the same after a kill and a resume as without."""

    states: dict[str, int] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    prompts: dict[str, str] = field(default_factory=dict)
    replies: int = 0
    repaired: int = 0
    usage: Usage = field(default_factory=Usage)
    asked: int = 0  # calls of this session

    def count(self, answer: Answer) -> None:
        self.states[answer.state] = self.states.get(answer.state, 0) + 1
        self.repaired += answer.repaired
        if answer.model:
            self.models.add(answer.model)


class Executor:
    """Asks a client, within a budget, and keeps its replies in a journal."""

    def __init__(
        self,
        client: Client,
        journal: ReplyJournal,
        budget: Budget,
        *,
        repeats: int = 1,
        concurrency: int = 16,
        time_limit: float | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.client = client
        self.journal = journal
        self.budget = budget
        self.repeats = repeats
        self.tally = Tally()
        self._most = min(concurrency, client.at_once or concurrency)
        self._time_limit = time_limit
        self._draw = random.Random(0)  # noqa: S311 (jitter)
        self._gate = gate
        self._judge: list[Any] = [client.provider, client.model, dict(client.parameters)]
        if gate is not None and gate.policy.redact:  # other pixels, so another reply
            self._judge.append("redacted")
        self._under_way: dict[str, asyncio.Task[Answer]] = {}
        self._used: set[str] = set()  # replies that an answer rests on

    async def run(
        self, drafts: Iterable[Draft], progress: Callable[[int], None] | None = None
    ) -> dict[str, tuple[Answer, ...]]:
        """Every draft's answers by its key. `progress` is told how many drafts are answered.

        The iterator and `make` are called in threads, one at a time for the iterator.
        """
        self._limit = AdaptiveLimit(self._most)
        self._deadline = None
        if self._time_limit is not None:
            self._deadline = asyncio.get_running_loop().time() + self._time_limit
        answers: dict[str, tuple[Answer, ...]] = {}
        source, lock = iter(drafts), threading.Lock()

        async def work() -> None:
            while (drawn := await asyncio.to_thread(_next, source, lock)) is not None:
                draft, question, reason = drawn
                if question is None:
                    outcome = tuple(
                        self._counted(Answer("failed", reason=reason)) for _ in range(self.repeats)
                    )
                else:
                    outcome = tuple([await self._answer(draft.key, question, r) for r in range(self.repeats)])
                answers[draft.key] = outcome
                if progress is not None:
                    progress(len(answers))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._most + _AHEAD):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise _first_error(errors) from None
        finally:
            await self.journal.drain()
        return answers

    async def _answer(self, key: str, question: Question, repeat: int) -> Answer:
        """Two questions with the same content share one call."""
        self.tally.prompts[question.prompt.name] = question.prompt.sha256
        content = content_key(self._judge, question, repeat)
        task = self._under_way.get(content)
        if task is None:
            task = asyncio.ensure_future(self._conversation(key, question, repeat, content))
            self._under_way[content] = task
            task.add_done_callback(lambda _: self._under_way.pop(content, None))
        try:
            return self._counted(await asyncio.shield(task))
        except asyncio.CancelledError:
            task.cancel()
            raise

    def _counted(self, answer: Answer) -> Answer:
        self.tally.count(answer)
        return answer

    async def _conversation(self, key: str, question: Question, repeat: int, content: str) -> Answer:
        """The first reply; where it cannot be parsed, one more."""
        first = (Message("system", (question.prompt.system,)), Message("user", question.parts))
        line = await self._line(Request(key, repeat, first, question.schema), question, content)
        answer = _answer_of(line, question)
        if answer.state != "unparseable":
            return answer
        text = f"Your reply could not be read: {answer.reason}. Reply again, in full, in the form asked for."
        both = (*first, Message("assistant", (answer.reply or " ",)), Message("user", (text,)))
        line = await self._line(Request(key, repeat, both, question.schema), question, f"{content}+repair")
        second = _answer_of(line, question, repaired=True)
        if isinstance(line, dict):
            return second
        # The first reply is on record; the question stays open, and is repaired the next time.
        return Answer(
            second.state, reason=f"{answer.reason}; its repair: {second.reason}", model=answer.model
        )

    async def _line(self, request: Request, question: Question, content: str) -> dict[str, Any] | Answer:
        """The reply's line, from the journal or from the model; an `Answer` where there was no reply."""
        line = self.journal.find(content)
        if line is None:
            if self.client.remote:
                request = await asyncio.to_thread(self._released, request)
            try:
                reply = await self._call(request, guess_tokens(question))
            except CallError as error:
                return Answer(error.kind, reason=error.reason)
            line = self._recorded(request, question, content, reply)
            await self.journal.append(line)
        if content not in self._used:
            self._used.add(content)
            self.tally.replies += 1
            self.tally.usage += usage_of(line)
        return line

    def _released(self, request: Request) -> Request:
        """The request as it may leave this machine; `PrivacyError` where an image must not."""
        images = [part for message in request.messages for part in message.parts if isinstance(part, Image)]
        if not images:
            return request
        if self._gate is None:
            raise MieError("an image would leave this machine unchecked", where=request.key)
        sent = {image.digest: Image(self._gate.release(image.pixels, request.key)) for image in images}
        messages = tuple(
            replace(m, parts=tuple(sent[p.digest] if isinstance(p, Image) else p for p in m.parts))
            for m in request.messages
        )
        return replace(request, messages=messages)

    def _recorded(self, request: Request, question: Question, content: str, reply: Reply) -> dict[str, Any]:
        """A reply as a line of the journal."""
        parts = [part if isinstance(part, str) else {"image": part.digest} for part in question.parts]
        return {
            "content": content,
            "key": request.key,
            "repeat": request.repeat,
            "repair": content.endswith("+repair"),
            "prompt": question.prompt.name,
            "sha256": question.prompt.sha256,
            **({"prompt_set": question.prompt.set} if question.prompt.set else {}),
            "parts": parts,
            "provider": self.client.provider,
            "model": reply.model,
            "reply": reply.text,
            "finish": reply.finish,
            "refusal": reply.refusal,
            "usage": {"input": reply.usage.input, "output": reply.usage.output},
            "cost": None if self.budget.price is None else self.budget.price.of(reply.usage),
        }

    async def _call(self, request: Request, guess: Usage) -> Reply:
        """One reply, with as many tries as the client's limits allow."""
        limits = self.client.limits
        return await call_with_retries(
            lambda: self._try(request, guess), retries=limits.retries, seconds=limits.total, draw=self._draw
        )

    async def _try(self, request: Request, guess: Usage) -> Reply:
        seconds = self.client.limits.call
        started = await self._limit.enter()
        failed, retry_after = False, None
        try:
            if self._deadline is not None and started > self._deadline:
                reason = f"the time limit of {self._time_limit:g} s for all questions has passed"
                raise CallError("timed_out", reason, retry=False)
            with self.budget.reserved(guess):
                self.tally.asked += 1
                async with asyncio.timeout(seconds):
                    reply = await self.client.ask(request)
                self.budget.pay(reply.usage)
                return reply
        except TimeoutError:
            failed = True
            raise CallError("timed_out", f"no reply within {seconds:g} s") from None
        except CallError as error:
            failed, retry_after = error.retry and not error.at_once, error.retry_after
            raise
        finally:
            self._limit.leave(started, failed=failed, retry_after=retry_after)


def content_key(judge: list[Any], question: Question, repeat: int) -> str:
    """A digest of all that a reply depends on: the model, its parameters, the words and the pixels."""
    parts = [["text", p] if isinstance(p, str) else ["image", p.digest] for p in question.parts]
    body = [judge, question.prompt.system, parts, question.schema, repeat]
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _next(source: Iterator[Draft], lock: threading.Lock) -> tuple[Draft, Question | None, str] | None:
    """The next draft as a question with its images' digests, or the reason why it cannot be asked."""
    with lock:
        draft = next(source, None)
    if draft is None:
        return None
    try:
        question = draft.make()
    except ImageError as error:
        return draft, None, error.reason
    for part in question.parts:
        if isinstance(part, Image):
            part.digest  # noqa: B018 (computed here, in a thread, and cached)
    return draft, question, ""


def _answer_of(line: dict[str, Any] | Answer, question: Question, *, repaired: bool = False) -> Answer:
    """The answer that a reply gives."""
    if isinstance(line, Answer):
        return line
    text, model = line["reply"], line["model"]
    if line["refusal"]:
        return Answer("refused", None, str(line["refusal"])[:200], model, text)
    if line["finish"] == "content_filter":
        return Answer("filtered", None, "stopped by a content filter", model, text)
    if line["finish"] == "length":
        return Answer("truncated", None, "the reply hit its token limit", model, text)
    try:
        return Answer("done", own_verdict(question, text), "", model, text, repaired)
    except ParseError as error:
        if _DECLINES.match(text):
            return Answer("refused", None, text[:200], model, text)
        return Answer("unparseable", None, str(error), model, text)


def _first_error(errors: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
