"""Runs scored by the protocols that ask a judge, on the report's page."""

from __future__ import annotations

import csv
import importlib
import json
import re
import shutil
from pathlib import Path

import cv2
import pytest

from mie.errors import MieError
from mie.judges import JudgeOptions
from mie.report.page import write_report
from mie.scoring.benchmarks.imgedit.score import IMGEDIT
from mie.scoring.benchmarks.medebench.score import MEDEBENCH
from mie.scoring.benchmarks.miedb import MIEDB
from mie.scoring.benchmarks.omni_iie.score import OMNI_IIE
from mie.scoring.statistics.compare import judges_differ
from tests.report.test_page import Reader
from tests.scoring.benchmarks.recorded import FOLDER, transcript

PROTOCOLS = {"medebench": "medebench", "imgedit": "imgedit", "omni_iie": "omni-iie"}
PUBLISHED = {
    "medebench": [row.model for row in MEDEBENCH],
    "imgedit": list(IMGEDIT),
    "omni_iie": list(OMNI_IIE),
}


def two_runs(folder: Path, name: str, second: JudgeOptions | None = None) -> tuple[list[Path], list[dict]]:
    """The test's run and a copy of it under another name, scored by the transcript."""
    made = importlib.import_module(f"tests.scoring.benchmarks.{name}.made")
    run = made.make_run(folder)
    other = shutil.copytree(run, folder / "other")
    info = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**info, "editor": {"name": "second <b>", "spec": "x"}}))
    judges = transcript(name), second or transcript(name)
    return [run, other], [made.score(r, judge=j) for r, j in zip((run, other), judges, strict=True)]


def section(page: str, name: str) -> str:
    """The part of the page between two headings of the second rank."""
    start = page.index(f'<h2 id="{name}">')
    end = page.find("<h2", start + 1)
    return page[start:end]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_without_miedb_scores(tmp_path, name):
    runs, (document, _) = two_runs(tmp_path, name)
    out = write_report(runs, tmp_path / "report")
    page = out.read_text(encoding="utf-8")
    assert Reader(page).open == []
    part = section(page, f"protocol-{PROTOCOLS[name]}")
    judge = document["judge"]
    # Beside each row of means: model, provider, states; every prompt's hash in full.
    states = ", ".join(f"{count:,} {state}" for state, count in judge["states"].items())
    assert f"{judge['answered_by'][0]} at replay" in part
    assert states in part
    assert all(sha256 in part for sha256 in judge["prompts"].values())
    for model in PUBLISHED[name]:
        assert f">{model}<" in part
    assert 'id="leaderboard"' not in page
    assert "second &lt;b&gt;" in part
    cut = ["track"] if name == "omni_iie" else []
    shown = [item["metrics"] for item in document["groups"] if list(item["group"]) == cut]
    for entry in (entry for metrics in shown for entry in metrics.values()):
        assert f"n {entry['n']:,}/{entry['n'] + entry['unscored']:,}" in part
    for attribute in re.findall(r'(?:src|srcset|href)="([^"#]+)"', page):
        assert (out.parent / attribute).is_file(), attribute
    with (out.parent / "tables/judged.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == "test" and not row["group"]]
    means = {row["metric"]: row for row in rows}
    for key, entry in document["groups"][0]["metrics"].items():
        mean = float("nan" if entry["mean"] is None else entry["mean"])
        assert float(means[key]["mean"]) == pytest.approx(mean, nan_ok=True)
        assert (means[key]["n"], means[key]["judge_provider"]) == (str(entry["n"]), "replay")


def test_the_papers_layouts(tmp_path):
    runs, (medebench, _) = two_runs(tmp_path / "a", "medebench")
    out = write_report(runs, tmp_path / "a/report").parent
    part = section((out / "index.html").read_text(), "protocol-medebench")
    heads = re.findall(r'<th scope="col">(?:<span[^>]*>)?([^<]+)', part)
    assert heads[:4] == ["Run", "EA", "CP", "VQ"]
    assert f"{medebench['groups'][0]['metrics']['ea@1']['mean']:.2f}" in part
    assert all(
        cv2.imread(str(out / f"plots/medebench_radar_{m}.png")) is not None for m in ("ea", "cp", "vq")
    )
    assert "Editing accuracy by organ" in part
    runs, (imgedit, _) = two_runs(tmp_path / "b", "imgedit")
    out = write_report(runs, tmp_path / "b/report").parent
    part = section((out / "index.html").read_text(), "protocol-imgedit")
    heads = re.findall(r'<th scope="col">(?:<span[^>]*>)?([^<]+)', part)
    assert heads[:6] == ["Run", "Add", "Adjust", "Remove", "Compose", "Overall"]
    assert f"{imgedit['groups'][0]['metrics']['imgedit@1']['mean']:.2f}" in part
    assert (out / "plots/imgedit_turns_memory.svg").is_file()
    runs, (omni, _) = two_runs(tmp_path / "c", "omni_iie")
    out = write_report(runs, tmp_path / "c/report").parent
    part = section((out / "index.html").read_text(), "protocol-omni-iie")
    assert "Single-turn track" in part
    assert "Multi-turn track" in part
    assert "Scale gap" in part
    assert omni["turn_slope"]["n"] == 0  # no weights, no Overall: no curve of it, but of the rest
    assert not (out / "plots/omni_iie_turns_overall.svg").exists()
    assert (out / "plots/omni_iie_turns_qa.svg").is_file()
    assert "Unscored, with reasons" in part


def test_other_judges_need_force(tmp_path):
    changed = tmp_path / "changed.jsonl"
    text = (FOLDER / "imgedit.jsonl").read_text(encoding="utf-8")
    changed.write_text(text.replace("tiny-judge-2025-01-01", "tiny-judge-2026-06-06"), encoding="utf-8")
    runs, _ = two_runs(tmp_path, "imgedit", JudgeOptions(f"replay:{changed}"))
    with pytest.raises(MieError, match=r"different judges \(imgedit\)"):
        write_report(runs, tmp_path / "report")
    assert not (tmp_path / "report").exists()
    page = write_report(runs, tmp_path / "report", force=True).read_text(encoding="utf-8")
    part = section(page, "protocol-imgedit")
    assert "tiny-judge-2025-01-01 at replay" in part
    assert "tiny-judge-2026-06-06 at replay" in part
    assert "do not compare" in part
    assert "<strong" not in part.partition("<h3>")[0]  # no best among yardsticks that differ
    assert "paired differences" not in part


def test_a_prompt_that_one_run_never_needed_is_no_difference():
    judge = {"model": "m", "provider": "p", "answered_by": ["m"], "parameters": {}}
    full = {**judge, "prompts": {"a@1": "1", "b@1": "2"}}
    assert not judges_differ([full, {**judge, "prompts": {"a@1": "1"}}])
    assert judges_differ([full, {**judge, "prompts": {"a@1": "3"}}])
    assert judges_differ([full, {**full, "answered_by": ["m-2"]}])
    assert judges_differ([full, {**full, "parameters": {"temperature": 1}}])
    assert not judges_differ([])


def test_the_rubric_beside_the_leaderboard_of_pixels(tmp_path):
    from tests.scoring.benchmarks.runs import attempt_at, modification, structure, write_run, write_samples

    samples = [modification("m0", 0), modification("m1", 1), structure("s", 2)]
    dataset = write_samples(samples, tmp_path / "dataset")
    run = write_run(tmp_path / "run", dataset, {s.id: [attempt_at(s, 1)] for s in samples})
    said = json.dumps({"conclusion": "", "score_list": [4] * 8})
    replies = [{"key": f"m{n}_0:rubric", "reply": said, "model": "judge-7"} for n in range(2)]
    path = tmp_path / "replies.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in replies))
    from tests.scoring.benchmarks.scoring import miedb as score_run

    score_run(run, judge=JudgeOptions(f"replay:{path}"))
    out = write_report([run], tmp_path / "report")
    page = out.read_text(encoding="utf-8")
    part = section(page, "protocol-miedb")
    assert "75.0" in part
    assert "n 2/2" in part
    assert "judge-7 at replay; miedb_rubric@2" in part
    assert "2 done" in part
    assert all(f">{row.model}<" in part for row in MIEDB)
    assert 'id="leaderboard"' in page
    # Grades go beyond 1: the histogram's last bin is not all there is.
    svg = (out.parent / "plots/distribution_rubric.svg").read_text()
    assert svg.count("<path") > 4
