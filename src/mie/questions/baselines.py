"""Answerers that look at no image: a constant, what training answers were, and a model of the words alone.

They say how much of a score needs no image. All read text columns only; the last two are fitted on a training
split, by default that of the set they answer.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mie.core.hashing import generator, stable_hash
from mie.errors import ConfigError
from mie.questions.record import LETTERS
from mie.questions.store import QuestionSet, QuestionSubset

COLUMNS: Final = ("id", "kind", "text", "options", "answer", "unit", "task", "flags")
_SPACE: Final = 2**18  # weights of the model of words
_EPOCHS: Final = 6
_RATE: Final = 0.3
_WORD: Final = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Words:
    """A question without its images."""

    id: str
    kind: str
    text: str
    options: tuple[str, ...]
    answer: str  # the key: for fitting alone
    unit: str
    task: str


class Baseline(Protocol):
    """Answers from words. `fit` is called once, before the first answer."""

    fitted: bool  # needs a training split

    def fit(self, train: Sequence[Words]) -> None: ...

    def answer(self, question: Words, options: Sequence[str]) -> str | None:
        """The reply, with the letter that an option has in `options`; None where it has no answer."""


def read_words(part: QuestionSet | QuestionSubset) -> list[Words]:
    """The questions that count, without their images."""
    columns = part.table(list(COLUMNS))
    return [
        Words(id, kind, text, tuple(options or ()), answer, unit, task)
        for id, kind, text, options, answer, unit, task, flags in zip(*columns.values(), strict=True)
        if "written" not in (flags or ()) or "reviewed" in flags
    ]


class Constant:
    """The same letter for every question; no answer to a question without options."""

    fitted = False

    def __init__(self, letter: str = "A") -> None:
        if len(letter) != 1 or letter not in LETTERS:
            raise ConfigError("not a letter of an option", expected="constant:A", found=repr(letter))
        self._letter = letter

    def fit(self, train: Sequence[Words]) -> None:
        pass

    def answer(self, question: Words, options: Sequence[str]) -> str | None:
        return self._letter if question.kind == "closed" else None


class _Fitted:
    """What both fitted baselines do with questions without options: the usual answer of the task."""

    fitted = True

    def __init__(self) -> None:
        self._usual: dict[tuple[str, ...], str] = {}

    def fit(self, train: Sequence[Words]) -> None:
        given: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for question in train:
            if question.kind != "closed":
                for key in self._keys(question):
                    given[key].append(question.answer)
        self._usual = {key: _usual(key[0], answers) for key, answers in given.items()}

    def _keys(self, question: Words) -> list[tuple[str, ...]]:
        """From the most particular to the most general."""
        return [(question.kind, question.unit, question.task), (question.kind, question.unit)]

    def _other(self, question: Words) -> str | None:
        return next((self._usual[key] for key in self._keys(question) if key in self._usual), None)


class Prior(_Fitted):
    """The option that was right most often when it was offered in training, whatever the question."""

    def __init__(self) -> None:
        super().__init__()
        self._right: Counter[tuple[str, str]] = Counter()
        self._offered: Counter[tuple[str, str]] = Counter()

    def fit(self, train: Sequence[Words]) -> None:
        super().fit(train)
        for question in train:
            self._offered.update((question.task, _plain(option)) for option in question.options)
            if question.kind == "closed":
                self._right[question.task, _plain(question.answer)] += 1

    def answer(self, question: Words, options: Sequence[str]) -> str | None:
        if question.kind != "closed":
            return self._other(question)
        shares = [self._share(question.task, _plain(option), len(options)) for option in options]
        # Equal shares: by the option's words, whatever letter it has.
        best = [at for at, share in enumerate(shares) if share == max(shares)]
        return LETTERS[min(best, key=lambda at: stable_hash("prior", question.id, options[at]))]

    def _share(self, task: str, option: str, count: int) -> float:
        key = task, option
        return (self._right[key] + 1 / count) / (self._offered[key] + 1)


class TextOnly(_Fitted):
    """A softmax over the options, from words of the question and of the option, learnt from training."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: NDArray[np.float64] = np.zeros(_SPACE)

    def _keys(self, question: Words) -> list[tuple[str, ...]]:
        return [(question.kind, question.unit, _plain(question.text)), *super()._keys(question)]

    def fit(self, train: Sequence[Words]) -> None:
        super().fit(train)
        closed = [question for question in train if question.kind == "closed"]
        features = [[_features(q.text, option) for option in q.options] for q in closed]
        right = [q.options.index(q.answer) for q in closed]
        squares = np.full(_SPACE, 1e-8)  # AdaGrad: a rare feature still learns when it comes late
        for epoch in range(_EPOCHS):
            for at in generator(epoch).permutation(len(closed)):
                shares = _softmax([float(self._weights[one].sum()) for one in features[at]])
                for number, (one, share) in enumerate(zip(features[at], shares, strict=True)):
                    gradient = share - (number == right[at])
                    squares[one] += gradient * gradient
                    self._weights[one] -= _RATE * gradient / np.sqrt(squares[one])

    def answer(self, question: Words, options: Sequence[str]) -> str | None:
        if question.kind != "closed":
            return self._other(question)
        totals = [float(self._weights[_features(question.text, option)].sum()) for option in options]
        return LETTERS[int(np.argmax(totals))]


BASELINES: Final[Mapping[str, type[Any]]] = {"constant": Constant, "prior": Prior, "text-only": TextOnly}


def training_words(part: QuestionSet | QuestionSubset, where: str | None) -> list[Words]:
    """The training split to fit on: of the set in the folder `where`, or of the set that is answered."""
    train = read_words((part.whole if where is None else QuestionSet(where)).split("train"))
    if not train:
        raise ConfigError(
            "this baseline is fitted on a training split",
            where=where or part.whole.folder,
            expected="questions of the split train",
            found="none",
            fix="build the set with a training split, or name another set: train=FOLDER",
        )
    return train


def _features(question: str, option: str) -> NDArray[np.int64]:
    """The option, its words, and each of them with each word of the question, as places in the weights."""
    asked, words = set(_WORD.findall(question.lower())), set(_WORD.findall(option.lower()))
    whole = " ".join(sorted(words))
    names: list[tuple[str, ...]] = [
        ("o", whole),
        *(("w", word) for word in words),
        ("n", str(len(option) // 8)),
    ]
    names += [("q", word, whole) for word in asked]
    return np.unique(np.array([_place(name) for name in names], np.int64))


def _place(name: tuple[str, ...]) -> int:
    text = "\0".join(name)
    if text not in _PLACES:
        if len(_PLACES) > 2**20:
            _PLACES.clear()
        _PLACES[text] = stable_hash(text) % _SPACE
    return _PLACES[text]


_PLACES: dict[str, int] = {}


def _softmax(values: Iterable[float]) -> NDArray[np.float64]:
    raised = np.array(list(values))
    raised = np.exp(raised - raised.max())
    return np.asarray(raised / raised.sum(), np.float64)


def _usual(kind: str, answers: Sequence[str]) -> str:
    """The median of numbers, the mean of places, the most frequent text."""
    if kind == "number":
        return f"{statistics.median(map(float, answers)):g}"
    if kind in ("point", "box"):
        values = np.mean([json.loads(answer) for answer in answers], axis=0)
        return json.dumps([round(float(value), 4) for value in values])
    counts = Counter(answers)
    return min(counts, key=lambda text: (-counts[text], text))


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
