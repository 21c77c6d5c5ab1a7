"""Omni IIE Bench's tables: metrics by track and level, the scale gap, turns and switches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mie.scoring.benchmarks import (
    Document,
    PublishedRows,
    Table,
    by_group,
    cell,
    first_attempts,
    published,
)
from mie.scoring.benchmarks.omni_iie import BENCHMARK, CLIP, LPIPS
from mie.scoring.lines import number

# Overall scores of the paper: single-turn, and multi-turn where it is given.
OMNI_IIE: Final[dict[str, tuple[float, float | None]]] = {
    "Qwen-image-edit": (0.687, 0.676),
    "Step1X": (0.680, 0.654),
    "ICEdit": (0.626, None),
    "FLUX": (0.614, None),
    "InstructPix2Pix": (0.530, None),
    "MGIE": (0.520, 0.404),
    "HQEdit": (0.457, None),
}
_OVERALL: Final = BENCHMARK.metric("overall")
PUBLISHED: Final = PublishedRows(
    caption="Omni IIE Bench, measured by its authors",
    columns=(replace(_OVERALL, label="single-turn"), replace(_OVERALL, label="multi-turn")),
    rows=tuple(OMNI_IIE.items()),
    note="Measured by the authors on their own data.",
    source="published by the authors of Omni IIE Bench, Overall",
)
_COLUMNS: Final = ("overall", *LPIPS, *CLIP, "qa", "ssim")


def tables(document: Document) -> list[Table]:
    whole = document["groups"][0]["metrics"]
    columns = first_attempts(BENCHMARK, document, _COLUMNS)
    found = [
        by_group(document, "track", columns, title="by track: mean (scored)"),
        by_group(document, "level", columns, title="single-turn by scale: mean (scored)"),
    ]
    if "scale_gap" in whole:
        gap = document["scale_gap"]
        row = [_OVERALL.show(gap[key]) for key in ("low", "high")]
        row += [cell(gap, BENCHMARK.metric("scale_gap")), _percent(gap["relative_drop"])]
        header = ("low", "high", "gap (pairs)", "relative drop")
        found.append(Table("scale gap in Overall, on complete pairs", header, (tuple(row),)))
    if "turn_slope" in whole:
        slope = document["turn_slope"]
        turns = [(turn.lstrip("0"), cell(entry, _OVERALL)) for turn, entry in slope["by_turn"].items()]
        rows = (*turns, ("slope a turn", _sign(slope) + cell(slope, BENCHMARK.metric("turn_slope"))))
        found.append(Table(f"Overall by turn ({slope['fed']})", ("turn", "mean (scored)"), rows))
        switches = tuple((name, cell(entry, _OVERALL)) for name, entry in document["switches"].items())
        found.append(Table("Overall by switch of kind", ("switch", "mean (scored)"), switches))
    known = [(name, one, "" if many is None else many) for name, (one, many) in OMNI_IIE.items()]
    found.append(published("published, Overall", ("model", "single-turn", "multi-turn"), known, "{:.3f}"))
    return found


def _percent(share: float | str | None) -> str:
    value = number(share)
    return "–" if math.isnan(value) else f"{value:.1%}"


def _sign(entry: Mapping[str, Any]) -> str:
    return "+" if number(entry["mean"]) > 0 else ""
