"""Wide wordings: a recipe's sentences with synonyms for their targets, in the frames of everyday use.

Chosen by `wordings: wide` in a recipe. Whatever is made parses back to what the plain sentence asks for;
otherwise the plain sentence stays. Some synonyms are kept for the test split, always the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np

from mie.core.hashing import generator, stable_hash
from mie.datasets.faithful import any_of
from mie.records import Sample
from mie.words import Parse, parse, vocabulary

FRAMES: Final = ("{}", "Next image. {}", "Hello. {}", "{} Thank you.", "For the teaching file: {}")
_TEST_ONLY: Final = 4  # one synonym in so many
_LONGEST: Final = 4  # words of a synonym
_JOINED: Final = re.compile(r" (?:of|in|around|on) ")


class Wide(NamedTuple):
    """How a plain sentence was widened."""

    frame: str
    spoken: dict[str, str]  # target -> the word that stands for it

    def of(self, sentence: str) -> str:
        names = any_of(self.spoken)
        swapped = names.sub(lambda m: _as_written(m[0], self.spoken), sentence) if names else sentence
        return self.frame.replace("{}", swapped)

    def plain(self, prompt: str) -> str:
        """Return the sentence that `of` made the prompt from."""
        before, after = self.frame.split("{}")
        sentence = prompt.removeprefix(before).removesuffix(after)
        back = {word: name for name, word in self.spoken.items()}
        words = any_of(back)
        return words.sub(lambda m: _as_written(m[0], back), sentence) if words else sentence


def widened(sample: Sample) -> Sample:
    """Return the sample in a wide wording, drawn by its seed; `params["wide"]` says which."""
    draw = generator(stable_hash("wide wordings", sample.seed))
    names = targets_of(sample.target, sample.params)
    wide = drawn(sample.prompt, names, sample.modality, sample.split, draw)
    params = {**sample.params, "wide": {"frame": wide.frame, "spoken": wide.spoken}}
    if "named" in params:
        plain = Wide("{}", wide.spoken)
        params["named"] = [plain.of(str(word)) for word in params["named"]]
    template = wide.frame.replace("{}", sample.prompt_template)
    return replace(sample, prompt=wide.of(sample.prompt), prompt_template=template, params=params)


def targets_of(target: str, params: Mapping[str, Any]) -> list[str]:
    """Return the names of a sample's targets; none for a transformation, which is no thing in the image."""
    if "classes" in params:
        return [str(c["target"]) for c in params["classes"]]
    return [name for name in (target, *target.split(", ")) if name in vocabulary().targets]


def drawn(sentence: str, names: Sequence[str], modality: str, split: str, draw: np.random.Generator) -> Wide:
    """Draw a frame and a word for each name; the plain one where it would ask for something else."""
    frame = str(draw.choice(FRAMES))
    spoken = {name: str(draw.choice(words_for(name, modality, split == "test"))) for name in names}
    named = any_of(names)
    there = {match[0].casefold() for match in named.finditer(sentence)} if named else set()
    # A name inside another's ("liver" in "liver tumours") stays, or it would be swapped there too.
    inner = {a for a in names for b in names if a != b and a.casefold() in b.casefold()}
    spoken = {
        name: word
        for name, word in spoken.items()
        if word != name and name.casefold() in there and name not in inner
    }
    for wide in (Wide(frame, spoken), Wide("{}", spoken), Wide(frame, {})):
        text = wide.of(sentence)
        if wide.plain(text) == sentence and _same(sentence, text, modality):
            return wide
    return Wide("{}", {})


@cache
def words_for(name: str, modality: str, for_test: bool) -> tuple[str, ...]:
    """Return a target's name and the synonyms that mean it, with or without the modality, in its number."""
    target = vocabulary().targets.get(name)
    synonyms = target.synonyms.get("en", ()) if target else ()
    fitting = (
        word
        for word in synonyms
        if target is not None
        and word.isascii()
        and not word.isupper()
        and len(word.split()) <= _LONGEST
        and not _JOINED.search(word)
        and _is_plural(word) == target.plural
        and all(_means(name, word, given) for given in (modality, None))
    )
    return (name, *(word for word in fitting if for_test or not is_test_only(name, word)))


def is_test_only(name: str, word: str) -> bool:
    return stable_hash("test-only synonym", name, word.casefold()) % _TEST_ONLY == 0


def _means(name: str, word: str, modality: str | None) -> bool:
    painted, removed = (
        parse(f"Highlight the {word} in red.", modality),
        parse(f"Remove the {word}.", modality),
    )
    return all([t.name for t in p.targets] == [name] and not p.unknown for p in (painted, removed))


def _is_plural(word: str) -> bool:
    last = word.split()[-1]
    return last.endswith(("nuclei", "glomeruli", "vertebrae", "bronchi", "bacteria")) or (
        last.endswith("s") and not last.endswith(("ss", "us", "is"))
    )


def _same(one: str, other: str, modality: str) -> bool:
    return all(_asked(parse(one, m)) == _asked(parse(other, m)) for m in (modality, None))


def _asked(result: Parse) -> tuple[Any, ...]:
    return result.operation, result.task, result.targets, result.attributes, result.unknown


def _as_written(found: str, words: Mapping[str, str]) -> str:
    """The word for what was found, with a capital where that had one."""
    word = next(value for key, value in words.items() if key.casefold() == found.casefold())
    return word[0].upper() + word[1:] if found[0].isupper() and word[0].islower() else word
