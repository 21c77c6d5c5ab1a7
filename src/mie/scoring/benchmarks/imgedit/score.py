"""What ImgEdit-Bench measures in a run, by a judge alone, and its tables as the leaderboard prints them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.scoring import conversations
from mie.scoring.attempts import Context, LineBody, Output, Row, each_output, line_of
from mie.scoring.benchmarks import Document, PublishedRows, Table, by_group, cell, first_attempts, published
from mie.scoring.benchmarks.imgedit import BENCHMARK, CONVERSATION, CRITERIA, TYPES
from mie.scoring.benchmarks.imgedit.judge import edit_type, questions_of, suite_of
from mie.scoring.metric import Metric
from mie.scoring.scores import ScoreTable
from mie.scoring.statistics.intervals import macro_interval


def measure(row: Row, outputs: Sequence[Output], context: Context) -> LineBody:
    suite = suite_of(row)
    kind = edit_type(row) if suite == "basic" else suite
    turn, dialogue = ("", "") if row["turn"] is None else (f"{row['turn']:02d}", row["group"] or row["id"])
    groups = {"suite": suite, "edit_type": kind, "turn": turn, "dialogue": dialogue}
    if not context.judged:
        return line_of(row, (), [], **groups)
    # Nothing is measured here, but an output that cannot be read is no output.
    attempts = each_output(
        outputs, context.variant, lambda: None, lambda _, output: {"metrics": {}, "unscored": {}}
    )
    return line_of(row, _applies(row, suite, context.variant), attempts, **groups)


def _applies(row: Row, suite: str, variant: str) -> tuple[str, ...]:
    if suite == "multiturn":
        return questions_of(row)
    if suite == "uge":
        return ("uge",)
    return ("imgedit",) if variant == "as_released" else ("imgedit", *CRITERIA)


def aggregate(document: dict[str, Any], table: ScoreTable, scores: Path) -> None:
    """The macro average in place of the mean over samples. The released script rounds each kind's mean.

    `conversations` has, for each question, how yes turns to no over the turns: slope, survival, half-life.
    """
    released = table.header["variant"] == "as_released"
    document["conversations"] = _conversations(table)
    for item in document["groups"]:
        for key, entry in item["metrics"].items():
            if released and list(item["group"]) == ["edit_type"]:
                entry["mean"] = round(entry["mean"], 2)
            if item["group"] or not key.startswith("imgedit@"):
                continue
            chosen = table.select("imgedit", int(key.partition("@")[2]))
            rows = np.flatnonzero(chosen.scored)
            kinds = table.groups["edit_type"][rows].astype(str)
            values = chosen.values[rows]
            means = [float(values[kinds == kind].mean()) for kind in np.unique(kinds)]
            means = [round(mean, 2) for mean in means] if released else means
            entry["micro"] = entry["mean"]
            entry["mean"] = math.fsum(means) / len(means) if means else math.nan
            entry["types"] = len(means)
            entry.pop("no_interval", None)
            bounds = table.metric("imgedit").scale
            entry.update(macro_interval(values, kinds, table.clusters[rows], bounds=bounds).entry)


def _conversations(table: ScoreTable) -> dict[str, Any]:
    found = {}
    multi = table.rows_of({"suite": "multiturn"})
    for name in (name for name in CONVERSATION if name in table.values):
        asked = np.flatnonzero(multi & table.applies[name])
        talks = conversations.by_conversation(table, asked, "dialogue")
        if talks:
            slope = conversations.turn_slope(table, name, talks)
            found[name] = {"turn_slope": slope, "survival": conversations.survival(table, name, talks)}
    return found


# Overall scores of the paper and its leaderboard, 1 to 5, by the released script.
IMGEDIT: Final = {
    "MagicBrush": 1.83,
    "Instruct-P2P": 1.88,
    "AnyEdit": 2.45,
    "UltraEdit": 2.70,
    "ICEdit": 3.05,
    "Step1X-Edit": 3.06,
    "UniWorld-V1": 3.26,
    "BAGEL": 3.42,
    "OmniGen2": 3.44,
    "Kontext-dev": 3.71,
    "Ovis-U1": 3.97,
    "GPT-4o-Image": 4.20,
}
PUBLISHED: Final = PublishedRows(
    caption="ImgEdit-Bench, measured by its authors",
    columns=(BENCHMARK.metric("imgedit"),),
    rows=tuple((model, (overall,)) for model, overall in sorted(IMGEDIT.items(), key=lambda item: item[1])),
    marked=frozenset({"imgedit"}),
    note="Measured by the authors on their own data, by the released script.",
    source="published by the authors of ImgEdit-Bench and its leaderboard",
)


def _over_turns(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    curve, half = entry["survival"]["curve"], entry["survival"]["half_life"]
    last = f"{curve[-1]['survival']:.2f} ({curve[-1]['turn']})" if curve else "–"
    slope = cell(entry["turn_slope"], _SLOPE)
    return slope, last, str(half) if half else "–" if not curve else f"more than {curve[-1]['turn']}"


_SLOPE: Final = Metric("turn_slope", "Slope a turn", decimals=4)


def tables(document: Document) -> list[Table]:
    whole = document["groups"][0]["metrics"]
    kinds = {
        item["group"]["edit_type"]: item["metrics"]
        for item in document["groups"]
        if list(item["group"]) == ["edit_type"]
    }
    found = []
    overall, hard = BENCHMARK.metric("imgedit"), BENCHMARK.metric("uge")
    if "imgedit@1" in whole:
        order = [name for name in TYPES if name in kinds]
        row = [cell(kinds[name].get("imgedit@1"), overall) for name in order]
        header = ("suite", *order, "overall (mean of kinds)")
        body = (("basic", *row, cell(whole["imgedit@1"], overall)),)
        found.append(Table("1 to 5: mean (scored)", header, body))
    if "uge@1" in whole:
        found.append(Table("hard suite, 1 to 5", ("suite", "score"), (("UGE", cell(whole["uge@1"], hard)),)))
    turns = first_attempts(BENCHMARK, document, CONVERSATION)
    if turns:
        found.append(by_group(document, "turn", turns, title="conversations, share of yes by turn"))
    talks = [(name, *_over_turns(entry)) for name, entry in document.get("conversations", {}).items()]
    if talks:
        header = (
            "question",
            "slope a turn (conversations)",
            "all yes so far, last turn",
            "half-life in turns",
        )
        found.append(Table("conversations over their turns", header, tuple(talks)))
    rows = sorted(IMGEDIT.items(), key=lambda item: item[1])
    found.append(published("published, overall (as released)", ("model", "overall"), rows))
    return found
