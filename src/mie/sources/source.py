"""What every data set on disk can do (list units, load one), and checking one as a build would read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Protocol

from mie.core.registry import Registry
from mie.core.storage import local, url_of
from mie.errors import MieError
from mie.records import Case, Rejection, Unit
from mie.sources.catalog import Entry
from mie.sources.download import OfficialSplit, differences

_NAMED: Final = 3  # missing folders that an error names


class Source(Protocol):
    """A data set on disk."""

    entry: Entry
    root: Path

    def scan(self) -> Iterator[Unit | Rejection]:
        """Units in a stable order; files that fit nothing come as rejections."""
        ...

    def load(self, unit: Unit) -> Iterator[Case | Rejection]:
        """The cases of one unit. Raises `MieError` when the unit as a whole cannot be read."""
        ...


# Adapters by the layout that they read: entry, root -> source.
SOURCES: Final[Registry[Callable[[Entry, Path], Source]]] = Registry(
    "layout",
    {
        "folder": "mie.sources.folder:FolderSource",
        "paired": "mie.sources.folder:FolderSource",
        "medsegbench": "mie.sources.medsegbench:MedSegBenchSource",
        "volume": "mie.sources.volumes:VolumeSource",
        "dicom": "mie.sources.volumes:DicomSource",
    },
    group="mie.sources",
)


def open_source(entry: Entry, root: Path | None) -> Source:
    """The data set at `root`, a folder or a URL; a sample set needs none."""
    if root is None:
        if not entry.samples:
            raise MieError(
                "this data set needs a folder",
                where=entry.name,
                expected="root: the folder that holds it",
                fix=f"download it ({entry.home or 'see its paper'}) and give its folder as `root`",
            )
        from mie.sources.samples import samples_root

        root = samples_root(names=[entry.name]) / entry.name
    root = local(root)
    if not root.is_dir():
        raise MieError(
            "no such folder",
            where=f"data set {entry.name}",
            expected="the data set's folder",
            found=root.absolute(),
            fix="correct `root`; a path in a recipe is relative to the recipe's own folder",
        )
    source = SOURCES[entry.layout.kind](entry, root)
    return OfficialSplit(source) if entry.split_tables else source


def missing_folders(sources: Iterable[tuple[Entry, Path | None]]) -> dict[str, Path]:
    """The data sets whose folders do not exist, each with its folder; URLs are not looked at."""
    return {
        entry.name: root.absolute()
        for entry, root in sources
        if root is not None and url_of(root) is None and not root.is_dir()
    }


def refuse_missing_folders(sources: Iterable[tuple[Entry, Path | None]]) -> None:
    """`MieError` that counts and names them all, where several folders do not exist."""
    missing = missing_folders(sources)
    if len(missing) > 1:
        names = [f"{name} at {root}" for name, root in missing.items()]
        more = f", and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        raise MieError(
            f"{len(names):,} folders are missing",
            expected="the folder of each data set",
            found=", ".join(names[:_NAMED]) + more,
            fix="`mie sources check RECIPE` lists all; correct each `root`, or delete what you do not have",
        )


@dataclass(slots=True)
class SourceReport:
    root: str
    differences: list[str] = field(default_factory=list)  # from the download as its provider describes it
    units: int = 0
    cases: int = 0
    without_target: int = 0
    patients: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    rejections: list[Rejection] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # of the patients, with their cohort

    def as_dict(self) -> dict[str, Any]:
        body = {**asdict(self), "targets": dict(self.targets)}
        del body["names"]
        return body


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
        if isinstance(found, Rejection):
            report.rejections.append(found)
        else:
            units.append(found)
    report.units = len(units)
    report.differences = differences(entry, source.root, len(units))
    report.targets.update({t.name: 0 for t in entry.targets})
    chosen = units[:limit]
    for done, unit in enumerate(chosen):
        progress(done, len(chosen))
        try:
            for case in source.load(unit):
                if isinstance(case, Rejection):
                    report.rejections.append(case)
                    continue
                report.cases += 1
                report.without_target += not case.masks
                report.targets.update(case.masks.keys())
                if case.patient_id is not None:
                    report.names.add(case.patient_id)
        except MieError as error:
            report.rejections.append(Rejection(entry.name, unit.key, "image", error.reason))
    report.patients = len(report.names)
    return report


def shared_patients(reports: Mapping[str, SourceReport]) -> list[tuple[str, str, int]]:
    """Every two data sets that show the same patients, with how many; only those of one cohort can."""
    pairs = [(a, b, len(reports[a].names & reports[b].names)) for a, b in combinations(reports, 2)]
    return [pair for pair in pairs if pair[2]]
