"""Where a sample stands in Omni IIE Bench, by its own record or by what it is.

| Omni IIE Bench | elsewhere |
| --- | --- |
| `level` low (an attribute), high (an entity) | low; modification: high |
| `level` a number: the turn | `turn` |
| shared context: one `sample_id` | `group`, else one image (data set and case) |
| masks | mask, every class inside |
| `qa_pairs` | a judge writes them |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

COLUMNS: Final = ("input", "target_image", "mask", "params", "prompt", "group", "turn")
ATTRIBUTE, ENTITY = "A", "E"
_LEVELS: Final = {"low": ATTRIBUTE, "high": ENTITY}


def places_of(row: Mapping[str, Any]) -> dict[str, str]:
    """The group keys of a line: track, level, kind (A, E or ""), turn and context."""
    single = row["turn"] is None
    level = level_of(row) if single else ""
    return {
        "track": "single" if single else "multi",
        "level": level,
        "kind": _LEVELS[level] if single else _kind(row),
        "turn": "" if single else f"{row['turn']:02d}",
        "context": row["group"] or f"{row['source']}/{row['case_id']}",
    }


def level_of(row: Mapping[str, Any]) -> str:
    stated = str(own(row).get("level", "")).lower()
    if stated in _LEVELS:
        return stated
    return "high" if row["perspective"] == "modification" else "low"


def _kind(row: Mapping[str, Any]) -> str:
    """What a turn edits; a foreign record that does not say it is of no kind."""
    stated = str(own(row).get("edit_type", "")).lower()
    if stated:
        return ATTRIBUTE if stated.startswith("a") else ENTITY if stated.startswith("e") else ""
    if own(row):
        return ""
    return ENTITY if row["perspective"] == "modification" else ATTRIBUTE


def stated_questions(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(question, right answer) as the record has them; none elsewhere."""
    pairs = own(row).get("qa_pairs")
    if not isinstance(pairs, list):
        return []
    found = [(pair.get("question"), pair.get("correct_answer")) for pair in pairs if isinstance(pair, dict)]
    return [(str(question), str(answer)) for question, answer in found if question and answer is not None]


def own(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = json.loads(row["params"]).get("omni-iie")
    return found if isinstance(found, Mapping) else {}
