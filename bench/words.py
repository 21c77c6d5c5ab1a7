"""How long a parse takes, how much unknown words disturb it, and when one is taken for a known one.

The fallback's two thresholds are chosen on one half of the targets and reported on the other. A synonym that
is left out of the vocabulary must lead to its target (recall); it must not lead to another one, and words of
things that we do not know must lead nowhere (wrong, at most 2 % of each).

    python -m bench.words [--no-fallback]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mie.core.hashing import stable_hash
from mie.core.yaml_files import read_mapping
from mie.vocabulary import MODALITIES
from mie.words import parse, vocabulary
from mie.words.fallback import APART, NEAR, Fallback
from mie.words.parse import LONGEST
from mie.words.spelling import correct
from mie.words.vocabulary import phrase
from tests.words import variants

FOLDER = Path(__file__).parents[1] / "tests/words"
ALLOWED = 0.02
STRANGERS = read_mapping(FOLDER / "strangers.yaml", "words", expected="strangers:")["strangers"]


class Trial(NamedTuple):
    words: str
    name: str | None  # what it means; None: nothing that is known
    got: str
    cosine: float
    apart: float

    def taken(self, near: float, apart: float) -> bool:
        return self.cosine >= near and self.apart >= apart


class Shares(NamedTuple):
    recall: float
    wrong: float  # of synonyms, taken for another target that is not a more general one
    strangers: float  # taken for anything


def trials(fallback: Fallback) -> Iterator[Trial]:
    known = vocabulary()
    asked = [
        (t.name, t.modalities, None, [t.name, *t.synonyms.get("en", ())]) for t in known.targets.values()
    ]
    for change in known.transformations.values():
        words = [
            " ".join(key)
            for key, senses in known.senses.items()
            if [(s.kind, s.value) for s in senses if s.kind in ("sure", "hint")] == [("sure", change.key)]
        ]
        asked.append((change.name, change.modalities, change.task, [w for w in words if w.isascii()]))
    for name, modalities, task, synonyms in asked:
        for words in synonyms:
            several = {s.value for s in known.senses[phrase(words)] if s.kind == "target"}
            if len(words) < 4 or words.isupper() or len(several) > 1:
                continue
            same = frozenset(w.lower() for w in synonyms if set(phrase(w)) == set(phrase(words)))
            yield _trial(fallback, words, name, modalities[0] if modalities else None, task, same)
    for words in STRANGERS:
        if any(s.kind == "target" for s in known.senses.get(phrase(words), ())):
            raise SystemExit(f"{words!r} is in the vocabulary: take it off the list")
        for modality in (None, *MODALITIES):
            yield _trial(fallback, words, None, modality, None, frozenset())


def _trial(
    fallback: Fallback,
    words: str,
    name: str | None,
    modality: str | None,
    task: str | None,
    same: frozenset[str],
) -> Trial:
    order = fallback.ranked(words, modality, task, same)
    if not order:
        return Trial(words, name, "", 0.0, 0.0)
    second = order[1].cosine if len(order) > 1 else 0.0
    return Trial(words, name, order[0].name, order[0].cosine, order[0].cosine - second)


def shares(rows: list[Trial], near: float, apart: float) -> Shares:
    own = [r for r in rows if r.name is not None]
    strangers = [r for r in rows if r.name is None]
    taken = [r for r in own if r.taken(near, apart)]
    right = sum(r.got == r.name for r in taken)
    wrong = sum(not _is_a(r.name, r.got) for r in taken)
    accepted = sum(r.taken(near, apart) for r in strangers)
    return Shares(right / len(own), wrong / len(own), accepted / len(strangers))


def _is_a(name: str | None, other: str) -> bool:
    known = vocabulary()
    return name == other or (name in known.targets and other in known.ancestors(name))


def _half(row: Trial) -> bool:
    return stable_hash("bench words", row.name or row.words) % 2 == 0


def measure_fallback() -> None:
    from mie.networks.text import TextEncoder, sentence_vectors

    rows = list(trials(Fallback(partial(sentence_vectors, TextEncoder()))))
    chosen_on, reported = ([r for r in rows if _half(r) is half] for half in (True, False))
    allowed = {}
    for near in np.arange(0.60, 0.96, 0.05):
        for apart in (0.0, 0.05, 0.1, 0.15, 0.2):
            result = shares(chosen_on, float(near), apart)
            if max(result.wrong, result.strangers) <= ALLOWED:
                allowed[(round(float(near), 2), apart)] = result
    best = max(allowed, key=lambda key: allowed[key].recall)
    counts = [sum(r.name is not None for r in part) for part in (chosen_on, reported)]
    print(f"synonyms: {counts[0]} to choose by, {counts[1]} to report; strangers: {len(STRANGERS)}")
    print(f"chosen there: near {best[0]:.2f}, apart {best[1]:.2f}: {_text(allowed[best])}")
    print(f"  the same on the other half: {_text(shares(reported, *best))}")
    for label, part in (("chosen by", chosen_on), ("reported on", reported)):
        print(f"in use (near {NEAR}, apart {APART}), {label}: {_text(shares(part, NEAR, APART))}")
    for row in rows:
        if row.taken(NEAR, APART) and not _is_a(row.name, row.got):
            print(f"  wrong: {row.words!r} taken for {row.got!r} ({row.cosine:.2f})")


def _text(result: Shares) -> str:
    return f"recall {result.recall:.3f}, wrong {result.wrong:.3f}, strangers {result.strangers:.4f}"


def measure_speed() -> None:
    """Processor milliseconds of a first parse, nothing remembered: the least of three."""
    texts = [
        (row[0], row[1] or None)
        for name in ("instructions.yaml", "held_out.yaml")
        for part in ("instructions", "traps")
        for row in read_mapping(FOLDER / name, "instructions", expected="instructions:")[part]
    ]
    joined = " ".join(text for text, _ in texts)
    long = [(joined[start : start + 300], None) for start in range(0, len(joined) - 300, 150)]
    parse("mark teh livr")  # reads the vocabulary
    for label, rows in (
        ("hand-written", texts),
        ("300 characters", long),
        (f"{LONGEST + 1:,} characters", [("x" * (LONGEST + 1), None)]),
    ):
        times = []
        for text, modality in rows:
            times.append(min(_milliseconds(text, modality) for _ in range(3)))
        middle, high = np.percentile(times, [50, 95])
        print(f"{label}: {len(rows)}, p50 {middle:.2f} ms, p95 {high:.2f} ms, max {max(times):.2f} ms")


def _milliseconds(text: str, modality: str | None) -> float:
    parse.cache_clear()
    correct.cache_clear()
    started = time.process_time()
    parse(text, modality)
    return 1000 * (time.process_time() - started)


def measure_variants() -> None:
    """Share of variants (a greeting, an adjective, a slip) that are read as the instruction itself."""
    for kind in variants.VARIANTS:
        rows = [pair for seed in range(3) for pair in variants.pairs(kind, seed)]
        right = sum(map(variants.same, rows))
        print(f"{kind}: {right} of {len(rows)} read as before ({right / len(rows):.1%})")


def main() -> None:
    reader = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    reader.add_argument("--no-fallback", action="store_true")
    options = reader.parse_args()
    measure_speed()
    measure_variants()
    if not options.no_fallback:
        measure_fallback()


if __name__ == "__main__":
    main()
