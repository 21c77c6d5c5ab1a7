"""A small dataset with two runs, a review of it on SQLite and on PostgreSQL, and people who are logged in."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `review`")
pytest.importorskip("argon2", reason="needs the extra `review`")
pytest.importorskip("httpx", reason="talks to a real server")

from fastapi.testclient import TestClient

from mie.datasets.build import build
from mie.datasets.recipe import parse_recipe
from mie.editors.run import run_editor
from mie.images.png import decode_png
from mie.review.auth import create_invite
from mie.review.server import create_app
from mie.review.service import ReviewService, open_review
from tests.conftest import folder_source, write_folder

URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DIR/dataset, and three runs on it: DIR/model-x, DIR/model-y, DIR/model-z."""
    folder = tmp_path_factory.mktemp("review")
    root = write_folder(folder / "source", 24, patients=8)
    body = {"name": "discs", "seed": 3, "split": {"test": 0.3}, "sources": [folder_source(root)]}
    build(parse_recipe(body, where="t", base=Path()), folder / "dataset", workers=1)
    for name, editor in (("model-x", "identity"), ("model-y", "oracle"), ("model-z", "otsu")):
        run_editor(folder / "dataset", editor, folder / name, workers=1)
    return folder


def _programs() -> Path | None:
    """Where PostgreSQL's programs lie."""
    found = shutil.which("pg_ctl")
    places = [Path(found).parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((p for p in places if (p / "initdb").exists() and (p / "postgres").exists()), None)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that the tests started; they are skipped where its programs are not there."""
    pytest.importorskip("psycopg", reason="needs the extra `review-postgres`")
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's programs (initdb, pg_ctl, postgres) are not on this machine")
    folder = Path("/tmp") / f"mie-pg-{uuid.uuid4().hex[:8]}"  # short: a socket's path may have 107 characters
    folder.mkdir(mode=0o700)
    prefix: list[str] = []
    if os.getuid() == 0:  # the server refuses to run as root
        try:
            person = next(pwd.getpwnam(n) for n in ("postgres", "nobody") if _exists(n))
        except StopIteration:
            pytest.skip("PostgreSQL does not run as root, and there is nobody else")
        os.chown(folder, person.pw_uid, person.pw_gid)
        prefix = ["setpriv", f"--reuid={person.pw_uid}", f"--regid={person.pw_gid}", "--clear-groups"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} -c fsync=off"

    def call(*command: object) -> None:
        done = subprocess.run(
            [*prefix, *map(str, command)],
            cwd=folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    call(programs / "initdb", "-D", data, "-U", "mie", "--auth=trust", "-N")
    call(programs / "pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
    try:
        yield f"postgresql://mie@127.0.0.1:{port}"
    finally:
        call(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder)


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "review.sqlite")
    server = request.getfixturevalue("postgres")
    import psycopg

    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server}/{name}"


class Person:
    """Somebody with a browser: a client that keeps its cookie and sends its CSRF token."""

    def __init__(self, service: ReviewService, app: Any, name: str, role: str = "rater") -> None:
        with service.database.write() as connection:
            token = create_invite(connection, name=name, role=role, days=1)[1]
        self.http = TestClient(app, base_url=URL, raise_server_exceptions=True)
        self.me = self.http.post("/api/join", json={"token": token}).json()
        self.http.headers["X-CSRF-Token"] = self.me["csrf"]

    def get(self, path: str, **params: Any) -> Any:
        answer = self.http.get(f"/api{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.http.post(f"/api{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def take(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        return self.post(f"/tasks/{kind}/next", count=count)["items"]

    def answer(self, item: dict[str, Any], status: int = 201, key: str | None = None, **answer: Any) -> Any:
        body = {"key": key or uuid.uuid4().hex, "version": item["version"], "seconds": 4.0}
        return self.post(
            f"/items/{item['id']}/answers", status, **body, answer={"kind": item["kind"], **answer}
        )


def by_area(person: Person, item: dict[str, Any]) -> dict[str, str]:
    """Name -> label of an item's three masks, told apart by their size."""
    areas = {
        proposal["label"]: int((decode_png(person.http.get(proposal["image"]).content) > 0).sum())
        for proposal in item["proposals"]
    }
    ordered = sorted(areas, key=areas.__getitem__)
    return dict(zip(("eroded", "source", "dilated"), ordered, strict=True))


class Review:
    """An opened review and its application."""

    def __init__(self, service: ReviewService) -> None:
        self.service = service
        self.app = create_app(service, url=URL)

    def person(self, name: str, role: str = "rater") -> Person:
        return Person(self.service, self.app, name, role)


@pytest.fixture
def review(material: Path, place: str) -> Iterator[Any]:
    """A function that opens a review: `review("inspect", raters=2)`."""
    opened: list[ReviewService] = []

    def make(*kinds: str, runs: tuple[str, ...] = ("model-x", "model-y"), **settings: Any) -> Review:
        places = [material / "dataset", *(material / name for name in runs)]
        service = open_review(places, kinds=kinds, db=place, **settings)
        opened.append(service)
        return Review(service)

    yield make
    for service in opened:
        service.database.close()
