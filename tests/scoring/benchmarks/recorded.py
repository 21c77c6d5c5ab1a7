"""Transcripts: what the loopback judge of a test said, kept beside the tests and replayed without a server.

`python -m tests.scoring.benchmarks.recorded medebench` writes one again after a prompt or a test's dataset
changed.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path

from mie.judges import JudgeOptions

FOLDER = Path(__file__).parent / "transcripts"
KEPT = ("key", "repeat", "repair", "prompt", "model", "reply", "finish", "refusal", "usage")


def transcript(name: str) -> JudgeOptions:
    return JudgeOptions(f"replay:{FOLDER / name}.jsonl")


def record(name: str) -> Path:
    """Score the test's run over HTTP and keep what was said, in order of the questions' keys."""
    from tests.judges.server import JudgeServer

    module = importlib.import_module(f"tests.scoring.benchmarks.{name}.made")
    with tempfile.TemporaryDirectory() as folder, JudgeServer(module.answer) as server:
        run = module.make_run(Path(folder))
        module.score(run, judge=JudgeOptions(f"openai:tiny,base_url={server.url}"))
        files = sorted(Path(folder).glob("*/judge/*.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    lines.sort(key=lambda line: (line["key"], line["repair"]))
    path = FOLDER / f"{name}.jsonl"
    kept = ({key: line[key] for key in KEPT} for line in lines)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept), encoding="utf-8")
    return path


if __name__ == "__main__":
    print(record(sys.argv[1]))
