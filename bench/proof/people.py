"""A review by two scripted raters, over HTTP, as the page in the browser does it."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from bench.proof.commands import CommandLine, free_port

OPENER = build_opener(ProxyHandler({}))  # this machine, whatever proxy is set
RATERS = ("Ada", "Bob")
RANK_CRITERIA = ("accuracy", "preservation", "quality")


class Rater:
    """Somebody who came by an invitation."""

    def __init__(self, link: str) -> None:
        self._origin, token = link.split("/#join=")
        self._headers = {"Content-Type": "application/json", "Origin": self._origin}
        self._headers["X-CSRF-Token"] = self.post("/api/join", token=token)["csrf"]

    def post(self, path: str, **body: Any) -> Any:
        request = Request(self._origin + path, json.dumps(body).encode(), self._headers, method="POST")
        with OPENER.open(request, timeout=60) as reply:
            if cookies := reply.headers.get_all("Set-Cookie"):
                jar = SimpleCookie(cookies[0])
                self._headers["Cookie"] = "; ".join(f"{name}={jar[name].value}" for name in jar)
            return json.loads(reply.read())

    def image(self, path: str) -> bytes:
        with OPENER.open(Request(self._origin + path, headers=self._headers), timeout=60) as reply:
            return bytes(reply.read())

    def work(self, kind: str) -> Iterator[dict[str, Any]]:
        """Each item once, until none is left."""
        while items := self.post(f"/api/tasks/{kind}/next", count=1)["items"]:
            yield items[0]

    def answer(self, item: dict[str, Any], **answer: Any) -> None:
        key = hashlib.sha256(f"{item['id']} {self._headers['Cookie']}".encode()).hexdigest()[:32]
        body = {"key": key, "version": item["version"], "seconds": 4.0}
        self.post(f"/api/items/{item['id']}/answers", **body, answer={"kind": item["kind"], **answer})


def decide(rater: Rater, who: int, kind: str) -> int:
    """Answer everything by the content of the items alone; how many there were."""
    count = 0
    for item in rater.work(kind):
        number = int(hashlib.sha256(f"{item['sample_id']} {who}".encode()).hexdigest()[:8], 16)
        if kind == "inspect":
            said = ("accept", "accept", "reject", "flag")[number % 4]
            reason = "artefact" if said == "reject" else None
            rater.answer(item, decision=said, reason=reason, scores={"quality": 1 + number % 5})
        elif kind == "mask":
            offered = [one["id"] for one in item["proposals"]]
            rater.answer(item, choice=offered[number % len(offered)])
        else:
            # By the outputs' bytes, since the labels hide the models; two criteria have a tie.
            outputs = {one["label"]: rater.image(one["image"]) for one in item["outputs"]}
            order = sorted(outputs, key=lambda label: hashlib.sha256(outputs[label] + bytes([who])).digest())
            tied = [order[:2], *([label] for label in order[2:])]
            rankings = dict.fromkeys(RANK_CRITERIA, tied) | {"accuracy": [[label] for label in order]}
            rater.answer(item, rankings=rankings, comment=f"from rater {who}")
        count += 1
    return count


def review(mie: CommandLine, places: list[str], database: str, kinds: tuple[str, ...], *more: object) -> None:
    """Both raters through all the work."""
    port = free_port()
    asked = [*places, *(word for kind in kinds for word in ("--kind", kind)), "--db", database]
    asked += ["--raters", len(RATERS), "--port", port, *more]
    links = {name: mie("review", *asked, "--invite", name).strip() for name in RATERS}
    with serving(mie, *asked):
        for who, name in enumerate(RATERS):
            rater = Rater(links[name])
            for kind in kinds:
                decide(rater, who, kind)


@contextmanager
def serving(mie: CommandLine, *asked: object) -> Iterator[None]:
    command = [sys.executable, "-m", "mie", "review", *map(str, asked), "--no-open"]
    server = subprocess.Popen(
        command, cwd=mie.folder, env=mie.environment, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        if address is None:
            raise SystemExit(f"the review did not start: {line}")
        _wait_for(int(address[1]))
        yield
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
