"""The review server under faults: people answer, the server is killed or its disk fails, and they go on.

An answer counts as given once the server has confirmed it. At the end every confirmed answer must be in the
database under its own event, every item must have one answer, and nothing may have been recorded twice.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from bench.kills.faults import Control
from bench.kills.harness import DEADLY, SURVIVED, Harness, Outcome
from bench.kills.processes import Running
from mie.review.database import Database, answers, events

KINDS = ("kill", "at random", "full", "broken", "interrupted", "short")
_LINK = re.compile(r"open (http://\S+)/#join=(\S+)\n")
_CALLS, _SECONDS = 260, 0.8  # about what an undisturbed review takes


class _Person:
    """Somebody who keeps trying: the same answer is sent again, under the same key, until it is confirmed."""

    def __init__(self, seed: int) -> None:
        self.confirmed: dict[str, int] = {}  # key -> event
        self.refused = 0
        self._seed = seed
        self._cookies: dict[str, str] = {}

    def enter(self, url: str, token: str) -> httpx.Client:
        """Resume the session, or join by the link."""
        client = httpx.Client(base_url=url, timeout=20, cookies=self._cookies)
        me = client.get("/api/me")
        if me.status_code != 200:
            me = client.post("/api/join", json={"token": token})
            me.raise_for_status()
        client.headers["X-CSRF-Token"] = me.json()["csrf"]
        self._cookies = dict(client.cookies)
        return client

    def answer_all(self, client: httpx.Client) -> None:
        """Raise `httpx.HTTPError` when the server is gone, or answers with an error of its own."""
        while True:
            given = client.post("/api/tasks/inspect/next", json={"count": 2})
            given.raise_for_status()
            if not given.json()["items"]:
                return
            for item in given.json()["items"]:
                key = f"key-{self._seed}-{item['id']}-{item['version']}"[:60]
                body = {"key": key, "version": item["version"], "seconds": 1.5}
                decision = {"kind": "inspect", "decision": "accept"}
                said = client.post(f"/api/items/{item['id']}/answers", json={**body, "answer": decision})
                said.raise_for_status()
                self.confirmed[key] = said.json()["event"]


def review_case(one: Harness, seed: int, kinds: tuple[str, ...] = KINDS) -> Outcome:
    draw = random.Random(f"review {seed}")
    outcome = Outcome("review", seed)
    shutil.rmtree(one.out.parent, ignore_errors=True)
    one.out.mkdir(parents=True)
    person = _Person(seed)
    kind = draw.choice(kinds)
    one.control.arm("count" if kind == "at random" else kind, draw.randint(1, _CALLS))
    after = draw.uniform(0, _SECONDS) if kind == "at random" else None
    server = _start(one)
    ended = _work(server, person, one.control, kind, after, outcome)
    fired = one.control.fired
    if fired.number or (ended and kind == "at random"):
        outcome.kinds.append(kind)
        outcome.where.append(f"{fired.call} {fired.path}" if fired.number else f"after {after:.3f} s")
    if ended and not outcome.failures:  # killed, or refused to start on a failing disk
        one.control.arm("count")
        server = _start(one)
        _work(server, person, one.control, "count", None, outcome)
    outcome.failures += _wrong(one, person) if not outcome.failures else []
    return outcome


def _start(one: Harness) -> Running:
    database = one.out / "review.sqlite"
    words = ["review", one.material.folder / "perception", "--kind", "inspect", "--db", database]
    return one.processes.start([*map(str, words), "--port", "0", "--no-open"], one.out, one.control)


def _work(
    server: Running, person: _Person, control: Control, kind: str, after: float | None, outcome: Outcome
) -> bool:
    """Answer until nothing is left, then stop the server politely; true when the server ended by itself."""
    timer = threading.Timer(after or 0, server.signal, (signal.SIGKILL,))
    if after is not None:
        timer.start()
    while server.alive():
        link = _LINK.search(server.stdout())
        if link is None:
            time.sleep(0.01)
            continue
        try:
            with closing(person.enter(link[1], link[2])) as client:
                person.answer_all(client)
            break
        except httpx.HTTPStatusError as error:
            person.refused += 1
            # SQLite does not repeat an interrupted sync: the answer is refused, and sent again.
            failing = kind in ("full", "broken") or (kind == "interrupted" and "sync" in control.fired.call)
            if not failing or error.response.status_code < 500 or person.refused > 40:
                text = error.response.text[:300]
                outcome.failures.append(f"{kind}: answered {error.response.status_code}: {text}")
                break
            control.disarm()  # somebody frees some space
        except httpx.TransportError:
            time.sleep(0.02)
    timer.cancel()
    gone = not server.alive()
    server.signal(signal.SIGINT)
    end = server.wait(20)
    if end.hung:
        outcome.failures.append(f"{kind}: the server did not stop")
    if "Traceback" in end.stderr:
        outcome.failures.append(f"{kind}: a traceback: {end.stderr[-1500:]}")
    if gone and not end.killed and (kind in (*SURVIVED, *DEADLY, "count") or "to do:" not in end.stderr):
        outcome.failures.append(f"{kind}: the server ended with {end.code}: {end.stderr[-1500:]}")
    return gone


def _wrong(one: Harness, person: _Person) -> list[str]:
    database = Database(str(one.out / "review.sqlite"))
    with database.read() as connection:
        kept: dict[str, Any] = {}
        twice = []
        for row in connection.execute(events.select()):
            twice += [row.key] if row.key in kept else []
            kept[row.key] = row.id
        standing = len(connection.execute(answers.select()).all())
    database.close()
    wrong = [f"{len(twice)} answers were recorded twice"] if twice else []
    lost = [key for key, event in person.confirmed.items() if kept.get(key) != event]
    wrong += [f"{len(lost)} confirmed answers are lost, the first {lost[0]}"] if lost else []
    samples = len(_samples(one.material.folder / "perception"))
    if standing != samples:
        wrong.append(f"{standing} answers stand for {samples} items")
    names = {path.name for path in one.out.iterdir()} - {
        "review.sqlite",
        "review.sqlite-wal",
        "review.sqlite-shm",
    }
    return wrong + ([f"left behind: {', '.join(sorted(names))}"] if names else [])


def _samples(folder: Path) -> Any:
    from mie.datasets.dataset import Dataset

    return Dataset(folder)
