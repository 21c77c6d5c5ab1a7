"""Judging is limited by the judge, not by us.

A judge on this machine answers after 50 ms and is asked over 16 connections, with a collage of three images:
samples a second, and what a call costs this process in processor time. Beside it the same calls as a script
makes them, by httpx's own client and without a journal or parsers.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

from mie.judges import Draft, Image, JudgeOptions, Question, open_judge
from mie.judges.openai import data_url
from mie.scoring.benchmarks.miedb.rubric import _PARSER, _SCHEMA, PROMPT

TARGET = 200.0  # samples a second
CPU_TARGET = 3.0  # ms a call
LATENCY, CONNECTIONS = 0.05, 16


def picture(side: int) -> np.ndarray:
    """Smooth, with some noise: compresses as medical images do."""
    y, x = np.mgrid[:side, : 3 * side].astype(np.float32)
    wave = 90 + 60 * np.sin(x / 37) * np.cos(y / 23) + np.random.default_rng(0).normal(0, 2, y.shape)
    return np.repeat(np.clip(wave, 0, 255).astype(np.uint8)[..., None], 3, axis=2)


def drafts(calls: int, side: int, *, distinct: bool):
    base = picture(side)

    def draft(number: int) -> Draft:
        def make() -> Question:
            pixels = base.copy() if distinct else base
            if distinct:
                pixels[0, :3] = [[number % 256], [number // 256 % 256], [number // 65536]]  # stays grey
            return Question(PROMPT, (Image(pixels), f"Instruction: {number}"), _PARSER, _SCHEMA)

        return Draft(f"{number}_0:rubric", make, PROMPT)

    return (draft(number) for number in range(calls))


def measured(url: str, calls: int, side: int, *, distinct: bool) -> tuple[float, float]:
    """Samples a second and ms of processor time a call, of this process alone."""
    options = JudgeOptions(f"openai:tiny,base_url={url}", concurrency=CONNECTIONS)
    with tempfile.TemporaryDirectory(prefix="mie-bench-") as folder:
        dataset = {"deidentified": True}
        with open_judge(options, Path(folder), dataset=dataset) as judge:
            judge.ask(drafts(CONNECTIONS, 32, distinct=True))  # connections, imports
            start, used = time.perf_counter(), time.process_time()
            answers = judge.ask(drafts(calls, side, distinct=distinct))
            wall, cpu = time.perf_counter() - start, time.process_time() - used
    if not all(given[0].done for given in answers.values()):
        sys.exit("not every call was answered")
    return calls / wall, 1e3 * cpu / calls


def bare(url: str, calls: int, side: int) -> tuple[float, float]:
    """A client of httpx, as it comes."""
    image = data_url(Image(picture(side))).decode()
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "Instruction: 1"}]
    messages = [{"role": "system", "content": PROMPT.system}, {"role": "user", "content": content}]

    async def run() -> tuple[float, float]:
        client = httpx.AsyncClient(trust_env=False, timeout=60)
        left = iter(range(calls))

        async def call() -> None:
            body = {"model": "tiny", "messages": messages, "temperature": 0}
            (await client.post(f"{url}/chat/completions", json=body)).json()

        async def work() -> None:
            for _ in left:
                await call()

        await call()
        start, used = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(CONNECTIONS)))
        return calls / (time.perf_counter() - start), 1e3 * (time.process_time() - used) / calls

    return asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--long", type=int, default=0, help="calls for the memory check, e.g. 20000")
    options = parser.parse_args()
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "tests.judges.server", "--delay", str(LATENCY)]
    server = subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    try:
        side, calls = options.side, options.calls
        print(
            f"{calls} calls, {LATENCY * 1e3:.0f} ms, {CONNECTIONS} connections: "
            f"{CONNECTIONS / LATENCY:.0f} samples/s at most"
        )
        rate, cpu = measured(url, calls, side, distinct=False)
        print(f"judge, one image      {rate:7.0f} samples/s {cpu:6.2f} ms of processor time a call")
        encoded, encoding = measured(url, calls, side, distinct=True)
        print(f"judge, images encoded {encoded:7.0f} samples/s {encoding:6.2f} ms, {side}x{3 * side} each")
        floor, floor_cpu = bare(url, calls, side)
        print(f"bare httpx, one image {floor:7.0f} samples/s {floor_cpu:6.2f} ms")
        print(f"ratio to bare httpx   {rate / floor:7.2f} in speed, {cpu / floor_cpu:.2f} in processor time")
        if options.long:
            gc.collect()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            measured(url, options.long, 64, distinct=True)
            more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            print(f"{options.long} samples: {more / 1024:.0f} MiB more at the peak")
    finally:
        server.stdin.close()  # type: ignore[union-attr]
        server.wait(10)
    if rate < TARGET or cpu > CPU_TARGET:
        sys.exit(f"targets missed: {TARGET:g} samples/s, {CPU_TARGET:g} ms")


if __name__ == "__main__":
    main()
