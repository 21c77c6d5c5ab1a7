"""`tables/judged.csv`: every mean of the protocols that ask a judge, with its coverage and its judge."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mie.report.judged import Judged
from mie.report.judged_section import model_words
from mie.report.scored import cell_of

_HEADER: Final = (
    *("protocol", "variant", "run", "group", "value", "metric", "mean", "ci95_low", "ci95_high"),
    *("n", "unscored", "judge_model", "judge_provider", "prompts", "states"),
)


def write_judged_table(found: Sequence[Judged], folder: Path) -> None:
    """Nothing where no protocol asked a judge."""
    if not found:
        return
    with (folder / "judged.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_HEADER)
        for judged in found:
            writer.writerows(_rows(judged))


def _rows(judged: Judged) -> Iterator[tuple[object, ...]]:
    for name, document in judged.documents.items():
        judge = judged.judges.get(name)
        who: tuple[str, ...] = ("", "", "", "")
        if judge is not None:
            prompts = " ".join(f"{prompt}:{sha256}" for prompt, sha256 in judge["prompts"].items())
            states = " ".join(f"{state}:{number}" for state, number in judge["states"].items())
            who = (model_words(judge), judge["provider"], prompts, states)
        for item in document["groups"]:
            cut = next(iter(item["group"].items()), ("", ""))
            for metric, entry in item["metrics"].items():
                cell = cell_of(entry)
                numbers = (cell.mean, cell.low, cell.high, cell.n, cell.unscored)
                yield (judged.protocol, document["variant"], name, *cut, metric, *numbers, *who)
