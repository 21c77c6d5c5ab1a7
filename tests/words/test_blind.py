"""Instructions written without having seen the parser: which are read right, now and at first."""

from __future__ import annotations

import pytest

from tests.words import blind

ROWS = [(name, row) for name in blind.SETS for row in blind.rows(name)]
TRAPS = [row for _, row in ROWS if row["trap"]]
DECIDED = {text for name in blind.SETS for text in blind.NOTES["sets"][name]["debatable"]}


@pytest.mark.parametrize("name", blind.SETS)
def test_the_instructions_that_are_read_wrongly_are_those_that_are_listed(name: str) -> None:
    notes = blind.NOTES["sets"][name]
    wrong = {row["instruction"] for row in blind.rows(name) if blind.faults(row, blind.read(row))}
    assert wrong == {*notes["debatable"], *notes["known_failures"]}, "an improvement, or a regression"


@pytest.mark.parametrize("name", blind.SETS)
def test_the_figures_of_the_first_run_belong_to_the_set(name: str) -> None:
    rows, first = blind.rows(name), blind.NOTES["sets"][name]["first_run"]
    assert first["rows"] == len(rows)
    assert first["traps"] == sum(row["trap"] for row in rows)
    assert len({row["instruction"] for row in rows}) == len(rows)


def test_a_trap_never_alters_anatomy() -> None:
    for row in TRAPS:
        expected, got = row["expect"]["operation"], blind.read(row).operation
        assert got not in blind.ALTERING or got == expected, (row["instruction"], expected, got)


def test_nothing_is_altered_that_was_not_asked_for() -> None:
    wrong = []
    for _, row in ROWS:
        expected, got = row["expect"]["operation"], blind.read(row).operation
        if got in blind.ALTERING and expected != got and row["instruction"] not in DECIDED:
            wrong.append((row["instruction"], expected, got))
    assert not wrong
