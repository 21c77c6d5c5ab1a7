"""Datasets, runs and reviews made by an earlier version still open, score, resume and export."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked_python

FIXTURE = Path(__file__).parent / "fixtures" / "old_folders"
EXPECTED = json.loads((FIXTURE / "expected.json").read_text(encoding="utf-8"))
VARIANTS = ("paper", "as_released")
REVIEWED = ("perception", "runs/otsu", "runs/kmeans", "--db", "review/review.sqlite")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy that may be written to."""
    return Path(shutil.copytree(FIXTURE, tmp_path / "old"))


def mie(folder: Path, *words: object, codes: tuple[int, ...] = (0,)) -> str:
    command = [sys.executable, "-m", "mie", *map(str, words)]
    environment = {**os.environ, "MIE_WEIGHTS": str(folder / "weights")}
    done = forked_python.run(command, cwd=folder, env=environment)
    assert done.returncode in codes, done.stderr
    return done.stdout


def scores_of(run: Path, name: str) -> list[Any]:
    """The header without the version of mie, and the lines."""
    header, *lines = map(json.loads, (run / f"scores/{name}.jsonl").read_text(encoding="utf-8").splitlines())
    return [{key: value for key, value in header.items() if key != "mie"}, *lines]


def means_of(run: Path, name: str) -> list[Any]:
    """Every number of a summary but the intervals, whose method may change."""
    document = json.loads((run / f"summary/{name}.json").read_text(encoding="utf-8"))
    return [
        {
            "group": item["group"],
            "metrics": {
                metric: {key: value for key, value in entry.items() if key != "ci95"}
                for metric, entry in item["metrics"].items()
            },
        }
        for item in document["groups"]
    ]


def keeps(new: Any, old: Any) -> bool:
    """Everything that was there is there, unchanged; metrics and facts may have been added."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and keeps(new[key], old[key]) for key in old)
    if isinstance(old, list) and all(isinstance(item, str) for item in old):
        return [item for item in new if item in old] == old
    if isinstance(old, list):
        return len(new) == len(old) and all(map(keeps, new, old))
    return bool(new == old) or (new is None and old == "nan")  # what is no number was text once


@pytest.mark.parametrize("name", EXPECTED["datasets"])
def test_a_dataset_verifies_and_keeps_its_digest(old: Path, name: str) -> None:
    expected = EXPECTED["datasets"][name]
    verified = json.loads(mie(old, "verify", name, "--json"))
    assert verified == {"ok": True, "samples": expected["samples"], "problems": []}
    # Exported and imported, every sample is read and hashed again.
    mie(old, "export", name, "-f", "folder", "-o", "exported")
    mie(old, "import", "exported", "-f", "folder", "-o", "imported")
    again = json.loads((old / "imported/dataset.json").read_text(encoding="utf-8"))
    assert again["digest"] == expected["digest"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_old_scores_are_reported(old: Path, variant: str) -> None:
    mie(old, "report", "runs/otsu", "runs/kmeans", "-o", "report", "--variant", variant)
    shown = csv.DictReader((old / "report/tables/leaderboard.csv").read_text(encoding="utf-8").splitlines())
    expected = csv.DictReader(EXPECTED["reports"][variant])
    columns = ("run", "variant", "metric", "k", "mean", "n", "unscored", "capped", "missing")
    table = [[row[column] for column in columns] for row in shown]
    assert table == [[row[column] for column in columns] for row in expected]
    assert {row[0] for row in table} == {"otsu", "kmeans"}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("run", "protocol"), [("otsu", "miedb"), ("otsu", "medebench")])
def test_scoring_again_changes_nothing(old: Path, run: str, protocol: str, variant: str) -> None:
    name, words = f"{protocol}.{variant}", ["--protocol", protocol, "--variant", variant]
    folder = old / "runs" / run
    mie(old, "score", f"runs/{run}", *words, codes=(0, 3))
    assert keeps(scores_of(folder, name), scores_of(FIXTURE / "runs" / run, name))
    assert keeps(means_of(folder, name), means_of(FIXTURE / "runs" / run, name))


@pytest.mark.parametrize("variant", VARIANTS)
def test_judged_scores_are_reported_and_their_replies_replayed(old: Path, variant: str) -> None:
    """The prompts have new versions, so a judge would be asked again; old replies are still read."""
    folder, name = old / "runs/telea", f"miedb.{variant}"
    mie(old, "report", "runs/telea", "-o", "report", "--variant", variant)
    assert "miedb_rubric@1" in (old / "report/index.html").read_text(encoding="utf-8")
    journal = folder / "judge/127.0.0.1-loopback.jsonl"
    mie(old, "score", "runs/telea", "--variant", variant, "--judge", f"replay:{journal}", codes=(0, 3))
    assert keeps(means_of(folder, name), means_of(FIXTURE / "runs/telea", name))
    assert journal.read_bytes() == (FIXTURE / "runs/telea/judge" / journal.name).read_bytes()


def test_a_complete_run_is_left_alone(old: Path) -> None:
    before = (old / "runs/otsu/edits.jsonl").read_bytes()
    mie(old, "run", "perception", "-e", "otsu", "-o", "runs/otsu")
    assert (old / "runs/otsu/edits.jsonl").read_bytes() == before


def test_an_unfinished_run_resumes(old: Path) -> None:
    run = old / "runs/unfinished"
    first = (run / "edits.jsonl").read_text(encoding="utf-8")
    assert len(first.splitlines()) < len(EXPECTED["outputs"])
    mie(old, "run", "transformation", "-e", "nlm", "-o", "runs/unfinished")
    text = (run / "edits.jsonl").read_text(encoding="utf-8")
    assert text.startswith(first)
    edits = [json.loads(line) for line in text.splitlines()]
    assert {
        edit["sample_id"]: hashlib.sha256((run / edit["path"]).read_bytes()).hexdigest() for edit in edits
    } == EXPECTED["outputs"]
    assert json.loads((run / "run.json").read_text(encoding="utf-8"))["status"] == "complete"


@pytest.mark.parametrize("kind", EXPECTED["exports"])
def test_a_review_exports_its_answers(old: Path, kind: str) -> None:
    pytest.importorskip("fastapi", reason="needs the extra `review`")
    mie(old, "review", *REVIEWED, "--kind", kind, "--export", f"{kind}.csv")
    assert (old / f"{kind}.csv").read_text(encoding="utf-8").splitlines() == EXPECTED["exports"][kind]


def test_a_review_is_applied_and_compared_with_scores(old: Path) -> None:
    pytest.importorskip("fastapi", reason="needs the extra `review`")
    words = ("runs/otsu", "runs/kmeans", "--human", "review/review.sqlite", "--criterion", "accuracy")
    agreed = json.loads(mie(old, "agree", *words, "--json", codes=(0, 3)))
    samples = {line.split(",")[0] for line in EXPECTED["exports"]["rank"][1:]}
    assert agreed["human"]["samples"] == len(samples)
    assert {one["model"] for one in agreed["leaderboard"]["bradley-terry"]} == {"otsu", "kmeans"}
    mie(old, "build", "perception", "--apply-reviews", "review/review.sqlite", "-o", "reviewed", "--no-stats")
    assert json.loads(mie(old, "verify", "reviewed", "--json"))["ok"]
