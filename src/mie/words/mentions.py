"""A phrase in a text, and the text with all its phrases."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from mie.words.vocabulary import Sense, Senses, Token

ENDS: Final = frozenset(".;:!?。；：！？¿¡()[]")
COMMAS: Final = frozenset(",，、")
_SMALL: Final = frozenset(("filler", "address", "aside", "indefinite", "only", "unit"))


@dataclass(slots=True, eq=False)  # two mentions of the same phrase are two
class Mention:
    """A phrase in the text. `first` and `last` are tokens, the last one excluded."""

    first: int
    last: int
    senses: tuple[Sense, ...]
    negated: bool = False
    kept: bool = False  # what must stay as it is
    excepted: bool = False
    kinds: frozenset[str] = field(init=False)
    operations: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.set_senses(self.senses)

    def set_senses(self, senses: tuple[Sense, ...]) -> None:
        own = senses if isinstance(senses, Senses) else Senses(senses)
        self.senses, self.kinds, self.operations = own, own.kinds, own.operations

    def of(self, kind: str) -> list[Sense]:
        return [sense for sense in self.senses if sense.kind == kind]

    def says(self, kind: str, value: str | None = None) -> bool:
        if value is None or kind not in self.kinds:
            return kind in self.kinds
        return any(sense.kind == kind and sense.value == value for sense in self.senses)

    def is_free(self) -> bool:
        """Whether it is neither negated nor excepted nor to be kept."""
        return not (self.negated or self.excepted or self.kept)

    def is_small(self) -> bool:
        """Whether it says nothing about what is asked for."""
        return self.kinds <= _SMALL

    def is_all(self, kinds: frozenset[str]) -> bool:
        """Whether it names a place and nothing else: all of these kinds, and more than a small word."""
        return self.kinds <= kinds and not self.is_small()


def first_token(mention: Mention) -> int:
    return mention.first


@dataclass(slots=True)
class Scan:
    text: str
    tokens: list[Token]
    words: list[str]  # folded, misspelt ones corrected
    mentions: list[Mention]
    starts: list[int]  # by token: the first token of its clause
    notes: list[str] = field(default_factory=list)
    covering: list[Mention | None] = field(default_factory=list)  # by token
    languages: frozenset[str] = frozenset()  # other than English
    _firsts: list[int] = field(init=False)
    _by_kind: dict[str, list[Mention]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._firsts = [mention.first for mention in self.mentions]

    @property
    def english(self) -> bool:
        return not self.languages

    def may_name(self, at: int) -> bool:
        """Whether a word that is not known may name a thing: in German, names have a capital letter."""
        if "de" not in self.languages or not self._has_capitals():
            return True
        return self.text[self.tokens[at].start].isupper()

    def _has_capitals(self) -> bool:
        return any(self.text[token.start].isupper() for token in self.tokens[1:] if not token.capitals)

    def within(self, first: int, last: int) -> list[Mention]:
        low = bisect_left(self._firsts, first)
        return self.mentions[low : bisect_left(self._firsts, last, low)]

    def before(self, at: int, count: int = 1) -> list[str]:
        return self.words[max(0, at - count) : at]

    def after(self, at: int, count: int = 1) -> list[str]:
        return self.words[at : at + count]

    def all_of(self, kind: str) -> list[Mention]:
        """The mentions of a kind; ask only once the scopes are marked."""
        if kind not in self._by_kind:
            self._by_kind[kind] = [mention for mention in self.mentions if kind in mention.kinds]
        return list(self._by_kind[kind])

    def written(self, first: int, last: int) -> str:
        return self.text[self.tokens[first].start : self.tokens[last - 1].end]
