"""Instructions written without having seen the parser, and a comparison with what they expect.

Their author knew neither the vocabulary nor its names, so an expected name is looked up in it: a "lung
nodule" is a lung lesion. Two names also agree if the parse is more exact (a glioblastoma is a glioma, where a
brain tumour was expected), or if it is a general word and the instruction names no organ ("tumour", where a
brain tumour was expected).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mie.core.yaml_files import read_mapping
from mie.vocabulary import MODALITIES
from mie.words import Parse, parse, vocabulary
from mie.words.requested import meaning
from mie.words.scan import scan
from mie.words.vocabulary import phrase

FOLDER: Final = Path(__file__).parent
NOTES: Final = read_mapping(FOLDER / "notes.yaml", "notes", expected="sets:")
SETS: Final = tuple(NOTES["sets"])
ALTERING: Final = ("removal", "addition", "inpainting", "simulation")
_GENERAL: Final = ("tumor", "tumors", "lesion", "lesions", "hemorrhage", "mass", "edema")

Row = Mapping[str, Any]
Wanted = tuple[str, str | None, str | None]


def rows(name: str) -> list[Row]:
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def modality(row: Row) -> str | None:
    given = NOTES["modalities"].get(row["modality"], row["modality"])
    return given if given in MODALITIES else None


def read(row: Row) -> Parse:
    return parse(row["instruction"], modality(row))


def faults(row: Row, result: Parse) -> list[str]:
    """Return what is not as expected: nothing, if the instruction was read right."""
    expected = row["expect"]
    wrong = [] if result.operation == expected["operation"] else ["operation"]
    if expected["operation"] == "none":
        return wrong
    if expected["operation"] == "transformation":
        return wrong + _task_faults(expected, result)
    if result.operation == "transformation":
        return [*wrong, "targets"]
    return wrong + _target_faults(row, result) + _exclusion_faults(row, result)


def _task_faults(expected: Row, result: Parse) -> list[str]:
    task = str(expected.get("task", "")).lower()
    tasks = [own for word, own in NOTES["tasks"].items() if word in task]
    names = [target["name"] for target in expected.get("targets") or ()]
    wrong = ["task"] if tasks and result.task not in tasks else []
    return wrong + (["targets"] if names and names != [target.name for target in result.targets] else [])


def _target_faults(row: Row, result: Parse) -> list[str]:
    expected = row["expect"]
    alters = expected["operation"] in ALTERING
    adds = expected["operation"] in ("addition", "simulation")  # a side is a place there
    wanted: list[Wanted] = []
    strangers = 0
    for target in expected.get("targets") or ():
        name, side = _known(target["name"], row, target.get("side"))
        if name is None:
            strangers += 1
        else:
            colour = None if alters else _colour(target.get("colour"))
            wanted.append((name, colour, None if adds else side))
    got = [_own(t.name, t.colour, None if adds else t.side) for t in result.targets]
    for target in list(wanted):
        match = next((g for g in got if g[1:] == target[1:] and _agree(target[0], g[0], row)), None)
        if match is not None:
            got.remove(match)
            wanted.remove(target)
    wrong = ["targets"] if wanted or got else []
    said = result.unknown or "may mean" in str(result.note)
    return wrong + (["unknown not said"] if strangers and not said else [])


def _exclusion_faults(row: Row, result: Parse) -> list[str]:
    expected = row["expect"]
    if expected["operation"] != "perception" or expected.get("excluded", ()) is None:
        return []  # None: their author did not say
    known = vocabulary().targets
    wanted = Counter(name for name, _ in (_known(n, row) for n in expected.get("excluded") or ()) if name)
    got = [_known(name, row)[0] or name for name in result.attributes.get("exclude", [])]
    for name in list(wanted):
        match = next((g for g in got if g in known and _agree(name, g, row)), None)
        if match is not None:
            got.remove(match)
            del wanted[name]
    return ["exclude"] if wanted or got else []


def _colour(given: str | None) -> str | None:
    """A colour that overlays have; shades by their last word ("light green")."""
    name = NOTES["colours"].get(given, (given or "").split(" ")[-1])
    return name if name in vocabulary().colours else None


def _own(name: str, colour: str | None, side: str | None) -> Wanted:
    target = vocabulary().targets[name]
    if target.side:
        name, side = target.parents[0], target.side
    return name, colour, None if side == "both" else side


def _known(name: str, row: Row, side: str | None = None) -> tuple[str | None, str | None]:
    """Return the vocabulary's name, and the side; no name for what it does not have."""
    name = NOTES["names"].get(name, name)
    found = scan(name)
    sides = [m.of("side")[0].value for m in found.mentions if m.says("side") and not m.says("target")]
    small = sum(word in ("the", "of") for word in found.words) + len(sides)
    whole = [m for m in found.all_of("target") if m.last - m.first >= len(found.words) - small]
    choice = meaning(whole[0], modality(row), name) if whole else None
    if choice is None or choice.name is None:
        return None, side
    own, _, own_side = _own(choice.name, None, side or choice.side or (sides[0] if sides else None))
    return own, own_side


def _agree(wanted: str, got: str, row: Row) -> bool:
    known = vocabulary()
    if wanted in known.ancestors(got):
        return True
    if got not in known.ancestors(wanted) or known.targets[got].modalities:
        return False
    text = " ".join(phrase(row["instruction"]))
    return not any(word[:4] in text for word in phrase(wanted) if word not in _GENERAL)
