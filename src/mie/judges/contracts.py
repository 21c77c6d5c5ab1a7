"""What a benchmark asks a judge, and what comes back.

A benchmark writes `Draft`s, which become `Question`s when it is their turn; only the executor calls a model;
only a question's parser reads a reply. An answer without a value says why; no number is ever made up.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any, Final, Protocol, TypeAlias

from mie.core import retry
from mie.images.hashes import pixel_digest
from mie.records import Pixels

# How an answer ended. Only `done` has a value.
STATES: Final = (
    "done",
    "refused",  # the model declined
    "filtered",  # a content filter stopped the question or the reply
    "rate_limited",  # the server still asked us to wait when the time was up
    "timed_out",
    "truncated",  # the reply hit its token limit
    "unparseable",  # the reply is not in the form that was asked for, even after one repair
    "failed",  # the server or the connection failed, or an image cannot be read
    "over_budget",  # not asked, because the cost limit was reached
)
# A reply came and was paid for: it is kept on disk and never asked for again. The others are asked again.
REPLIED: Final = ("done", "refused", "filtered", "truncated", "unparseable")


class ParseError(Exception):
    """A reply in another form than asked for. The repair attempt tells the model this text."""


# The whole reply -> its value; `ParseError` for every other form than the one asked for.
Parser: TypeAlias = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text with a name and a version. `user` holds `{name}` where `fill` puts a text.

    A text that changes gets a new version: scores can only be compared under the same words.
    """

    id: str
    version: int
    system: str
    user: str = ""
    set: str = ""  # which it belongs to, where it is not one of our default prompts

    @property
    def name(self) -> str:
        return f"{self.id}@{self.version}" + (f" ({self.set})" if self.set else "")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(f"{self.system}\0{self.user}".encode()).hexdigest()

    def fill(self, **texts: str) -> str:
        """`user` with each `{name}` replaced. Braces inside the texts stay as they are.

        A text that stands between `<name>` and `</name>` cannot hold these marks itself: their `<` becomes
        `&lt;`.
        """
        pieces = self.user.split("{")
        out = [pieces[0]]
        for piece in pieces[1:]:
            name, _, rest = piece.partition("}")
            text = texts[name]
            if f"<{name}>" in self.user:
                text = re.sub(rf"<(?=\s*/?\s*{name}\b)", "&lt;", text, flags=re.IGNORECASE)
            out += [text, rest]
        return "".join(out)


@lru_cache
def load_prompt(id: str, version: int) -> Prompt:
    """Read `prompts/<id>.v<version>.txt`: the system text, a line `--- user`, the user text."""
    file = resources.files("mie.judges") / "prompts" / f"{id}.v{version}.txt"
    system, _, user = file.read_text(encoding="utf-8").partition("\n--- user\n")
    return Prompt(id, version, system.strip(), user.strip())


@dataclass(frozen=True)
class Image:
    """Pixels to show, `(H, W)` or `(H, W, 3) uint8`; sent as PNG, lossless, in their own size."""

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
    # What others wrote (an instruction, a description): a verdict that only repeats it is not the judge's.
    quotes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """A question whose images are not read yet. `make` runs in a thread when the executor is ready for it.

    `key` names it within the run, e.g. `<sample id>_<attempt>:rubric`: two drafts never share one. `prompt`,
    `sizes` (height, width of each image) and `characters` are for `--dry-run`, which decodes no images.
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
    """The outcome of one question: a value where the state is `done`, else a reason."""

    state: str  # of STATES
    value: Any = None  # what the parser made of the reply
    reason: str = ""
    model: str = ""  # that replied, as the endpoint names it
    reply: str = ""  # the reply's text, "" where there was none
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
    """What an endpoint replied. `finish` is "stop", "length", "content_filter" or the endpoint's own word."""

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
class CallLimits:
    """How long one question may take: `call` seconds per call, `total` for all its calls and pauses."""

    call: float = 120.0
    retries: int = 6
    total: float = 900.0


class Client(Protocol):
    """A model that can be asked. A `MieError` from `ask` (a wrong key, no such model) stops the scoring."""

    provider: str  # whose machine answers: a host name, "replay" or "local"
    model: str
    parameters: Mapping[str, Any]  # all that may change a reply
    remote: bool  # images leave this machine
    free: bool  # calls cost nothing
    at_once: int | None  # the most calls at the same time; None: any number
    limits: CallLimits

    def ready(self) -> None:
        """Load what `ask` needs (a key, a package, a model); `ConfigError` where it is missing."""

    async def ask(self, request: Request) -> Reply: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """The judge's spec and the options of `mie score --judge SPEC ...`."""

    spec: str
    repeats: int = 1
    cost_limit: float | None = None  # US dollars, over all calls for this run by this judge
    prices: str | None = None  # the user's own price table, a file
    dry_run: bool = False
    allow_remote: bool = False  # the judge may be on another machine
    deidentified: bool = False  # the user confirms that no patient can be identified
    redact: bool = False  # black out text that is found, in what is sent
    allow_phi: bool = False  # send it as it is; logged
    concurrency: int = 16
    time_limit: float | None = None  # seconds for all questions together
    prompts: str | None = None  # a set of prompts: its name, folder or file; ours by default
