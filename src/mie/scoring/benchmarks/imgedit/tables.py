"""ImgEdit's tables: a column for each kind of edit and the overall, as its leaderboard prints them."""

from __future__ import annotations

from typing import Final

from mie.scoring.benchmarks import Document, PublishedRows, Table, by_group, cell, first_attempts, published
from mie.scoring.benchmarks.imgedit import BENCHMARK, CONVERSATION, TYPES

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
    rows = sorted(IMGEDIT.items(), key=lambda item: item[1])
    found.append(published("published, overall (as released)", ("model", "overall"), rows))
    return found
