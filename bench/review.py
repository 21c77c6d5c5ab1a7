"""The review under load: 50 people clicking through, and 100,000 items.

python bench/review.py            both
python bench/review.py load|items

The server is the command itself, in its own process, with SQLite. People think for about two seconds between
two answers (`THINK`). Times are measured at the client, network included. Ratios are to the time in which the
same server sends the same client a static file. It takes two to four minutes; progress goes to stderr. Exit
code 1: an answer was lost, doubled or changed.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.sources import write_sources
from mie.cli._show import Bar, progress_bar
from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.recipe import parse_recipe
from mie.datasets.write import write_dataset
from mie.review.auth import create_invite
from mie.review.database import Database, answers, events

PEOPLE = 50
ANSWERS = 20  # of each person
THINK = 2.0  # seconds, on average
ITEMS = 100_000


@contextmanager
def server(*arguments: object):  # type: ignore[no-untyped-def]
    """(process, URL, one-time token, seconds until it listened)."""
    command = [sys.executable, "-m", "mie", "review", *map(str, arguments), "--port", "0", "--no-open"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()  # type: ignore[union-attr]
        found = re.fullmatch(r"open (\S+)/#join=(\S+)\n", line)
        if found is None:
            sys.exit(f"the review did not start: {line!r}, exit code {process.poll()}")
        while True:
            if process.poll() is not None:
                sys.exit(f"the review ended by itself with exit code {process.poll()}")
            try:
                httpx.get(found[1])
                break
            except httpx.TransportError:
                time.sleep(0.01)
        yield process, found[1], found[2], time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


def peak_memory(process: subprocess.Popen[str]) -> float:
    """Largest resident size so far, in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


async def person(url: str, token: str, sent: dict[str, str], waits: dict[str, list[float]]) -> None:
    draw = random.Random(token)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        joined = (await client.post("/api/join", json={"token": token})).json()
        client.headers["X-CSRF-Token"] = joined["csrf"]
        await asyncio.sleep(draw.random() * 2 * THINK)
        for _ in range(ANSWERS):
            start = time.perf_counter()
            given = (await client.post("/api/tasks/inspect/next", json={"count": 3})).json()["items"]
            waits["next"].append(time.perf_counter() - start)
            item = given[0]
            start = time.perf_counter()
            (await client.get(item["images"]["reference"] + "&side=512")).raise_for_status()
            waits["image"].append(time.perf_counter() - start)
            await asyncio.sleep(draw.uniform(0.5, 1.5) * THINK)
            body = {
                "key": uuid.uuid4().hex,
                "version": item["version"],
                "seconds": 1.0,
                "answer": {"kind": "inspect", "decision": draw.choice(["accept", "flag"])},
            }
            start = time.perf_counter()
            reply = await client.post(f"/api/items/{item['id']}/answers", json=body)
            waits["answer"].append(time.perf_counter() - start)
            assert reply.status_code == 201, reply.text
            sent[body["key"]] = body["answer"]["decision"]
            if draw.random() < 0.1:  # a client that did not get the reply sends it again
                again = await client.post(f"/api/items/{item['id']}/answers", json=body)
                assert again.status_code == 200
                assert again.json()["event"] == reply.json()["event"]
            start = time.perf_counter()
            await client.get("/")
            waits["static page"].append(time.perf_counter() - start)


async def crowd(url: str, tokens: list[str], sent: dict[str, str]) -> dict[str, list[float]]:
    waits: dict[str, list[float]] = {n: [] for n in ("static page", "next", "image", "answer")}
    with progress_bar("answers") as bar:
        people = asyncio.gather(*(person(url, token, sent, waits) for token in tokens))
        while not people.done():
            bar(len(sent), PEOPLE * ANSWERS)
            await asyncio.wait([people], timeout=1)
    await people
    return waits


def load() -> None:
    with tempfile.TemporaryDirectory(prefix="mie-bench-") as folder:
        root = Path(folder)
        config = parse_recipe(write_sources(root / "source", 200, 512), where="bench", base=Path())
        build(config, root / "dataset", workers=2)
        place = root / "review.sqlite"
        with server(root / "dataset", "--db", place, "--kind", "inspect", "--raters", 10) as (
            process,
            url,
            *_,
        ):
            database = Database(place)
            with database.write() as connection:
                tokens = [
                    create_invite(connection, name=f"P{n}", role="rater", days=1)[1] for n in range(PEOPLE)
                ]
            sent: dict[str, str] = {}
            start = time.perf_counter()
            waits = asyncio.run(crowd(url, tokens, sent))
            seconds = time.perf_counter() - start
            memory = peak_memory(process)
        with database.read() as connection:
            kept = {row.key: row.payload["decision"] for row in connection.execute(events.select())}
            pairs = Counter((row.item_id, row.user_id) for row in connection.execute(answers.select()))
        database.close()
        print(f"{PEOPLE} people, {len(sent)} answers in {seconds:.0f} s, SQLite, {memory:.0f} MB")
        page = statistics.median(waits["static page"])
        for name, values in waits.items():
            median, p99 = statistics.median(values), float(np.quantile(values, 0.99))
            times = f"median {median * 1e3:6.1f} ms   p99 {p99 * 1e3:6.1f} ms"
            print(f"{name:12s} {times}   {median / page:4.1f}x the page")
        wrong = {
            "lost": len(sent.keys() - kept.keys()),
            "doubled": len(kept.keys() - sent.keys()),
            "changed": sum(kept[key] != sent[key] for key in sent.keys() & kept.keys()),
            "twice on one item": sum(n > 1 for n in pairs.values()),
        }
        print(", ".join(f"{name} {number}" for name, number in wrong.items()), flush=True)
        if any(wrong.values()):
            sys.exit("answers went wrong")


def many(root: Path) -> Path:
    """Write a dataset of `ITEMS` small samples."""
    config = parse_recipe(write_sources(root / "source", 4, 128), where="bench", base=Path())
    build(config, root / "few", workers=1)
    few = list(Dataset(root / "few").samples())
    dataset = Dataset(root / "few")

    def samples(bar: Bar):  # type: ignore[no-untyped-def]
        for n in range(ITEMS):
            bar(n, ITEMS)
            one: Any = few[n % len(few)]
            yield replace(one, id=f"{n:016x}", case_id=str(n), patient_id=None)

    with progress_bar("writing samples") as bar:
        write_dataset(
            samples(bar), root / "many", name="many", description="", recipe={},
            licenses=dataset.info["licenses"], deidentified=True,
        )  # fmt: skip
    return root / "many"


def items() -> None:
    with tempfile.TemporaryDirectory(prefix="mie-bench-") as folder:
        root = Path(folder)
        dataset = many(root)
        for when in ("first start", "second start"):
            with server(dataset, "--kind", "inspect", "--raters", 2) as (process, url, token, seconds):
                with httpx.Client(base_url=url, timeout=60) as client:
                    start = time.perf_counter()
                    client.get("/")
                    me = client.post("/api/join", json={"token": token}).json()
                    client.headers["X-CSRF-Token"] = me["csrf"]
                    given = client.post("/api/tasks/inspect/next", json={"count": 3}).json()["items"]
                    for name in ("input", "reference"):
                        client.get(given[0]["images"][name])
                    page = time.perf_counter() - start
                    times = []
                    for _ in range(50):
                        item = client.post("/api/tasks/inspect/next", json={"count": 3}).json()["items"][0]
                        body = {"key": uuid.uuid4().hex, "version": item["version"], "seconds": 1}
                        start = time.perf_counter()
                        path = f"/api/items/{item['id']}/answers"
                        client.post(path, json={**body, "answer": {"kind": "inspect", "decision": "accept"}})
                        times.append(time.perf_counter() - start)
                    start = time.perf_counter()
                    client.get("/api/tasks/inspect/figures")
                    figures = time.perf_counter() - start
                memory = peak_memory(process)
            print(f"{ITEMS:,} items, {when}: listens after {seconds:.1f} s, {memory:.0f} MB", flush=True)
            answer = statistics.median(times)
            for name, value in (("first page", page), ("answer", answer), ("figures", figures)):
                print(f"  {name:10s} {value * 1e3:6.0f} ms")


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["load", "items"]
    for name in wanted:
        {"load": load, "items": items}[name]()
