"""Answers in words against a reference: exact match, ROUGE-1, ROUGE-L and BLEU.

ROUGE (Lin 2004) is the F1 of shared words and of the longest common subsequence, over lower-case words with
Porter's stems. BLEU (Papineni et al. 2002) is that of one sentence with the fourth smoothing of Chen and
Cherry (2014): an order without a match gets a share that shrinks with each such order and grows with the
length of the answer.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

_WORDS: Final = re.compile(r"[a-z0-9]+")
_EDGES: Final = re.compile(r"^[\W_]+|[\W_]+$")
_VOWELS: Final = "aeiou"
_SMOOTHING: Final = 5.0  # K of Chen and Cherry


def exact_match(answer: str, reference: str) -> float:
    """1 where the two are the same but for case, white space and punctuation at the ends.

    >>> exact_match(" Glioma.", "glioma"), exact_match("a glioma", "glioma")
    (1.0, 0.0)
    """
    return float(_bare(answer) == _bare(reference))


def words(text: str) -> list[str]:
    """Lower-case words of letters and digits, stemmed where they have more than three characters."""
    return [stem(word) if len(word) > 3 else word for word in _WORDS.findall(text.lower())]


def rouge_1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """The F1 of the words that both have, each as often as the one that has it less often."""
    shared = sum((Counter(answer) & Counter(reference)).values())
    return _f1(shared, len(answer), len(reference))


def rouge_l(answer: Sequence[str], reference: Sequence[str]) -> float:
    """The F1 of the longest common subsequence."""
    row = [0] * (len(reference) + 1)
    for word in answer:
        before = 0
        for at, other in enumerate(reference, start=1):
            before, row[at] = row[at], before + 1 if word == other else max(row[at], row[at - 1])
    return _f1(row[-1], len(answer), len(reference))


def bleu(answer: Sequence[str], reference: Sequence[str]) -> float:
    """BLEU of one sentence: up to four words in a row, or two where the answer has fewer than four words.

    0 where no word is shared.

    >>> round(bleu("the cat sat on the mat".split(), "the cat is on the mat".split()), 4)
    0.2939
    """
    length = len(answer)
    if not length or not reference:
        return 0.0
    highest = 4 if length >= 4 else min(2, length)
    total, empty = 0.0, 0
    for order in range(1, highest + 1):
        grams, others = _grams(answer, order), _grams(reference, order)
        matches = float(sum((grams & others).values()))
        if not matches and order == 1:
            return 0.0
        if not matches:
            empty += 1
            matches = math.log(length) / (_SMOOTHING * 2**empty)
        total += math.log(matches / max(1, length - order + 1)) / highest
    penalty = min(0.0, 1 - len(reference) / length)
    return math.exp(total + penalty)


def _grams(text: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(text[at : at + order]) for at in range(len(text) - order + 1))


def _f1(shared: int, first: int, second: int) -> float:
    return 2 * shared / (first + second) if shared else 0.0


def _bare(text: str) -> str:
    return _EDGES.sub("", " ".join(text.casefold().split()))


# ---- Porter's stemmer (Porter 1980, Program 14.3), step by step ----


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """The stem of a lower-case word.

    >>> [stem(word) for word in ("caresses", "ponies", "hopping", "relational", "effective", "lesions")]
    ['caress', 'poni', 'hop', 'relat', 'effect', 'lesion']
    """
    if len(word) <= 2:
        return word
    word = _plurals(word)
    word = _past_and_progressive(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _STEP_2, 0)
    word = _replaced(word, _STEP_3, 0)
    word = _without_suffix(word)
    if word.endswith("e"):
        rest = word[:-1]
        if _measure(rest) > 1 or (_measure(rest) == 1 and not _ends_short(rest)):
            word = rest
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word


_STEP_2: Final = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"),
    ("abli", "able"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"),
    ("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"), ("iveness", "ive"),
    ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble"),
)  # fmt: skip
_STEP_3: Final = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"),
    ("ful", ""), ("ness", ""),
)  # fmt: skip
_STEP_4: Final = (
    "ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti", "ous", "ive", "ize",
    "ion", "al", "er", "ic", "ou",
)  # fmt: skip


def _plurals(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_progressive(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    ending = next((e for e in ("ed", "ing") if word.endswith(e) and _has_vowel(word[: -len(e)])), "")
    if not ending:
        return word
    word = word[: -len(ending)]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if len(word) > 1 and word[-1] == word[-2] and _is_consonant(word, len(word) - 1):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_short(word) else word


def _replaced(word: str, pairs: Sequence[tuple[str, str]], least: int) -> str:
    """The longest suffix of the list is replaced where the measure of what is before it exceeds `least`."""
    found = max(
        (pair for pair in pairs if word.endswith(pair[0])), key=lambda pair: len(pair[0]), default=None
    )
    if found is None:
        return word
    rest = word[: -len(found[0])]
    return rest + found[1] if _measure(rest) > least else word


def _without_suffix(word: str) -> str:
    suffix = max((s for s in _STEP_4 if word.endswith(s)), key=len, default="")
    if not suffix:
        return word
    rest = word[: -len(suffix)]
    if _measure(rest) <= 1 or (suffix == "ion" and not rest.endswith(("s", "t"))):
        return word
    return rest


def _is_consonant(word: str, at: int) -> bool:
    if word[at] in _VOWELS:
        return False
    return word[at] != "y" or at == 0 or not _is_consonant(word, at - 1)


def _measure(word: str) -> int:
    """How often a consonant follows a vowel: m of `[C](VC)^m[V]`."""
    kinds = [_is_consonant(word, at) for at in range(len(word))]
    return sum(second and not first for first, second in pairwise(kinds))


def _has_vowel(word: str) -> bool:
    return any(not _is_consonant(word, at) for at in range(len(word)))


def _ends_short(word: str) -> bool:
    """Consonant, vowel, consonant at the end, the last of them not w, x or y."""
    if len(word) < 3 or word[-1] in "wxy":
        return False
    kinds = [_is_consonant(word, at) for at in range(len(word) - 3, len(word))]
    return kinds == [True, False, True]
