"""Killed between descriptions and grades, or amid them: nothing is lost and no reply is asked for twice."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import mie
from tests import forked_python
from tests.judges.server import JudgeServer, Say
from tests.scoring.benchmarks.medebench.made import answer, make_run
from tests.scoring.benchmarks.recorded import transcript
from tests.scoring.benchmarks.scoring import medebench as score_run

SCORE = """
import sys
from mie.judges import JudgeOptions
from mie.scoring.score import score
score(sys.argv[1], "medebench", workers=1, judge=JudgeOptions(sys.argv[2], concurrency=1))
"""


def replies(folder: Path) -> int:
    files = folder.glob("*/judge/*.jsonl")
    return sum(file.read_bytes().count(b"\n") for file in files)


def test_kill_9(tmp_path):
    run = make_run(tmp_path)
    expected = score_run(run, judge=transcript("medebench"))["groups"]
    for file in tmp_path.glob("*/judge/*.jsonl"):
        file.unlink()
    environment = {**os.environ, "PYTHONPATH": str(Path(mie.__file__).parents[1])}
    with JudgeServer(lambda body: Say(answer(body), delay=0.05)) as server:
        command = [sys.executable, "-c", SCORE, str(run), f"openai:tiny,base_url={server.url}"]
        lost = 0
        for kill in (1, 5):
            process = forked_python.Started(command, env=environment)
            until = time.monotonic() + 60
            while replies(tmp_path) < kill and time.monotonic() < until:
                time.sleep(0.005)
            process.kill()
            server.wait_until_left()
            lost = len(server.requests) - replies(tmp_path)  # under way, or not yet synced
            assert lost <= 10
        forked_python.run(command, env=environment, check=True)
        assert replies(tmp_path) == 12
        assert len(server.requests) == 12 + lost
    summary = json.loads((run / "summary/medebench.paper.json").read_text())
    assert summary["groups"] == expected
