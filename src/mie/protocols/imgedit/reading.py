"""Which suite and kind of edit a sample belongs to, by the benchmark's own record or by what it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

TYPES: Final = (
    "add",
    "adjust",
    "extract",
    "replace",
    "remove",
    "background",
    "style",
    "compose",
    "action",
)
SUITES: Final = ("basic", "uge", "multiturn")
_ALIASES: Final = {"hybrid": "compose"}
# Samples of ours: painting a region changes a property of it, several regions are several edits at once.
_PERSPECTIVES: Final = {"perception": "adjust", "modification": "replace", "transformation": "adjust"}
_TASKS: Final = {
    "holistic": "compose",
    "removal": "remove",
    "addition": "add",
    "inpainting": "replace",
    "simulation": "add",
    "artifact removal": "remove",
    "modality transfer": "style",
}


def suite_of(row: Mapping[str, Any]) -> str:
    """`basic`, `uge` or `multiturn`; a sample of ours that has a turn is of a conversation."""
    stated = own(row).get("suite")
    if stated in SUITES:
        return str(stated)
    return "basic" if row["turn"] is None else "multiturn"


def edit_type(row: Mapping[str, Any]) -> str:
    """One of TYPES, or what the record says where that is none of them."""
    stated = own(row).get("edit_type")
    if stated:
        name = str(stated).strip().lower()
        return _ALIASES.get(name, name)
    return _TASKS.get(row["task"], _PERSPECTIVES.get(row["perspective"], "adjust"))


def category_of(row: Mapping[str, Any]) -> str | None:
    """What a conversation is about: memory, understanding or backtracking; None: all of them are asked."""
    stated = own(row).get("category")
    return str(stated) if stated else None


def own(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = json.loads(row["params"]).get("imgedit")
    return found if isinstance(found, Mapping) else {}
