"""Leaderboards in the layout of each benchmark's paper: which columns, and each run's cell in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mie.protocols.imgedit.reading import TYPES
from mie.report.judged import Judged
from mie.report.measures import MEASURES, Measure
from mie.report.scored import Cell, cell_of

_MEDEBENCH: Final = (
    Measure("ea", "EA", "editing accuracy, by a judge that is told the change", decimals=2),
    Measure("cp", "CP", "context preservation: SSIM outside the region", decimals=2),
    Measure("vq", "VQ", "visual quality, by the same judge", decimals=2),
    Measure("ea_plain", "EA, instruction", "the judge is told the plain instruction", decimals=2),
    Measure("vq_plain", "VQ, instruction", "the judge is told the plain instruction", decimals=2),
    MEASURES["psnr"],
    MEASURES["ssim"],
)
_KINDS: Final = tuple(Measure(kind, kind.capitalize(), "1 to 5", decimals=2) for kind in TYPES)
_MACRO: Final = Measure("imgedit", "Overall", "mean over the kinds of edit", decimals=2)
_REST: Final = (
    Measure("adherence", "Adherence", "as given, before the cap", decimals=2),
    Measure("quality", "Quality", "as given, before the cap", decimals=2),
    Measure("preservation", "Preservation", "as given, before the cap", decimals=2),
    Measure("uge", "Hard suite", "one score, 1 to 5", decimals=2),
    Measure("memory", "Memory", "conversations, share of yes", decimals=2),
    Measure("understanding", "Understanding", "conversations, share of yes", decimals=2),
    Measure("backtracking", "Backtracking", "conversations, share of yes", decimals=2),
)
_OMNI: Final = (
    Measure("overall", "Overall", "LPIPS, CLIP, QA and SSIM together"),
    Measure("lpips_all", "LPIPS", "whole image; lower is better"),
    Measure("lpips_fg", "LPIPS FG", "inside the region; lower is better"),
    Measure("lpips_bg", "LPIPS BG", "outside the region; lower is better"),
    Measure("clip_all", "CLIP", "whole image"),
    Measure("clip_fg", "CLIP FG", "inside the region"),
    Measure("clip_bg", "CLIP BG", "outside the region"),
    Measure("qa", "QA", "share of outputs with every question answered right"),
    MEASURES["ssim"],
    MEASURES["psnr"],
)
_TRACKS: Final = (
    Measure("scale_gap", "Scale gap", "Overall of low minus high scale, on complete pairs"),
    Measure("turn_slope", "Slope a turn", "of Overall, mean over conversations", decimals=4),
)


@dataclass(frozen=True, slots=True)
class Board:
    """A table: its columns, and run -> `ea@1` -> cell. Columns that no run has a cell for are left out."""

    title: str
    columns: tuple[Measure, ...]
    rows: Mapping[str, Mapping[str, Cell]]
    best: bool = True  # the best mean of a column is bold


def boards(judged: Judged) -> list[Board]:
    """The protocol's tables, the main one first."""
    made = _MAKERS[judged.protocol](judged.documents)
    return [shown for board in made if (shown := _used(board)).columns]


def _used(board: Board) -> Board:
    there = {key for cells in board.rows.values() for key in cells}
    columns = tuple(m for m in board.columns if f"{m.key}@1" in there)
    return Board(board.title, columns, board.rows, board.best)


Documents = Mapping[str, Mapping[str, Any]]


def _miedb(documents: Documents) -> list[Board]:
    columns = tuple(m for key, m in MEASURES.items() if key.startswith("rubric"))
    return [
        Board("Rubric (0 to 100) and its eight criteria (1 to 5), first attempt", columns, _all(documents))
    ]


def _medebench(documents: Documents) -> list[Board]:
    return [Board("Overall, 0 to 1, first attempt", _MEDEBENCH, _all(documents))]


def _imgedit(documents: Documents) -> list[Board]:
    rows = {}
    for name, document in documents.items():
        kinds = _by(document, "edit_type")
        cells = {f"{kind}@1": found["imgedit@1"] for kind, found in kinds.items() if "imgedit@1" in found}
        whole = _cells(document["groups"][0]["metrics"])
        rows[name] = {**cells, **({"imgedit@1": whole["imgedit@1"]} if "imgedit@1" in whole else {})}
    return [
        Board("Basic suite by kind of edit, 1 to 5, first attempt", (*_KINDS, _MACRO), rows),
        Board("Criteria, hard suite, conversations", _REST, _all(documents)),
    ]


def _omni(documents: Documents) -> list[Board]:
    made = []
    for track, title in (("single", "Single-turn track"), ("multi", "Multi-turn track")):
        rows = {name: _by(document, "track").get(track, {}) for name, document in documents.items()}
        made.append(Board(f"{title}, first attempt", _OMNI, {name: row for name, row in rows.items() if row}))
    gaps = {
        name: {f"{m.key}@1": cell_of(document[m.key]) for m in _TRACKS if _pairs(document[m.key])}
        for name, document in documents.items()
    }
    return [*made, Board("Scale gap and slope over turns, in Overall", _TRACKS, gaps, best=False)]


_MAKERS: Final = {"miedb": _miedb, "medebench": _medebench, "imgedit": _imgedit, "omni-iie": _omni}


def _all(documents: Documents) -> dict[str, dict[str, Cell]]:
    return {name: _cells(document["groups"][0]["metrics"]) for name, document in documents.items()}


def _by(document: Mapping[str, Any], key: str) -> dict[str, dict[str, Cell]]:
    """Group -> its cells."""
    groups = [item for item in document["groups"] if list(item["group"]) == [key]]
    return {str(item["group"][key]): _cells(item["metrics"]) for item in groups}


def _cells(metrics: Mapping[str, Any]) -> dict[str, Cell]:
    return {key: cell_of(entry) for key, entry in metrics.items()}


def _pairs(entry: Mapping[str, Any]) -> bool:
    return bool(entry["n"] + entry["unscored"])
