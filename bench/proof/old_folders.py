"""Make `tests/fixtures/old_folders`: datasets, runs and a review as the code of the day leaves them.

    python -m bench.proof.old_folders NEW_FOLDER

The folders in the repository were made before the packages were rearranged, and stay as they are: a test
opens them with the code of today. Made again, they would prove nothing.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.proof import people
from bench.proof.commands import CommandLine

# The smaller of the two patients, three slices at most: the fixture should stay below a megabyte or so.
BRAIN = {"images": "images/{patient}2.nrrd", "masks": "masks/{patient}2.nrrd"}
SOURCES: dict[str, list[Any]] = {
    "perception": [
        {"name": "sample_brain_mri", "layout": {**BRAIN, "slices": 3}},
        {"name": "sample_breast_mri", "layout": {"slices": 1}},
    ],
    "transformation": [{"name": "sample_brain_mri", "layout": {**BRAIN, "slices": 1}}, "sample_spine_ct"],
    "modification": [{"name": "sample_brain_mri", "layout": {**BRAIN, "slices": 1}}],
}
RUNS = {
    "otsu": ("perception", "otsu"),
    "kmeans": ("perception", "kmeans"),
    "telea": ("modification", "telea"),
    "unfinished": ("transformation", "nlm"),
}
KINDS = ("inspect", "mask", "rank")
# Nobody listens there when the test scores again: every reply must come from the run's journal.
JUDGE_PORT = 47911
JUDGE = f"openai:loopback,base_url=http://127.0.0.1:{JUDGE_PORT}/v1"


def make(mie: CommandLine) -> dict[str, Any]:
    """Fill the folder; what a test should find in it."""
    for name, sources in SOURCES.items():
        kind = {"kind": name} if name != "transformation" else {"kind": name, "per_case": 1}
        body = {"name": f"old-{name}", "seed": 7, "recipe": kind, "split": {"test": 0.5}, "bins": [128]}
        mie.write(f"{name}.yaml", {**body, "sources": sources})
        mie("build", f"{name}.yaml", "-o", name, "--no-stats")
    for name, (dataset, editor) in RUNS.items():
        mie("run", dataset, "-e", editor, "-o", f"runs/{name}")
    with mie.judge(JUDGE_PORT) as judge:
        for variant in ("paper", "as_released"):
            for run in ("otsu", "kmeans"):
                mie("score", f"runs/{run}", "--variant", variant)
            mie("score", "runs/otsu", "--variant", variant, "--protocol", "medebench")
            mie("score", "runs/telea", "--variant", variant, "--judge", judge)
    places = ["perception", "runs/otsu", "runs/kmeans"]
    database = "review/review.sqlite"
    people.review(mie, places, database, KINDS)
    expected: dict[str, Any] = {"datasets": {}, "exports": {}, "reports": {}}
    for name in SOURCES:
        info = mie.document(f"{name}/dataset.json")
        expected["datasets"][name] = {"digest": info["digest"], "samples": info["counts"]["samples"]}
    for kind in KINDS:
        mie("review", *places, "--db", database, "--kind", kind, "--export", f"export-{kind}.csv")
        expected["exports"][kind] = mie.text(f"export-{kind}.csv").splitlines()
    for variant in ("paper", "as_released"):
        mie("report", "runs/otsu", "runs/kmeans", "-o", f"report-{variant}", "--variant", variant)
        table = mie.text(f"report-{variant}/tables/leaderboard.csv")
        expected["reports"][variant] = table.splitlines()
    edits = mie.lines("runs/unfinished/edits.jsonl")
    expected["outputs"] = {line["sample_id"]: line["sha256"] for line in edits}
    return expected


def interrupt(run: Path) -> None:
    """The run as a kill after its first edit leaves it."""
    first, *_ = (run / "edits.jsonl").read_text().splitlines()
    (run / "edits.jsonl").write_text(first + "\n")
    for path in (run / "outputs").iterdir():
        if json.loads(first)["path"] != f"outputs/{path.name}":
            path.unlink()
    info = json.loads((run / "run.json").read_text())
    info["status"] = "running"
    info["counts"] |= {"edits": 0, "done": 0}
    (run / "run.json").write_text(json.dumps(info, indent=2) + "\n")


def forget_machine(folder: Path) -> None:
    """Leave out where, and on what machine, the runs were made."""
    for path in folder.glob("runs/*/run.json"):
        info = json.loads(path.read_text())
        info["dataset"]["path"] = f"/data/{Path(info['dataset']['path']).name}"
        info["environment"] = {"system": "Linux", "machine": "x86_64", "cores": 2}
        path.write_text(json.dumps(info, indent=2) + "\n")
    with sqlite3.connect(folder / "review/review.sqlite") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.execute("PRAGMA journal_mode=DELETE")
    database.close()


def main() -> None:
    target = Path(sys.argv[1])
    if target.exists():
        raise SystemExit(f"{target} is there already")
    with tempfile.TemporaryDirectory(prefix="mie-old-") as name:
        mie = CommandLine(Path(name) / "old")
        expected = make(mie)
        interrupt(mie.folder / "runs/unfinished")
        forget_machine(mie.folder)
        for rest in mie.folder.iterdir():
            if rest.is_file():
                rest.unlink()
        for rest in ("report-paper", "report-as_released"):
            mie.remove(rest)
        for rest in (*mie.folder.rglob(".lock"), *mie.folder.rglob("*.radar.png")):
            rest.unlink()
        mie.write("expected.json", expected)
        shutil.copytree(mie.folder, target)


if __name__ == "__main__":
    main()
