"""Scoring keeps up with any model, and a run asks as fast as its connections allow.

Scores answers to a made-up set of closed questions, and beside it reads the same lines as JSON and does
nothing with them. Then answers questions with a model on this machine that replies after 50 ms over 16
connections: the rate, its ratio to what the connections allow, and beside it a bare loop of httpx.

    python -m bench.answers --scored 100000 --asked 20000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.judge import bare
from mie.judges import JudgeOptions
from mie.questions.answers import Given, answer_questions
from mie.questions.record import LETTERS, TASKS, Question, QuestionImage
from mie.questions.scoring.score import score_answers
from mie.questions.store import QuestionSet
from mie.questions.write import write_questions

SCORED_TARGET = 20.0  # seconds for 100,000 answers
LATENCY, CONNECTIONS = 0.05, 16
SHARE = 0.9  # of what a bare loop of httpx reaches in the same minutes, whatever else the machine does
REPLIES = ("{}", "({})", "**{}**", "The answer is {}.", "{}. ", "It is hard to say.", "A or B", "")


def questions(folder: Path, count: int, images: int, side: int) -> QuestionSet:
    rng = np.random.default_rng(0)
    pictures = [QuestionImage.of(rng.integers(0, 255, (side, side), np.uint8)) for _ in range(images)]
    tasks = list(TASKS)
    first = Question("0", "closed", "?", "a", (pictures[0],), tuple("abcde"), split="test")
    made = (
        replace(
            first,
            id=f"{number:016x}",
            text=f"Which of these is it, in case {number}?",
            answer="abcde"[number % 5],
            images=(pictures[number * images // count],),
            task=tasks[number % 15],
            modality=("CT", "MRI", "PET")[number % 3],
            source="bench",
            case_id=f"c{number // 10}",
            patient_id=f"p{number // 40}",
        )
        for number in range(count)
    )
    write_questions(made, folder, name="bench")
    return QuestionSet(folder)


def score(folder: Path, count: int) -> float:
    found = questions(folder / "set", count, 50, 16)
    run = answer_questions(found, "constant", folder / "run")
    lines = [
        Given(f"{n:016x}", "seen", "done", REPLIES[n % len(REPLIES)].format(LETTERS[n % 5])).line()
        for n in range(count)
    ]
    (run.folder / "answers.jsonl").write_text("".join(lines))
    start, used = time.perf_counter(), time.process_time()
    results = score_answers(run)
    wall, cpu = time.perf_counter() - start, time.process_time() - used
    if results["accuracy"].n + results["accuracy"].unscored != count:
        sys.exit("not every answer was looked at")
    start = time.process_time()
    for line in (run.folder / "answers.jsonl").read_text().splitlines():
        json.loads(line)
    floor = time.process_time() - start
    print(
        f"{count:,} answers scored in {wall:.1f} s, {cpu:.1f} s of processor time, "
        f"{cpu / floor:.0f} times reading them"
    )
    return cpu * 100_000 / count


def ask(folder: Path, count: int) -> float:
    found = questions(folder / "asked", count, max(1, count // 10), 256)
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "tests.judges.server", "--delay", str(LATENCY)]
    server = subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    try:
        options = JudgeOptions("", concurrency=CONNECTIONS)
        start, used = time.perf_counter(), time.process_time()
        run = answer_questions(found, f"openai:tiny,base_url={url}", folder / "answers", options=options)
        wall, cpu = time.perf_counter() - start, time.process_time() - used
        floor, floor_cpu = bare(url, min(count, 2000), 256)
    finally:
        server.stdin.close()  # type: ignore[union-attr]
        server.wait(10)
    if not run.complete:
        sys.exit("not every question was answered")
    most = CONNECTIONS / LATENCY
    rate = count / wall
    print(
        f"{count:,} answers, {LATENCY * 1e3:.0f} ms, {CONNECTIONS} connections: "
        f"{rate:.0f} a second of {most:.0f} ({rate / most:.2f}), "
        f"{1e3 * cpu / count:.2f} ms of processor time each; "
        f"bare httpx {floor:.0f} a second, {floor_cpu:.2f} ms"
    )
    return rate / floor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scored", type=int, default=100_000)
    parser.add_argument("--asked", type=int, default=2_000, help="20000 for the whole measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mie-bench-") as folder:
        seconds = score(Path(folder), options.scored)
        share = ask(Path(folder), options.asked)
    if seconds > SCORED_TARGET or share < SHARE:
        sys.exit(f"targets missed: {SCORED_TARGET:g} s for 100,000, {SHARE:g} of bare httpx")


if __name__ == "__main__":
    main()
