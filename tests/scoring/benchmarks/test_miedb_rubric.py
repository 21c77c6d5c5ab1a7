"""Modification by a judge: from a run's folder to `rubric@1`, through replies on disk and over HTTP."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mie
from mie.cli import app
from mie.errors import ConfigError, ImageError, MieError
from mie.judges import JudgeOptions
from mie.report.page import write_report
from mie.scoring.benchmarks.miedb.rubric import RUBRIC, collage, rubric_score
from mie.scoring.statistics import compare_runs
from tests import forked_python
from tests.judges.server import JudgeServer, Say, images_of, texts_of
from tests.scoring.benchmarks.runs import (
    attempt_at,
    lines_of,
    modification,
    structure,
    transformation,
    write_run,
    write_samples,
)
from tests.scoring.benchmarks.scoring import miedb as score_run


def replay(folder: Path, replies: dict[str, object]) -> JudgeOptions:
    """A judge that says what stands here: grades, or a text."""
    lines = []
    for key, said in replies.items():
        text = json.dumps({"conclusion": "-", "score_list": said}) if isinstance(said, list) else said
        lines.append(json.dumps({"key": f"{key}:rubric", "reply": text, "model": "recorded-1"}))
        if not isinstance(said, list):
            lines.append(json.dumps({"key": f"{key}:rubric", "reply": text, "repair": True}))
    path = folder / "replies.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return JudgeOptions(f"replay:{path}")


@pytest.fixture
def run(tmp_path) -> Path:
    """Two modifications with two attempts, and one each of the others."""
    samples = [modification(f"m{n}", n) for n in range(4)]
    samples += [structure("s", 5), transformation("t", 6)]
    dataset = write_samples(samples, tmp_path / "dataset")
    outputs = {sample.id: [attempt_at(sample, n) for n in (1, 2)] for sample in samples}
    outputs["m2"] = [b"no picture", None]
    outputs["m3"] = ["out of memory", outputs["m3"][1]]
    return write_run(tmp_path / "run", dataset, outputs)


def test_the_mapping():
    assert rubric_score([1] * 8) == 0
    assert rubric_score([5] * 8) == 100
    assert rubric_score([1, 2, 3, 4, 5, 1, 2, 3]) == pytest.approx((21 / 8 - 1) / 4 * 100)


def test_the_collage_is_input_output_target_without_gaps():
    image, target = (np.full((8, 10, 3), value, np.uint8) for value in (10, 30))
    output = np.full((16, 20, 3), 20, np.uint8)
    shown = collage(image, output, target)
    assert shown.shape == (8, 30, 3)
    assert [int(shown[:, at : at + 10].min()) for at in (0, 10, 20)] == [10, 20, 30]
    assert collage(image[..., 0], output, target[..., 0]).shape == (8, 30, 3)
    with pytest.raises(ImageError):
        collage(image, output, target[:4])


def test_grades_become_numbers_and_everything_else_a_reason(run, tmp_path):
    grades = {"m0_0": [1, 2, 3, 4, 5, 1, 2, 3], "m0_1": [5] * 8, "m1_0": "Nice edit!", "m3_1": [2] * 8}
    document = score_run(run, judge=replay(tmp_path, grades))
    whole = document["groups"][0]["metrics"]
    assert whole["rubric@1"]["mean"] == pytest.approx(40.625)
    assert (whole["rubric@1"]["n"], whole["rubric@1"]["unscored"]) == (1, 3)
    assert whole["rubric@2"]["mean"] == pytest.approx((100 + 25) / 2)
    assert [whole[f"rubric_{n}@1"]["mean"] for n in range(1, 9)] == grades["m0_0"]
    assert whole["dice@1"]["n"] == whole["psnr@1"]["n"] == 1
    assert document["not_covered"] == {}
    groups = {next(iter(g["group"].values()), ""): g["metrics"] for g in document["groups"]}
    assert set(groups["modification"]) == {f"{name}@{k}" for name in RUBRIC for k in (1, 2)}
    lines = lines_of(run)
    assert "unparseable: there is no valid JSON object" in lines["m1"]["attempts"][0]["unscored"]["rubric"]
    assert "no recorded reply for m1_1:rubric" in lines["m1"]["attempts"][1]["unscored"]["rubric"]
    assert "unreadable output" in lines["m2"]["attempts"][0]["unscored"]["*"]
    assert "out of memory" in lines["m3"]["attempts"][0]["unscored"]["*"]
    stamp = lines["m0"]["attempts"][0]["judge"]
    assert (stamp["provider"], stamp["model"], stamp["prompt"]) == ("replay", "recorded-1", "miedb_rubric@2")
    assert document["judge"]["prompts"] == {"miedb_rubric@2": stamp["sha256"]}
    assert document["judge"]["states"] == {"done": 3, "failed": 2, "unparseable": 1}


def test_pixel_metrics_do_not_change_with_a_judge(run, tmp_path):
    plain = score_run(run)
    assert plain["not_covered"] == {"modification": 4}
    assert not any(name.startswith("rubric") for name in plain["groups"][0]["metrics"])
    judged = score_run(run, judge=replay(tmp_path, {}))
    for name, entry in plain["groups"][0]["metrics"].items():
        assert judged["groups"][0]["metrics"][name] == entry
    assert judged["groups"][0]["metrics"]["rubric@1"]["n"] == 0


def test_what_the_judge_sees(run):
    sample = modification("m0", 0)
    with JudgeServer(lambda _: json.dumps({"conclusion": "", "score_list": [3] * 8})) as server:
        judge = JudgeOptions(f"openai:tiny,base_url={server.url}")
        document = score_run(run, judge=judge)
        assert document["groups"][0]["metrics"]["rubric@1"]["mean"] == 50
        asked = len(server.requests)
        assert asked == 5
        score_run(run, variant="as_released", judge=judge)  # the same outputs, the same question
        assert len(server.requests) == asked
    body = next(b for b in server.requests if np.array_equal(images_of(b)[0][:, :48], sample.input))
    assert texts_of(body)[-1] == f"Instruction: <instruction>{sample.prompt}</instruction>"
    (shown,) = images_of(body)
    assert shown.shape == (40, 144, 3)
    np.testing.assert_array_equal(shown[:, 96:], sample.target_image)
    assert body["temperature"] == 0


def test_a_private_dataset_stays_here(run, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    info = json.loads((run.parent / "dataset/dataset.json").read_text())
    (run.parent / "dataset/dataset.json").write_text(json.dumps({**info, "deidentified": False}))
    with pytest.raises(MieError, match="leave this machine"):
        score_run(run, judge=JudgeOptions("openai:gpt-4o", allow_remote=True))
    assert not (run / "scores/miedb.paper.jsonl").exists()


def test_the_command(run, tmp_path):
    options = replay(tmp_path, {"m0_0": [3] * 8})
    base = ["score", str(run), "--judge", options.spec, "--workers", "1"]
    dry = CliRunner().invoke(app, [*base, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert "calls to make: 6 (0 already answered)" in dry.output
    assert "about 0.00 USD" in dry.output
    assert not (run / "scores/miedb.paper.jsonl").exists()
    done = CliRunner().invoke(app, base)
    assert done.exit_code == 3
    assert "judge recorded-1 at replay: 1 done, 5 failed" in done.output
    found = json.loads(CliRunner().invoke(app, [*base, "--json"]).stdout)
    assert found["groups"][0]["metrics"]["rubric@1"]["mean"] == 50
    for words, what in ((["--dry-run"], "needs a judge"), (["--judge", "opnai:x"], "no judge named")):
        error = CliRunner().invoke(app, ["score", str(run), *words]).exception
        assert isinstance(error, ConfigError)
        assert what in str(error)


def test_other_judges_are_not_compared(tmp_path):
    samples = [modification(f"m{n}", n) for n in range(3)]
    dataset = write_samples(samples, tmp_path / "dataset")
    runs = {}
    for name, model in (("a", "x"), ("b", "x"), ("c", "y")):
        runs[name] = write_run(tmp_path / name, dataset, {s.id: [attempt_at(s, 1)] for s in samples})
        replies = [
            {
                "key": f"{s.id}_0:rubric",
                "model": model,
                "reply": json.dumps({"conclusion": "", "score_list": [n] * 8}),
            }
            for n, s in enumerate(samples, start=2)
        ]
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in replies))
        score_run(runs[name], judge=JudgeOptions(f"replay:{path}"))
    files = {name: folder / "scores/miedb.paper.jsonl" for name, folder in runs.items()}
    (row,) = compare_runs({n: files[n] for n in "ab"}, "rubric@1")
    assert (row.n, row.difference) == (3, 0)
    with pytest.raises(ConfigError, match="different judges"):
        compare_runs(files, "rubric@1")
    assert len(compare_runs(files, "rubric@1", force=True)) == 3
    with pytest.raises(MieError, match="different judges"):
        write_report(list(runs.values()), tmp_path / "report")
    page = write_report(list(runs.values()), tmp_path / "report", force=True).read_text()
    assert "scored by different judges" in page
    one = write_report([runs["a"], runs["b"]], tmp_path / "two").read_text()
    assert "judged by x at replay" in one
    assert "Rubric: paired differences" in one


_SCORE = """
import json, sys
from mie.judges import JudgeOptions
from mie.scoring.score import score
options = JudgeOptions(sys.argv[2], concurrency=4)
print(json.dumps(score(sys.argv[1], workers=1, judge=options).document))
"""


def test_killed_at_random_nothing_is_lost_and_nothing_asked_twice(tmp_path):
    """A reply that lies on disk is never asked for again; only calls under way at the kill are."""
    samples = [replace(modification(f"m{n}", n), prompt=f"Remove lesion {n}.") for n in range(40)]
    dataset = write_samples(samples, tmp_path / "dataset")
    outputs = {s.id: [attempt_at(s, 1)] for s in samples}
    draw = random.Random(7)

    def answer(body):
        grades = [1 + (len(texts_of(body)[-1]) + int(images_of(body)[0].sum()) + n) % 5 for n in range(8)]
        return Say(json.dumps({"conclusion": "", "score_list": grades}), delay=0.05)

    environment = {**os.environ, "PYTHONPATH": str(Path(mie.__file__).parents[1])}
    with JudgeServer(answer) as server:

        def command(run: Path) -> list[str]:
            return [sys.executable, "-c", _SCORE, str(run), f"openai:tiny,base_url={server.url}"]

        straight = write_run(tmp_path / "straight", dataset, outputs)
        forked_python.run(command(straight), env=environment, check=True)
        assert len(server.requests) == 40

        killed = write_run(tmp_path / "killed", dataset, outputs)
        journal = killed / "judge/127.0.0.1-tiny.jsonl"
        again = 0
        for kill in (11, 27):
            server.requests.clear()
            known = _kept(journal)
            process = forked_python.Started(command(killed), env=environment)
            until = time.monotonic() + 60
            while len(known) + len(server.requests) < kill and time.monotonic() < until:
                time.sleep(draw.uniform(0.002, 0.02))
            process.kill()
            server.wait_until_left()
            asked = [texts_of(body)[-1] for body in server.requests]
            assert not known & set(asked)
            assert len(set(asked)) == len(asked)
            again += len(set(asked) - _kept(journal))
        assert again <= 2 * (4 + 4)  # under way, or come and not yet synced
        server.requests.clear()
        known = _kept(journal)
        printed = forked_python.run(command(killed), env=environment, check=True).stdout
        assert not known & {texts_of(body)[-1] for body in server.requests}
        assert len(known) + len(server.requests) == 40
    assert json.loads(printed)["judge"]["states"] == {"done": 40}
    first, second = (folder / "scores/miedb.paper.jsonl" for folder in (straight, killed))
    assert first.read_text() == second.read_text()


def _kept(journal: Path) -> set[str]:
    """The instructions whose replies are whole on disk."""
    if not journal.exists():
        return set()
    lines = journal.read_bytes().split(b"\n")[:-1]
    return {json.loads(line)["parts"][1] for line in lines}
