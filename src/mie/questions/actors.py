"""`mie vqa run --engine ray`: one actor per GPU answers, this process alone keeps the replies.

An actor opens the answerer's spec by itself, so that nothing but questions and replies travels. A question
that ends two actors has no reply; the same command asks it again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from mie.core.registry import unknown_name
from mie.core.spec import Spec, construct, parse_spec
from mie.datasets.cluster import Actors, ActorsDiedError
from mie.datasets.engine import ENGINES
from mie.errors import ConfigError
from mie.judges.clients import open_client
from mie.judges.contracts import CallError, Client, Reply, Request
from mie.questions.programs import Command


def open_answerer(spec: Spec) -> Client:
    """The client of a spec: a program, or whatever can be a judge."""
    if spec.name == "command":
        return cast(Client, construct(Command, spec, noun="answerer"))
    return open_client(spec)


def on_engine(engine: str, client: Client, spec: Spec | None, workers: int | None) -> Client:
    """The answerer on the engine of this name; on the local one as it is. An object has no spec."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if engine == "local":
        return client
    if spec is None:
        raise ConfigError(
            "other processes cannot be given this answerer",
            expected="a spec such as 'local:FOLDER' with engine='ray'",
            found=f"{client.provider}:{client.model}",
        )
    if client.remote or not client.free:
        raise ConfigError(
            f"{spec.name} is asked from this machine alone: it keeps account of what was paid",
            expected="engine local",
            found=engine,
            fix="use --concurrency for more calls at the same time",
        )
    return OnActors(client, spec, workers)


class OnActors:
    """A client whose questions are answered by actors of a Ray cluster, each with a copy of it."""

    def __init__(self, client: Client, spec: Spec, workers: int | None) -> None:
        self.provider, self.model, self.parameters = client.provider, client.model, client.parameters
        self.remote, self.free, self.limits = client.remote, client.free, client.limits
        self._actors = Actors(_Copy, str(spec), workers)
        self.at_once: int | None = self._actors.count

    def ready(self) -> None:
        self._actors.load()

    async def ask(self, request: Request) -> Reply:
        try:
            reply = await asyncio.to_thread(self._actors.call, request)
        except ActorsDiedError as error:
            raise CallError("failed", f"the process that answered it {error}", retry=False) from None
        if isinstance(reply, _Failed):
            raise CallError(reply.kind, reply.reason, retry=reply.retry, retry_after=reply.retry_after)
        return cast(Reply, reply)

    async def close(self) -> None:
        self._actors.close()


@dataclass(frozen=True, slots=True)
class _Failed:
    """A `CallError` on its way between processes."""

    kind: str
    reason: str
    retry: bool
    retry_after: float | None


class _Copy:
    """An actor's own copy of the answerer."""

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._client: Client | None = None

    def load(self) -> None:
        self._opened()

    def work(self, item: Request) -> Reply | _Failed:
        try:
            return asyncio.run(self._opened().ask(item))
        except CallError as error:
            return _Failed(error.kind, error.reason, error.retry, error.retry_after)

    def _opened(self) -> Client:
        if self._client is None:
            client = open_answerer(parse_spec(self._spec, noun="answerer"))
            client.ready()
            self._client = client
        return self._client
