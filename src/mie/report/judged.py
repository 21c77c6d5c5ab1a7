"""The runs' scores by the protocols that ask a judge: what each summary says, read for the report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.analysis.compare import judges_differ, yardstick
from mie.errors import MieError
from mie.protocols.scoring import read_lines
from mie.report.scored import ScoredRun, read_document, sha256_of

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
