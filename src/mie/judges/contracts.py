"""What a protocol asks a judge, and what comes back.

A protocol writes `Draft`s, which become `Question`s when their turn comes; only the executor calls a model;
only a question's parser reads a reply. An answer without a value says why; it is never a number by default.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias

from mie.core import retry
from mie.images.hashes import pixel_digest
from mie.records import Pixels

# How an answer ended. Only `done` has a value.
STATES: Final = (
    "done",
    "refused",  # the model declined
    "filtered",  # a content filter stopped the question or the reply
    "rate_limited",  # still told to wait when patience ran out
    "timed_out",
    "truncated",  # the reply hit its token limit
    "unparseable",  # the reply is not what was asked for, even after one repair
    "failed",  # errors of the server or the connection, or an image that cannot be read
    "over_budget",  # not asked: the cost limit was reached
)
# A reply came, so these were paid for: kept on disk and never asked again. The others are asked again.
REPLIED: Final = ("done", "refused", "filtered", "truncated", "unparseable")


class ParseError(Exception):
    """A reply that is not what was asked for. The text is told to the model in the repair attempt."""


# The whole reply -> its value; `ParseError` for anything that is not exactly what was asked for.
Parser: TypeAlias = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text of our own with a name and a version; `prompts.load_prompt` reads it from its file.

    `user` holds `{name}` where `Question` texts are filled in.
    """

    id: str
    version: int
    system: str
    user: str = ""

    @property
    def name(self) -> str:
        return f"{self.id}@{self.version}"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(f"{self.system}\0{self.user}".encode()).hexdigest()

    def fill(self, **texts: str) -> str:
        """`user` with each `{name}` replaced. Braces inside the texts stay as they are."""
        pieces = self.user.split("{")
        out = [pieces[0]]
        for piece in pieces[1:]:
            name, _, rest = piece.partition("}")
            out += [texts[name], rest]
        return "".join(out)


@dataclass(frozen=True)
class Image:
    """Pixels to be shown, `(H, W)` or `(H, W, 3) uint8`; sent as PNG, without loss, in their own size."""

    pixels: Pixels

    @cached_property
    def digest(self) -> str:
        return pixel_digest(self.pixels).hex()


Part: TypeAlias = str | Image


@dataclass(frozen=True, slots=True)
class Question:
    """One call: the prompt's system text, then one user message of `parts` in order."""

    prompt: Prompt
    parts: tuple[Part, ...]
    parser: Parser
    schema: Mapping[str, Any] | None = None  # JSON schema of the reply, for endpoints that can promise one


@dataclass(frozen=True, slots=True)
class Draft:
    """A question that is not yet read from disk. `make` runs in a thread when the executor has room for it.

    `key` names it within the run, e.g. `<sample id>_<attempt>:rubric`: two drafts never share one. `prompt`,
    `sizes` (height, width of each image) and `characters` are for `--dry-run`, which decodes no pixels.
    """

    key: str
    make: Callable[[], Question]
    prompt: Prompt
    sizes: tuple[tuple[int, int], ...] = ()
    characters: int = 0  # of the user's texts


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the endpoint counts them."""

    input: int = 0
    output: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.input + other.input, self.output + other.output)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question: a value where the state is `done`, else a reason."""

    state: str  # of STATES
    value: Any = None  # what the parser made of the reply
    reason: str = ""
    model: str = ""  # as the endpoint names the one that replied
    reply: str = ""  # its text, "" where none came
    repaired: bool = False

    @property
    def done(self) -> bool:
        return self.state == "done"


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # "system", "user" or "assistant"
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends: one conversation, and the name of the question for clients that look it up."""

    key: str
    repeat: int
    messages: tuple[Message, ...]
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What an endpoint said. `finish` is "stop", "length", "content_filter" or what else it calls it."""

    text: str
    finish: str = "stop"
    refusal: str | None = None
    model: str = ""
    usage: Usage = field(default_factory=Usage)


class CallError(retry.CallError):
    """A call without a usable reply; `kind` is the state that its answer gets if no other call helps."""

    def __init__(self, kind: str, reason: str, **options: Any) -> None:
        super().__init__(reason, **options)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one question may take: `call` seconds for a call, `total` for all its calls and pauses."""

    call: float = 120.0
    retries: int = 6
    total: float = 900.0


class Client(Protocol):
    """A model that can be asked. A `MieError` from `ask` (a wrong key, no such model) stops the scoring."""

    provider: str  # whose machine answers: a host name, "replay" or "local"
    model: str
    parameters: Mapping[str, Any]  # all that may change a reply
    remote: bool  # images leave this machine
    free: bool  # nobody bills a call
    at_once: int | None  # most calls at a time, None for any number
    patience: Patience

    def ready(self) -> None:
        """Get what asking needs (a key, a package, a model); `ConfigError` where it is missing."""

    async def ask(self, request: Request) -> Reply: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """What the user says about the judge: `mie score --judge SPEC ...`."""

    spec: str
    repeats: int = 1
    cost_limit: float | None = None  # US dollars, over all calls for this run by this judge
    prices: str | None = None  # a price table of the user's own
    dry_run: bool = False
    deidentified: bool = False  # the user's word that no patient can be identified
    concurrency: int = 16
    time_limit: float | None = None  # seconds for all questions together
