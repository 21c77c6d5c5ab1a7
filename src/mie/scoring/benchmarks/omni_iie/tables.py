"""Overall scores of the Omni IIE Bench paper: single-turn, and multi-turn where it is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mie.scoring.benchmarks import Table, by_group, cell, published

OMNI_IIE: Final[dict[str, tuple[float, float | None]]] = {
    "Qwen-image-edit": (0.687, 0.676),
    "Step1X": (0.680, 0.654),
    "ICEdit": (0.626, None),
    "FLUX": (0.614, None),
    "InstructPix2Pix": (0.530, None),
    "MGIE": (0.520, 0.404),
    "HQEdit": (0.457, None),
}


# Omni IIE Bench's tables: metrics by track and level, the scale gap, turns and switches.

COLUMNS = {
    "overall@1": "Overall",
    "lpips_all@1": "LPIPS",
    "lpips_fg@1": "LPIPS FG",
    "lpips_bg@1": "LPIPS BG",
    "clip_all@1": "CLIP",
    "clip_fg@1": "CLIP FG",
    "clip_bg@1": "CLIP BG",
    "qa@1": "QA",
    "ssim@1": "SSIM",
}
_SHOW = "{:.3f}".format


def tables(document: Mapping[str, Any]) -> list[Table]:
    whole = document["groups"][0]["metrics"]
    names = {key: name for key, name in COLUMNS.items() if key in whole}
    found = [
        by_group(document, "track", names, title="by track: mean (scored)", show=_SHOW),
        by_group(document, "level", names, title="single-turn by scale: mean (scored)", show=_SHOW),
    ]
    if "scale_gap" in whole:
        gap = document["scale_gap"]
        row = [_SHOW(float(gap[key])) for key in ("low", "high")]
        row += [cell(gap, _SHOW), f"{float(gap['relative_drop']):.1%}"]
        header = ("low", "high", "gap (pairs)", "relative drop")
        found.append(Table("scale gap in Overall, on complete pairs", header, (tuple(row),)))
    if "turn_slope" in whole:
        slope = document["turn_slope"]
        turns = [(turn.lstrip("0"), cell(entry, _SHOW)) for turn, entry in slope["by_turn"].items()]
        rows = (*turns, ("slope a turn", cell(slope, "{:+.4f}".format)))
        found.append(Table(f"Overall by turn ({slope['fed']})", ("turn", "mean (scored)"), rows))
        switches = tuple((name, cell(entry, _SHOW)) for name, entry in document["switches"].items())
        found.append(Table("Overall by switch of kind", ("switch", "mean (scored)"), switches))
    known = [(name, one, "" if many is None else many) for name, (one, many) in OMNI_IIE.items()]
    found.append(published("published, Overall", ("model", "single-turn", "multi-turn"), known, "{:.3f}"))
    return found
