"""Hand-written instructions: what is read from them, and the share that is read wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mie.core.yaml_files import read_mapping
from mie.words import parse

FILES = {
    name: read_mapping(Path(__file__).with_name(f"{name}.yaml"), "instructions", expected="instructions:")
    for name in ("instructions", "held_out")
}
SHARE = 0.95  # of the instructions that must be read right
TRAPS = [row for body in FILES.values() for row in body["traps"]]
ALTERING = ("removal", "addition", "inpainting", "simulation")


def right(row: list[Any]) -> bool:
    text, modality, operation, targets, *excluded = row
    result = parse(text, modality or None)
    wanted = []
    for target in targets:
        name, colour, side = [*target.split("/"), "-", "-"][:3]
        wanted.append((name, None if colour == "-" else colour, None if side == "-" else side))
    got = [(t.name, t.colour, t.side) for t in result.targets]
    names = list(excluded[0]) if excluded else []
    return result.operation == operation and got == wanted and result.attributes.get("exclude", []) == names


def test_a_trap_never_alters_anatomy() -> None:
    for text, modality, expected, *_ in TRAPS:
        operation = parse(text, modality or None).operation
        assert operation == expected, (text, modality)


@pytest.mark.parametrize("name", FILES)
def test_the_share_of_instructions_that_is_read_right(name: str) -> None:
    body = FILES[name]
    rows = body["instructions"] + body["traps"]
    known = {tuple(row[:2]): row[2] for row in body["known_failures"]}
    wrong = {tuple(row[:2]) for row in rows if not right(row)}
    assert len(wrong) <= (1 - SHARE) * len(rows), wrong
    assert wrong == set(known), wrong ^ set(known)
    for (text, modality), operation in known.items():
        assert parse(text, modality or None).operation == operation
