"""The runs' scores by the protocols that ask a judge: what each summary says, read for the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.errors import MieError
from mie.report.measures import MEASURES, Measure
from mie.report.scored import Cell, ScoredRun, cell_of, read_document, sha256_of
from mie.scoring.benchmarks.imgedit import TYPES
from mie.scoring.results import judges_differ, yardstick
from mie.scoring.score import read_lines

# Protocol -> the title of its section. MieDB stands here with its rubric; its pixel metrics lead the page.
TITLES: Final = {
    "miedb": "MieDB rubric",
    "medebench": "MedEBench",
    "imgedit": "ImgEdit",
    "omni-iie": "Omni IIE",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """One protocol: the documents of the runs that were scored by it, by the runs' names, in their order."""

    protocol: str
    documents: dict[str, dict[str, Any]]
    files: dict[str, Path]  # the scores behind each
    numbers: dict[str, int]  # which run of the page: its colour
    stale: list[str]  # runs whose edits changed since
    datasets: int  # how many different ones

    @property
    def title(self) -> str:
        return TITLES[self.protocol]

    @property
    def judges(self) -> dict[str, dict[str, Any]]:
        """Run -> its judge, where it has one."""
        return {name: found["judge"] for name, found in self.documents.items() if found.get("judge")}

    @property
    def one_judge(self) -> bool:
        return not judges_differ(list(self.judges.values()))

    def reasons(self) -> Counter[tuple[str, str, str]]:
        """(run, metric, why it has no number) -> attempts."""
        found: Counter[tuple[str, str, str]] = Counter()
        for name, path in self.files.items():
            for line in read_lines(path):
                for attempt in line["attempts"]:
                    found.update((name, metric, str(why)) for metric, why in attempt["unscored"].items())
        return found


def read_judged(runs: Sequence[ScoredRun], variant: str, *, force: bool) -> list[Judged]:
    """Every protocol that any of the runs was scored by; different judges in one need `force`."""
    found = [_read(protocol, runs, variant) for protocol in TITLES]
    shown = [one for one in found if one is not None]
    for one in shown:
        if not one.one_judge and not force:
            raise MieError(
                f"the runs were scored by different judges ({one.protocol})",
                expected="one provider, model, set of parameters and prompts",
                found=" / ".join(f"{name}: {yardstick(judge)}" for name, judge in one.judges.items()),
                fix="score them again with one judge, or pass --force to show them side by side all the same",
            )
    return shown


def _read(protocol: str, runs: Sequence[ScoredRun], variant: str) -> Judged | None:
    name = f"{protocol}.{variant}"
    there = {run.name: run for run in runs if (run.folder / "summary" / f"{name}.json").is_file()}
    fix = f"run `mie score --protocol {protocol} --variant {variant}` again"
    documents = {
        key: read_document(run.folder / "summary" / f"{name}.json", fix=fix) for key, run in there.items()
    }
    if protocol == "miedb":  # without a judge the leaderboard has said it all
        documents = {key: found for key, found in documents.items() if found.get("judge")}
    if not documents:
        return None
    files = {key: there[key].folder / "scores" / f"{name}.jsonl" for key in documents}
    numbers = {run.name: at for at, run in enumerate(runs) if run.name in documents}
    stale = []
    for key, path in files.items():
        header = _header(path, fix)
        if header.get("dataset_digest") != there[key].digest:
            raise MieError("scores of another dataset", where=path, expected=there[key].digest, fix=fix)
        if header.get("edits_sha256") != sha256_of(there[key].folder / "edits.jsonl"):
            stale.append(key)
    datasets = len({there[key].digest for key in documents})
    return Judged(protocol, documents, files, numbers, stale, datasets)


def _header(path: Path, fix: str) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            return dict(json.loads(file.readline()))
    except (OSError, ValueError) as error:
        raise MieError("not a file of scores", where=path, found=error, fix=fix) from None


# Leaderboards in the layout of each benchmark's paper: which columns, and each run's cell in them.

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
