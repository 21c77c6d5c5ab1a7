"""Overall scores of the ImgEdit-Bench paper and its leaderboard, 1 to 5, by the released script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mie.scoring.benchmarks import Table, by_group, cell, published
from mie.scoring.benchmarks.imgedit.turns import TYPES

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


# ImgEdit's tables: a column for each kind of edit and the overall, as its leaderboard prints them.


def tables(document: Mapping[str, Any]) -> list[Table]:
    whole = document["groups"][0]["metrics"]
    kinds = {
        item["group"]["edit_type"]: item["metrics"]
        for item in document["groups"]
        if list(item["group"]) == ["edit_type"]
    }
    found = []
    if "imgedit@1" in whole:
        order = [*(name for name in TYPES if name in kinds)]
        row = [cell(kinds[name].get("imgedit@1")) for name in order]
        header = ("suite", *order, "overall (mean of kinds)")
        found.append(Table("1 to 5: mean (scored)", header, (("basic", *row, cell(whole["imgedit@1"])),)))
    if "uge@1" in whole:
        found.append(Table("hard suite, 1 to 5", ("suite", "score"), (("UGE", cell(whole["uge@1"])),)))
    names = {
        f"{name}@1": name for name in ("memory", "understanding", "backtracking") if f"{name}@1" in whole
    }
    if names:
        found.append(by_group(document, "turn", names, title="conversations, share of yes by turn"))
    rows = sorted(IMGEDIT.items(), key=lambda item: item[1])
    found.append(published("published, overall (as released)", ("model", "overall"), rows))
    return found
