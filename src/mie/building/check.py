"""`mie sources check`: read a data set as a build would, and say what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mie.errors import MieError
from mie.records import Refusal, Unit
from mie.sources.catalog import Entry
from mie.sources.open import open_source


@dataclass(slots=True)
class SourceReport:
    root: str
    units: int = 0
    cases: int = 0
    without_target: int = 0
    patients: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    refusals: list[Refusal] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "targets": dict(self.targets)}


def check_source(
    entry: Entry,
    root: Path | None,
    *,
    limit: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> SourceReport:
    """Scan and load; nothing is written."""
    source = open_source(entry, root)
    report = SourceReport(str(source.root))
    units: list[Unit] = []
    for found in source.scan():
        if isinstance(found, Refusal):
            report.refusals.append(found)
        else:
            units.append(found)
    report.units = len(units)
    report.targets.update({t.name: 0 for t in entry.targets})
    patients = set()
    chosen = units[:limit]
    for done, unit in enumerate(chosen):
        progress(done, len(chosen))
        try:
            for case in source.load(unit):
                if isinstance(case, Refusal):
                    report.refusals.append(case)
                    continue
                report.cases += 1
                report.without_target += not case.masks
                report.targets.update(case.masks.keys())
                patients.add(case.patient_id)
        except MieError as error:
            report.refusals.append(Refusal(entry.name, unit.key, "image", error.reason))
    report.patients = len(patients - {None})
    return report
