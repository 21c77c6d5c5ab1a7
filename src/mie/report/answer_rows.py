"""Scored answers as rows of a page: runs on one set of questions, people first, then the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mie.errors import ConfigError, MieError
from mie.questions.answers import AnswerRun
from mie.questions.scoring.metrics import NAME
from mie.report.scored import Cell, Support, cell_of
from mie.report.views import Label
from mie.scoring.results import Results
from mie.scoring.scores import Line


@dataclass(frozen=True)
class AnswerRow:
    """One run on the page."""

    name: str
    run: AnswerRun
    results: Results
    people: bool

    @property
    def cells(self) -> dict[str, Cell]:
        """`accuracy@1` and so on, and the macro mean."""
        document = self.results.document
        found = {key: _cell(entry) for key, entry in document["groups"][0]["metrics"].items()}
        if "accuracy" in document.get("macro", {}):
            found["macro@1"] = _cell(document["macro"]["accuracy"])
        return found

    def by(self, key: str) -> dict[str, dict[str, Cell]]:
        return {
            item["group"][key]: {name: _cell(entry) for name, entry in item["metrics"].items()}
            for item in self.results.document["groups"]
            if list(item["group"]) == [key] and item["group"][key]
        }

    @cached_property
    def lines(self) -> dict[str, Line]:
        """What each question got, by its id."""
        return {line.id: line for line in self.results.lines()}


def read_rows(folders: Sequence[Path | str], variant: str) -> list[AnswerRow]:
    if not folders:
        raise ConfigError("no answers to report", expected="one run folder or more")
    rows: list[AnswerRow] = []
    for folder in folders:
        run = AnswerRun.open(folder)
        try:
            results = Results.open(folder, NAME, variant)
        except MieError:
            raise MieError(
                "these answers are not scored",
                where=folder,
                expected=f"scores by {NAME}, variant {variant}",
                fix=f"run `mie vqa score {folder} --variant {variant}` first",
            ) from None
        taken = {row.name for row in rows}
        name = run.name if run.name not in taken else f"{run.name} ({Path(folder).resolve().name})"
        rows.append(AnswerRow(name, run, results, bool(run.info.get("people"))))
    digests = {row.run.info["questions"]["digest"] for row in rows}
    if len(digests) > 1:
        raise MieError(
            "the answers are to different question sets",
            expected="one digest",
            found=", ".join(f"{row.name}: {row.run.info['questions']['digest'][:12]}" for row in rows),
            fix="report answers to one set",
        )
    # People first, then the best.
    return sorted(rows, key=lambda row: (not row.people, -_mean(row), row.name))


def _mean(row: AnswerRow) -> float:
    cell = row.cells.get("accuracy@1")
    return -1.0 if cell is None or not cell.n else cell.mean


def _cell(entry: Mapping[str, Any]) -> Cell:
    return cell_of(entry, Support(int(entry.get("patients", 0)), int(entry.get("images_without_patient", 0))))


def labels(rows: Sequence[AnswerRow]) -> list[Label]:
    return [Label(row.name, at, badge="people" if row.people else "") for at, row in enumerate(rows)]
