"""`mie build --rephrase`: each distinct instruction is put in other words by a language model, once.

It happens between the parts and the finish, when all instructions are known. Only texts are sent. A
rephrasing that is not faithful to its sentence is dropped; where none is left, the template's sentence stays.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from mie.core.hashing import stable_hash
from mie.datasets.faithful import Sentence, any_of, fault, take_apart
from mie.datasets.part import part_path
from mie.datasets.plan import Plan
from mie.datasets.schema import read_table
from mie.errors import ConfigError, MieError
from mie.judges import Answer, Draft, JudgeOptions, ParseError, Question, load_prompt, open_judge
from mie.judges.clients import open_client
from mie.judges.contracts import REPLIED, Parser
from mie.judges.judge import check_consent
from mie.judges.parsers import json_texts, json_texts_schema
from mie.vocabulary import COLOURS, SPLITS

PROMPT: Final = load_prompt("rephrase", 1)
_FIELD: Final = "rephrasings"


@dataclass(frozen=True, slots=True)
class Rephrase:
    """What the user says: `mie build --rephrase SPEC --rephrasings N ...`."""

    judge: JudgeOptions
    count: int = 3  # rephrasings that are asked for, per sentence

    def check(self) -> None:
        """`ConfigError` for what would only be found out when all samples are made."""
        if self.count < 1:
            raise ConfigError("a number of rephrasings is at least 1", found=self.count)
        client = open_client(self.judge.spec)
        if client.remote and not self.judge.dry_run:
            check_consent(self.judge, client, "words")
            client.ready()  # a key

    def by(self) -> dict[str, Any]:
        """Who rephrases, under which words: a part of the dataset's recipe, without a place on a disk."""
        client = open_client(self.judge.spec)
        return {
            "provider": client.provider,
            "model": client.model,
            "parameters": dict(client.parameters),
            "prompt": PROMPT.name,
            "sha256": PROMPT.sha256,
            "rephrasings": self.count,
        }


@dataclass(frozen=True, slots=True)
class Wording:
    """The faithful rephrasings of one sentence and who wrote them, or why there is none."""

    texts: tuple[str, ...] = ()
    model: str = ""
    reason: str = ""
    dropped: tuple[str, ...] = ()  # what was wrong with the others


class Wordings:
    """Every sentence's rephrasings, and a count of what was drawn."""

    def __init__(self, by: Mapping[str, Any], found: Mapping[str, Wording]) -> None:
        self.by = dict(by)
        self._found = found
        self._drawn: Counter[str] = Counter()  # "" for rephrased, else the reason's kind

    def draw(self, sentence: str, seed: int) -> tuple[str, dict[str, str]]:
        """The sample's instruction, chosen by its own seed, and what its `params` say about it."""
        wording = self._found[sentence]
        self._drawn[_kind(wording.reason)] += 1
        if not wording.texts:
            return sentence, {"reason": wording.reason}
        text = wording.texts[stable_hash("rephrase", seed) % len(wording.texts)]
        stamp = {"model": wording.model, "prompt": PROMPT.name, "sha256": PROMPT.sha256}
        return text, {**stamp, "sentence": sentence}

    def counts(self) -> dict[str, Any]:
        """For `dataset.json`: samples and sentences, and why some kept the template's words."""
        dropped = Counter(_kind(why) for wording in self._found.values() for why in wording.dropped)
        return {
            "samples": self._drawn[""],
            "kept": dict(sorted((kind, n) for kind, n in self._drawn.items() if kind)),
            "sentences": len(self._found),
            "sentences_rephrased": sum(bool(wording.texts) for wording in self._found.values()),
            "dropped_rephrasings": dict(sorted(dropped.items())),
            "answered_by": sorted({wording.model for wording in self._found.values() if wording.texts}),
        }


def ask_for_wordings(
    plan: Plan, folder: Path, asked: Rephrase, progress: Callable[[int, int], None]
) -> Wordings:
    """Ask for what the journal in `folder/judge` does not hold yet. Every part must be whole."""
    sentences = _sentences(plan, folder / "parts")
    found = {
        text: Wording(reason="template: it does not lead to its sentence")
        for text, sentence in sentences.items()
        if sentence is None
    }
    known = [sentence for sentence in sentences.values() if sentence is not None]
    if known:
        # No image leaves, and instructions hold no names: there is nothing to be de-identified.
        with open_judge(_options(asked), folder / "judge", dataset=None) as judge:
            answers = judge.ask(_drafts(known, asked.count), lambda done: progress(done, len(known)))
        _refuse_silence([given for (given,) in answers.values()])
        found |= {s.text: _wording(answers[_key(s, asked.count)][0]) for s in known}
    return Wordings(asked.by(), found)


def estimate(plan: Plan, folder: Path, asked: Rephrase) -> dict[str, Any]:
    """Calls, tokens and cost of the sentences that have no reply yet. Makes no call."""
    known = [sentence for sentence in _sentences(plan, folder / "parts").values() if sentence is not None]
    with open_judge(replace(_options(asked), dry_run=True), folder / "judge", dataset=None) as judge:
        return judge.estimate(_drafts(known, asked.count))


def _options(asked: Rephrase) -> JudgeOptions:
    return replace(asked.judge, repeats=1)  # variety comes from several rephrasings in one reply


def _sentences(plan: Plan, parts: Path) -> dict[str, Sentence | None]:
    """Every distinct instruction in the parts, in their order."""
    found: dict[str, Sentence | None] = {}
    for part in plan.parts:
        for split in SPLITS:
            path = part_path(parts, part.number, split)
            if not path.exists():
                continue
            columns = read_table(path, ["prompt", "prompt_template", "params"]).to_pydict()
            for text, template, params in zip(*columns.values(), strict=True):
                sentence = take_apart(text, template, json.loads(params))
                found[text] = _merged(found.get(text), sentence) if text in found else sentence
    return found


def _merged(one: Sentence | None, other: Sentence | None) -> Sentence | None:
    """Two samples with the same words must both be kept to."""
    if one is None or other is None or one == other:
        return other if one == other else None
    entities = dict.fromkeys((*one.entities, *other.entities))
    return Sentence(one.text, tuple(entities), one.pairs or other.pairs, one.turn or other.turn)


def _drafts(sentences: list[Sentence], count: int) -> Iterator[Draft]:
    named = {word for sentence in sentences for word in sentence.entities if word not in COLOURS}
    others = any_of(named)
    for sentence in sentences:
        keep = ", ".join(dict.fromkeys((*sentence.entities, *(c for _, c in sentence.pairs)))) or "-"
        text = PROMPT.fill(sentence=sentence.text, keep=keep, count=str(count))
        make = partial(
            _question, text, partial(faithful_texts, sentence=sentence, count=count, others=others)
        )
        yield Draft(_key(sentence, count), make, PROMPT, characters=len(text))


def _question(text: str, parser: Parser) -> Question:
    return Question(PROMPT, (text,), parser, json_texts_schema(_FIELD))


def _key(sentence: Sentence, count: int) -> str:
    return f"rephrase/{count}:{sentence.text}"


def faithful_texts(
    reply: str, *, sentence: Sentence, count: int, others: re.Pattern[str] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the rephrasings that are faithful, what is wrong with the others); `ParseError` where none is."""
    try:
        texts = json_texts(_FIELD, 1, count)(reply)
    except ParseError as error:
        raise ParseError(f"form: {error}") from None
    good: list[str] = []
    wrong: list[str] = []
    for text in texts:
        trouble = fault(sentence, text, others)
        if trouble is None and text.casefold() in map(str.casefold, (sentence.text, *good)):
            trouble = "same: it differs from nothing"
        if trouble is None:
            good.append(text)
        else:
            wrong.append(trouble)
    if not good:
        raise ParseError("; ".join(dict.fromkeys(wrong)))
    return tuple(good), tuple(wrong)


def _wording(answer: Answer) -> Wording:
    if answer.done:
        texts, dropped = answer.value
        return Wording(texts, answer.model, dropped=dropped)
    # Of an error only its state is kept: a server's words differ from day to day, a dataset's must not.
    reason = answer.reason if answer.state == "unparseable" else f"judge {answer.state}"
    return Wording(model=answer.model, reason=reason)


def _kind(reason: str) -> str:
    return reason.partition(":")[0]


def _refuse_silence(answers: list[Answer]) -> None:
    """Not one reply, and not for want of money: stop, so that the same command can try again."""
    if any(answer.state in (*REPLIED, "over_budget") for answer in answers):
        return
    raise MieError(
        "the judge answered no question",
        where=f"{len(answers)} sentences to rephrase",
        found=f"{answers[0].state}: {answers[0].reason}",
        fix="run the same command again: the samples are made; or leave --rephrase out",
    )
