"""What calls cost: tokens times a price table, a cost limit, and an estimate before the first call."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml

from mie.errors import ConfigError
from mie.judges.contracts import CallError, Draft, Image, Question, Usage

# Endpoints count images in tiles of different sizes; one token for this many pixels is a typical value.
_PIXELS_PER_TOKEN: Final = 750
_CHARACTERS_PER_TOKEN: Final = 4
_REPLY_TOKENS: Final = 300
_SNAPSHOT: Final = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|\d{3}|latest)")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens."""

    input: float
    output: float

    def of(self, usage: Usage) -> float:
        return (usage.input * self.input + usage.output * self.output) / 1e6


FREE: Final = Price(0.0, 0.0)


def find_price(model: str, table: Mapping[str, Price]) -> Price | None:
    """The model's price, or that of the model of which it is a dated snapshot; None where unknown."""
    if model in table:
        return table[model]
    bare = model.rpartition("/")[2]
    for name, price in table.items():
        if bare == name or (bare.startswith(name) and _SNAPSHOT.fullmatch(bare[len(name) :])):
            return price
    return None


def read_prices(path: Path | str | None = None) -> dict[str, Price]:
    """The built-in price table; the user's own entries come first and win."""
    builtin = (resources.files("mie.judges") / "prices.yaml").read_text(encoding="utf-8")
    own: dict[str, Price] = {}
    if path is not None:
        try:
            own = _prices(Path(path).read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("cannot read the prices", where=path, found=error) from None
    return {
        **own,
        **{name: price for name, price in _prices(builtin, "prices.yaml").items() if name not in own},
    }


def _prices(text: str, where: str) -> dict[str, Price]:
    try:
        body = yaml.safe_load(text) or {}
        table = {str(name): Price(float(p["input"]), float(p["output"])) for name, p in body.items()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "not a price table", where=where, expected="MODEL: {input: 2.5, output: 10}", found=error
        ) from None
    for name, price in table.items():
        if not (0 <= price.input < math.inf and 0 <= price.output < math.inf):
            raise ConfigError(
                "not a price", where=f"{where}: {name}", expected="dollars for a million tokens"
            )
    return table


class Budget:
    """What was spent, and what the calls in progress may cost."""

    def __init__(self, price: Price | None, limit: float | None, before: Iterable[Usage] = ()) -> None:
        self.price = price
        self.limit = limit
        self.spent = 0.0
        self._paid = 0  # replies
        self._reserved = 0.0
        for usage in before:
            self.pay(usage)

    @contextlib.contextmanager
    def reserved(self, guess: Usage) -> Iterator[None]:
        """Reserve the cost of a call while it is in progress; `CallError` where it would exceed the limit.

        A guess below the mean of the replies so far is raised to it.
        """
        dollars = 0.0
        if self.limit is not None and self.price is not None:
            dollars = max(self.price.of(guess), self.spent / max(1, self._paid))
            if self.spent + self._reserved + dollars > self.limit:
                reason = f"the cost limit of {self.limit:g} USD is reached"
                raise CallError("over_budget", reason, retry=False)
        self._reserved += dollars
        try:
            yield
        finally:
            self._reserved -= dollars

    def pay(self, usage: Usage) -> None:
        if self.price is not None:
            self.spent += self.price.of(usage)
            self._paid += 1


def guess_tokens(question: Question) -> Usage:
    """Estimate what one call will use, within a factor of two."""
    texts = sum(len(part) for part in question.parts if isinstance(part, str))
    sizes = [part.pixels.shape for part in question.parts if isinstance(part, Image)]
    return _guess(len(question.prompt.system) + texts, sizes)


def guess_draft(draft: Draft) -> Usage:
    """The same for a draft, whose images are not read."""
    return _guess(len(draft.prompt.system) + draft.characters, draft.sizes)


def _guess(characters: int, sizes: Iterable[tuple[int, ...]]) -> Usage:
    images = sum(math.ceil(size[0] * size[1] / _PIXELS_PER_TOKEN) for size in sizes)
    return Usage(math.ceil(characters / _CHARACTERS_PER_TOKEN) + images, _REPLY_TOKENS)


def usage_of(line: Mapping[str, Any]) -> Usage:
    """The tokens in a line of the journal."""
    usage = line.get("usage") or {}
    return Usage(int(usage.get("input", 0)), int(usage.get("output", 0)))
