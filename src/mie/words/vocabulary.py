"""The words that an instruction may use, of `vocabulary.yaml`, and a text as tokens to match them with."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from mie.core.yaml_files import read_mapping
from mie.vocabulary import MODALITIES

OPERATIONS: Final = ("perception", "removal", "addition", "inpainting", "simulation", "transformation")
LANGUAGES: Final = ("en", "de", "fr", "es", "zh")
_FILE: Final = Path(__file__).with_name("vocabulary.yaml")
# A number, a word (letters, then digits: "T1"), one Chinese character, or a sign. Hyphens and apostrophes
# part words: "low-dose" and "low dose" are the same.
_TOKEN: Final = re.compile(
    r"(?<![\w.])-\d+(?:[.,]\d+)?|\d+(?:[.,]\d+)?|[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+\d*|[^\w\s'’`´\-‐‑–—]"
)
_LETTERS: Final = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "æ": "ae", "œ": "oe", "ø": "oe", "ß": "ss"})
_WHOLE: Final = {"grey": "gray", "greys": "grays", "centre": "center", "centred": "centered"}
_INNER_ARTICLE: Final = re.compile(r"(?<=\w) (?:the|their) (?=\w)")  # "blood in ventricles"
_IZE: Final = re.compile(r"(?<=\w{3})is(e|ed|es|er|ing|ation)$")
_LONG: Final = 5  # letters from which British spelling is folded: "four" and "does" are other words
_SHORT: Final = 3  # letters of an abbreviation that counts in capitals alone: "LA" is no French article


class Token(NamedTuple):
    text: str  # folded
    start: int
    end: int
    capitals: bool = False  # written in capital letters


@lru_cache(4096)
def fold(word: str) -> str:
    """One spelling of a word: lower case, without accents, American.

    >>> fold("Tumour"), fold("œdème"), fold("Oedema"), fold("four")
    ('tumor', 'edeme', 'edema', 'four')
    """
    word = word.casefold().translate(_LETTERS)
    word = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
    if len(word) < _LONG:
        return _WHOLE.get(word, word)
    word = word.replace("oe", "e").replace("ae", "e").replace("our", "or").replace("artefact", "artifact")
    return _WHOLE.get(word, _IZE.sub(r"iz\1", word))


def tokens(text: str) -> list[Token]:
    return [Token(fold(m[0]), m.start(), m.end(), m[0].isupper()) for m in _TOKEN.finditer(text)]


@lru_cache(8192)
def phrase(text: str) -> tuple[str, ...]:
    return tuple(token.text for token in tokens(text))


def word_set(words: str) -> frozenset[str]:
    """Folded words, to look up those of a text."""
    return frozenset(map(fold, words.split()))


class Sense(NamedTuple):
    """What a phrase may mean."""

    kind: str  # "target", "colour", "operation", ...
    value: str
    rank: int = 0  # lower is nearer: 0 a name, 1 a synonym, 2 a plural that follows from one
    modality: str | None = None  # true in this modality alone
    capitals: bool = False  # an abbreviation that must be written in capitals


class Senses(tuple[Sense, ...]):
    """The senses of a phrase; what parsing asks of them a thousand times is worked out once."""

    kinds: frozenset[str]
    operations: frozenset[str]
    capitals: bool  # some count in capitals alone

    def __new__(cls, senses: Iterable[Sense]) -> Senses:
        self = super().__new__(cls, senses)
        self.kinds = frozenset([sense.kind for sense in self])
        self.operations = frozenset([sense.value for sense in self if sense.kind == "operation"])
        self.capitals = any(sense.capitals for sense in self)
        return self


@dataclass(frozen=True, slots=True)
class TargetWords:
    """One target: a structure, a lesion, or a general word for several."""

    name: str
    kind: str
    plural: bool = False
    modalities: tuple[str, ...] = ()  # none: a general word
    parents: tuple[str, ...] = ()
    sides: str | None = None  # "paired", "either"
    side: str | None = None  # the name says it
    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by language
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by modality


@dataclass(frozen=True, slots=True)
class Transformation:
    key: str
    name: str
    task: str
    modalities: tuple[str, ...]


class Vocabulary:
    """Every phrase with its senses."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self.targets = {name: _target(name, entry) for name, entry in body["targets"].items()}
        self.sided = {(p, t.side): t for t in self.targets.values() if t.side for p in t.parents}
        self.transformations = {
            key: Transformation(key, entry["name"], entry["task"], _split(entry["in"]))
            for key, entry in body["transformations"].items()
        }
        self.colours = tuple(body["colours"])
        self.windows = tuple(body["windows"])
        self.operations = OPERATIONS
        self.images = {name: str(entry["kind"]) for name, entry in body["images"].items()}
        self.senses: dict[tuple[str, ...], list[Sense]] = {}
        self._lengths: dict[str, set[int]] = {}  # by first token
        self.spellings: dict[str, str] = {}  # words as they are written, where they are folded: "tumour"
        for entry in self.targets.values():
            self._add_target(entry)
        for kind, key in (("colour", "colours"), ("other colour", "other_colours"), ("side", "sides")):
            for name, entry in body[key].items():
                self._add_all(kind, name, [name, *_by_language(entry)])
        for name, entry in body["images"].items():
            self._add_all("image", name, [name, *_by_language(entry)])
            modality = {"sequence": "MRI", "phase": "CT"}.get(entry["kind"], name)
            if modality in MODALITIES:
                self._add_all("modality", modality, [name, *_by_language(entry)])
        for operation, entry in body["operations"].items():
            self._add_all("operation", operation, _by_language(entry))
        for language in ("fr", "es"):
            shows = _split(body["operations"]["perception"][language])
            self._add_all("operation", "perception", _participles(shows, language))
        for key, entry in body["transformations"].items():
            named = [] if "goal" in entry else [entry["name"]]  # "MRI to PET" says where it leads
            self._add_all("sure", key, [*named, *_split(entry.get("sure", ""))])
            self._add_all("hint", key, _split(entry.get("hint", "")))
        for name, synonyms in body["modalities"].items():
            self._add_all("modality", name, _split(synonyms))
        for name, synonyms in body["windows"].items():
            self._add_all("window", name, [name, *_split(synonyms)])
        for name, synonyms in body["organs"].items():
            self._add_all("organ", name, _split(synonyms))
        self._add_all("anatomy", "anatomy", _split(body["anatomies"]))
        for name, words in body["grammar"].items():
            self._add_all(name, name, _split(words))
        self._add_all("filler", "filler", (w for words in body["filler"].values() for w in _split(words)))
        inflected: set[str] = set()
        for entry in self.targets.values():
            for language in ("de", "fr", "es"):
                for word in entry.synonyms.get(language, ()):
                    for form in map(_folded, _inflected(phrase(word), language)):
                        if form not in self.senses:  # no other word of any language
                            inflected.update(form)
                            self._put(form, Sense("target", entry.name, 2))
        self._fillers = {
            language: word_set(words.replace(",", " ")) for language, words in body["filler"].items()
        }
        english = (entry.get("en", "") for entry in (*body["operations"].values(), *body["targets"].values()))
        spoken = " ".join(word for words in english for word in _split(words))
        self._english = self._fillers["en"] | word_set(spoken.replace("-", " "))
        self.phrases = {key: Senses(senses) for key, senses in self.senses.items()}
        self._longest = {first: sorted(lengths, reverse=True) for first, lengths in self._lengths.items()}
        self.homographs = {
            fold(word): language for language, words in body["homographs"].items() for word in _split(words)
        }
        self.ordinary = frozenset(body["ordinary"].split())
        self.words = frozenset(word for key in self.senses for word in key)
        self.foreign = self._other_languages(body, inflected)
        for language in ("de", "fr", "es"):  # "enlève" shows French as "les" does
            verbs = {w for entry in body["operations"].values() for w in _split(entry.get(language, ""))}
            own = {word for text in verbs for word in phrase(text)} & self.foreign
            self._fillers[language] = self._fillers[language] | own

    def _other_languages(self, body: Mapping[str, Any], inflected: set[str]) -> frozenset[str]:
        """Words of German, French or Spanish alone: an English text is not corrected to them."""
        groups = [
            body[key] for key in ("targets", "operations", "colours", "other_colours", "sides", "images")
        ]
        entries = [entry for group in groups for entry in group.values()]
        own = {word for name in (*self.targets, *self.colours) for word in phrase(name)} | self._english
        other = set(inflected)
        for entry in (*entries, body["filler"]):
            own |= {word for text in _split(entry.get("en", "")) for word in phrase(text)}
            for language in ("de", "fr", "es"):
                other |= {word for text in _split(entry.get(language, "")) for word in phrase(text)}
        for words in (*body["grammar"].values(), *body["modalities"].values()):
            own |= {word for text in _split(words) for word in phrase(text)}
        return frozenset(other - own)

    def _add_target(self, entry: TargetWords) -> None:
        english = entry.synonyms.get("en", ())
        every = [word for many in entry.synonyms.values() for word in many]
        for rank, words in ((0, [entry.name]), (1, every)):
            for word in words:
                self._add(word, Sense("target", entry.name, rank, None, _in_capitals(word)))
        for modality, own_words in entry.only.items():
            for word in own_words:
                self._add(word, Sense("target", entry.name, 0, modality, _in_capitals(word)))
        for word in (entry.name, *english, *(w for many in entry.only.values() for w in many)):
            own = next((m for m, many in entry.only.items() if word in many), None)
            for form in map(_folded, _numbers(phrase(word))):
                self._put(form, Sense("target", entry.name, 2, own))

    def _add_all(self, kind: str, value: str, words: Iterable[str]) -> None:
        for word in words:
            self._add(word, Sense(kind, value, capitals=kind == "side" and _in_capitals(word)))

    def _add(self, word: str, sense: Sense) -> None:
        bare = _INNER_ARTICLE.sub(" ", word)
        if bare != word and sense.kind in ("target", "operation"):
            self._put(phrase(bare), sense)
        for match in _TOKEN.finditer(word.casefold()):
            if match[0].isascii() and fold(match[0]) != match[0]:
                self.spellings[match[0]] = fold(match[0])
        self._put(phrase(word), sense)

    def _put(self, key: tuple[str, ...], sense: Sense) -> None:
        senses = self.senses.setdefault(key, [])
        if not any(
            (s.kind, s.value, s.modality) == (sense.kind, sense.value, sense.modality) for s in senses
        ):
            senses.append(sense)
            self._lengths.setdefault(key[0], set()).add(len(key))

    def longest(self, text: list[str], at: int) -> Iterator[tuple[int, Senses]]:
        """Yield the phrases that begin at a token, longest first, with their senses."""
        for length in self._longest.get(text[at], ()):
            senses = self.phrases.get(tuple(text[at : at + length]))
            if senses is not None and at + length <= len(text):
                yield length, senses

    def languages(self, words: Iterable[str]) -> frozenset[str]:
        """Return the languages other than English that some small word shows; Chinese shows itself."""
        row = {word for word in words if word not in self.homographs} - self._english
        shown = {name for name in ("de", "fr", "es") if row & self._fillers[name]}
        return frozenset(shown | ({"zh"} if any("\u3400" <= word <= "\u9fff" for word in row) else set()))

    def ancestors(self, name: str) -> set[str]:
        """Return what a target is a kind or part of, itself included."""
        above = {name}
        for parent in self.targets[name].parents:
            above |= self.ancestors(parent)
        return above

    def known(self, modality: str | None) -> list[str]:
        """Return the targets that data sets of this modality mark; all of them for None."""
        return [
            target.name
            for target in self.targets.values()
            if target.modalities and (modality is None or modality in target.modalities)
        ]


@cache
def vocabulary() -> Vocabulary:
    """Read the vocabulary, once per process."""
    return Vocabulary(read_mapping(_FILE, "vocabulary", expected="targets:"))


def _target(name: str, entry: Mapping[str, Any]) -> TargetWords:
    modalities = _split(entry.get("in", ""))
    assert set(modalities) <= set(MODALITIES), name  # noqa: S101 (our own file)
    return TargetWords(
        name,
        entry["kind"],
        bool(entry.get("plural", False)),
        modalities,
        _split(entry.get("parents", "")),
        entry.get("sides"),
        entry.get("side"),
        {language: _split(entry[language]) for language in LANGUAGES if language in entry},
        {modality: _split(words) for modality, words in entry.get("only", {}).items()},
    )


def _split(words: str) -> tuple[str, ...]:
    """Return the phrases of a list; of alternatives, every combination.

    >>> _split("hole, white|blank area|part")
    ('hole', 'white area', 'white part', 'blank area', 'blank part')
    """
    phrases = (word.strip() for word in words.split(",") if word.strip())
    return tuple(
        " ".join(row) for one in phrases for row in product(*(word.split("|") for word in one.split(" ")))
    )


def _by_language(entry: Mapping[str, Any]) -> list[str]:
    return [word for language in LANGUAGES for word in _split(entry.get(language, ""))]


def _in_capitals(word: str) -> bool:
    return word.isupper() and word.isascii() and word.isalpha() and len(word) <= _SHORT


def _participles(verbs: Iterable[str], language: str) -> Iterator[str]:
    """Yield "marquée", "marcado" of "marquer", "marcar"; "marqué" is spelt as the verb without its accent."""
    ending = "er" if language == "fr" else "ar"
    forms = ("ée", "ées", "és") if language == "fr" else ("ado", "ada", "ados", "adas")
    for verb in verbs:
        if verb.endswith(ending) and " " not in verb and len(verb) > _LONG:
            yield from (verb.removesuffix(ending) + form for form in forms)


_SMALL_WORDS: Final = word_set(
    "de du d des del la le les l au aux en a el los las der die das im in mit par por"
)


def _folded(key: tuple[str, ...]) -> tuple[str, ...]:
    """A form as it is looked up: "bilises" is folded to "bilizes"."""
    return tuple(map(fold, key))


def _inflected(key: tuple[str, ...], language: str) -> Iterator[tuple[str, ...]]:
    """Yield plurals (French, Spanish: of every word) and cases (German: of the last word)."""
    if language == "de":
        if len(key[-1]) > _SHORT and key[-1].isalpha():
            endings = ("n", "s") if key[-1].endswith("e") else ("e", "en", "n", "s", "es")
            yield from ((*key[:-1], key[-1] + ending) for ending in endings)
        return
    plural = tuple(
        word
        if word in _SMALL_WORDS or word.endswith(("s", "x", "z")) or not word.isalpha()
        else f"{word}es"
        if language == "es" and word[-1] not in "aeiou"
        else f"{word}s"
        for word in key
    )
    if plural != key:
        yield plural


def _numbers(key: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield an English phrase in the other number: of its last word, or of the one before "of"."""
    at = key.index("of") - 1 if "of" in key[1:] else len(key) - 1
    word = key[at]
    if not word.isalpha() or len(word) < _SHORT or not word.isascii():
        return
    forms = {f"{word}es"} if word.endswith(("s", "x", "ch")) else {f"{word}s"}
    if word.endswith("y"):
        forms = {f"{word[:-1]}ies" if word[-2] not in "aeiou" else f"{word}s"}
    if word.endswith("ies"):
        forms.add(f"{word[:-3]}y")
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        forms.add(word[:-1])
    for form in forms:
        yield (*key[:at], form, *key[at + 1 :])
