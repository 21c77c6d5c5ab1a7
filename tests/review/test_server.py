"""The command itself: a real server on loopback, two people at once, kill -9 in the middle."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from typer.testing import CliRunner

import mie
from mie.cli import app as cli
from mie.errors import ConfigError
from mie.review.auth import create_invite
from mie.review.database import Database, answers, events
from mie.review.server import is_loopback

Confirmed: TypeAlias = list[tuple[str, int]]  # key and event
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(mie.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


class Server:
    def __init__(self, process: subprocess.Popen[str], url: str, token: str) -> None:
        self.process, self.url, self.token = process, url, token

    def person(self, token: str) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=30)
        joined = client.post("/api/join", json={"token": token})
        assert joined.status_code == 200, joined.text
        client.headers["X-CSRF-Token"] = joined.json()["csrf"]
        return client


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "mie", "review", *map(str, arguments)]


@contextmanager
def running(*arguments: object) -> Iterator[Server]:
    process = subprocess.Popen(
        command(*arguments, "--no-open"), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        found = re.fullmatch(r"open (http://\S+)/#join=(\S+)\n", process.stdout.readline())
        assert found, "the server did not start"
        server = Server(process, found[1], found[2])
        for _ in range(200):
            try:
                httpx.get(server.url, timeout=5)
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield server
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def work(
    client: httpx.Client, confirmed: list[tuple[str, int]], unsure: list[str], stop: threading.Event
) -> None:
    """Answer until told to stop or cut off; a key is `confirmed` once the server said so."""
    while not stop.is_set():
        try:
            given = client.post("/api/tasks/inspect/next", json={"count": 3}).json()["items"]
            if not given:
                return
            answer(client, given[0], uuid.uuid4().hex, confirmed, unsure)
        except (httpx.TransportError, ValueError):
            return


def answer(client: httpx.Client, item: Any, key: str, confirmed: Any, unsure: Any) -> None:
    body = {"key": key, "version": item["version"], "seconds": 1.5}
    unsure.append(key)
    said = client.post(
        f"/api/items/{item['id']}/answers", json={**body, "answer": {"kind": "inspect", "decision": "accept"}}
    )
    assert said.status_code in (200, 201), said.text
    confirmed.append((key, said.json()["event"]))


@pytest.mark.slow
def test_no_confirmed_answer_is_lost_when_the_server_is_killed(material: Path, place: str) -> None:
    arguments = (material / "dataset", "--kind", "inspect", "--raters", 2, "--db", place, "--port", 0)
    confirmed: list[tuple[str, int]] = []
    unsure: list[str] = []
    with running(*arguments) as server:
        tokens = []
        database = Database(place)
        with database.write() as connection:
            for name in ("Ada", "Bob"):
                tokens.append(create_invite(connection, name=name, role="rater", days=1)[1])
        people = [server.person(token) for token in tokens]
        cookies = [dict(client.cookies) for client in people]
        stop = threading.Event()
        threads = [threading.Thread(target=work, args=(client, confirmed, unsure, stop)) for client in people]
        for thread in threads:
            thread.start()
        while len(confirmed) < 12 and any(t.is_alive() for t in threads):
            time.sleep(0.005)
        os.kill(server.process.pid, signal.SIGKILL)
        for thread in threads:
            thread.join()
    assert len(confirmed) >= 12
    with running(*arguments) as server:  # on another port; the sessions have survived
        for cookie in cookies:
            client = httpx.Client(base_url=server.url, cookies=cookie, timeout=30)
            me = client.get("/api/me").json()
            client.headers["X-CSRF-Token"] = me["csrf"]
            work(client, confirmed, unsure, threading.Event())
            assert client.get("/api/me").json()["tasks"][0]["progress"]["remaining"] == 0
    with database.read() as connection:
        kept = {row.key: row.id for row in connection.execute(events.select())}
        standing = connection.execute(answers.select()).all()
    database.close()
    assert {key: event for key, event in kept.items() if key in dict(confirmed)} == dict(confirmed)
    assert set(kept) <= set(unsure)
    assert len(standing) == 2 * 24  # two raters, every item once each


def test_invite_export_and_what_is_refused(material: Path, tmp_path: Path) -> None:
    base = ("review", material / "dataset", "--db", tmp_path / "r.sqlite", "--kind", "inspect")

    def call(*more: object) -> Any:
        return CliRunner().invoke(cli, [*map(str, base), *map(str, more)])

    def refused(*more: object) -> str:
        error = call(*more).exception
        assert isinstance(error, ConfigError)  # exit code 2
        return str(error)

    assert "needs accounts" in refused("--host", "0.0.0.0", "--url", "https://review.example.org")
    link = call("--invite", "Ada", "--role", "admin", "--url", "https://review.example.org")
    assert re.fullmatch(r"https://review\.example\.org/#join=[\w-]{43}\n", link.stdout)
    assert "--url" in refused("--host", "0.0.0.0")
    assert "started with other settings" in refused("--sample", 3)
    assert "did you mean 'rank'" in refused("--kind", "rang")
    assert "did you mean 'modality'" in refused("--kind", "mask", "--stratify", "modalities")
    done = call("--export", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out.csv").read_text() == "sample_id,rater,run,criterion,score\n"
    assert (tmp_path / "r.sqlite").stat().st_mode & 0o077 == 0


def test_an_invitation_names_the_address_of_the_server(material: Path, tmp_path: Path) -> None:
    base = (material / "dataset", "--db", tmp_path / "r.sqlite", "--kind", "inspect")

    def invite(*more: object) -> str:
        done = CliRunner().invoke(cli, ["review", *map(str, base), "--invite", "Ada", *map(str, more)])
        assert done.exit_code == 0, done.output
        return done.stdout.split("/#join=")[0]

    assert invite() == "http://127.0.0.1:8000"  # no server yet: the default port
    assert invite("--port", 8123) == "http://127.0.0.1:8123"
    with running(*base, "--port", 0) as server:
        assert server.url != "http://127.0.0.1:8000"
        assert invite() == server.url
        assert invite("--port", 0) == server.url
        token = CliRunner().invoke(cli, ["review", *map(str, base), "--invite", "Bob"]).stdout.strip()
        assert server.person(token.split("#join=")[1]).get("/api/me").json()["user"]["name"] == "Bob"
    assert invite("--url", "https://review.example.org/") == "https://review.example.org"


def test_what_this_machine_is_called() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org")))
