"""Scored runs on the test splits of datasets, as one record for each sample.

PSNR and SSIM of modification are those inside the area that changes, and the background is what lies outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mie
from mie.datasets.dataset import Dataset
from mie.editors.base import open_editor
from mie.editors.runs import Run
from mie.scoring.results import Results
from mie.training.compact import data_set_of

Record = dict[str, Any]
# Modification has columns of its own in the scores; here they stand with those of the other perspectives.
_NAMES = {
    "changed_psnr": "psnr",
    "changed_ssim": "ssim",
    "unchanged_psnr": "b_psnr",
    "unchanged_ssim": "b_ssim",
}
BASELINES = {
    "perception": ("identity", "otsu", "kmeans"),
    "modification": ("identity", "telea"),
    "transformation": ("identity", "nlm", "bilateral"),
}
# What a line of a table is, by perspective. `NAME_more` holds other images of the data set NAME.
GROUPS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "perception": lambda record: data_set_of(record["source"]),
    "transformation": lambda record: str(record["target"]),
    "modification": lambda record: str(record["task"]),
}


class Bench(NamedTuple):
    """The runs on one dataset, by their folders' names."""

    dataset: Dataset
    runs: dict[str, Run]
    records: dict[str, list[Record]]

    def part(self, perspective: str) -> dict[str, list[Record]]:
        return {
            name: [record for record in records if record["perspective"] == perspective]
            for name, records in self.records.items()
        }

    def trained(self, perspective: str) -> Counter[str]:
        """Group -> samples in the train split."""
        columns = self.dataset.table(["perspective", "source", "target", "task"], "train")
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        return Counter(GROUPS[perspective](row) for row in rows if row["perspective"] == perspective)

    def weights(self) -> dict[str, str]:
        """Run -> SHA-256 of its weights, where its editor has some."""
        digests = {name: run.info["editor"]["meta"].get("weights_sha256") for name, run in self.runs.items()}
        return {name: sha256 for name, sha256 in digests.items() if sha256}


def make(datasets: Sequence[Path], runs: Path, editor: str) -> list[Path]:
    """Run and score the baselines and `editor` into RUNS/dataset/editor; returns these folders.

    The beginning of the weights' SHA-256 is part of the editor's folder: new weights are a new run, and the
    baselines' stay as they are.
    """
    with open_editor(editor) as opened:
        sha256 = str(opened.about().get("weights_sha256", ""))
    folders = []
    for dataset in map(Dataset, datasets):
        kinds = sorted(set(dataset.table(["perspective"], "test")["perspective"]))
        names = {spec: spec for kind in kinds for spec in BASELINES[kind]}
        names[editor] = "-".join(filter(None, (editor.partition(":")[0], sha256[:8])))
        for spec, name in names.items():
            folder = runs / dataset.name / name
            print(folder, flush=True)
            mie.run(dataset.folder, spec, folder, split="test")
            mie.score(folder)
            folders.append(folder)
    return folders


def read(folders: Sequence[Path]) -> list[Bench]:
    """Runs scored by `mie score`, gathered by dataset. Gains need a run called `identity`."""
    benches: dict[str, Bench] = {}
    for run in map(Run.open, folders):
        bench = benches.setdefault(run.info["dataset"]["digest"], Bench(run.dataset(), {}, {}))
        name = run.folder.resolve().name
        if name in bench.runs:
            raise SystemExit(f"two runs on {bench.dataset.name} are called {name}: rename a folder")
        bench.runs[name], bench.records[name] = run, records_of(run)
    for bench in benches.values():
        for records in bench.records.values():
            add_gains(records, bench.records.get("identity", []))
    return list(benches.values())


def records_of(run: Run) -> list[Record]:
    """One for each sample, as `summary` takes them: a metric without a number is not in `scores`.

    `confidence` is the editor's own; None where it says none.
    """
    table, edits = Results.open(run.folder, "miedb", "paper").table, run.edits()
    chosen = [(_NAMES.get(name, name), table.select(name, 1)) for name in table.values]
    return [
        {
            "id": sample,
            **{key: names[at] for key, names in table.groups.items()},
            "patient": patient or case,
            "patient_known": bool(patient),
            "confidence": edits[sample, 0].meta.get("confidence") if (sample, 0) in edits else None,
            "scores": {name: float(one.values[at]) for name, one in chosen if one.scored[at]},
        }
        for at, (sample, (patient, case)) in enumerate(zip(table.ids, table.identities, strict=True))
    ]


def add_gains(records: Sequence[Record], identity: Sequence[Record]) -> None:
    """`gain_psnr` and `gain_ssim` over the input itself, sample by sample."""
    before = {record["id"]: record["scores"] for record in identity}
    for record in records:
        now, start = record["scores"], before.get(record["id"], {})
        both = [metric for metric in ("psnr", "ssim") if metric in now and metric in start]
        record["scores"] = {**now, **{f"gain_{metric}": now[metric] - start[metric] for metric in both}}
