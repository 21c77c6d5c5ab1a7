"""schemathesis on the OpenAPI description: no input makes the server fail, every answer is described."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings

from mie.review.auth import create_local_invite, create_session, find_session
from mie.review.database import users
from mie.review.server import create_app, listen
from mie.review.service import open_review

schemathesis = pytest.importorskip("schemathesis", reason="tries the API with generated input")


@pytest.fixture(scope="module")
def server(material: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a real server, and the headers of its admin, who holds an item of each kind."""
    places = [material / name for name in ("dataset", "model-x", "model-y")]
    db = str(tmp_path_factory.mktemp("described") / "review.sqlite")
    service = open_review(places, kinds=("inspect", "mask", "rank"), db=db)
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with service.database.write() as connection:
        create_local_invite(connection)
        cookie = create_session(connection, connection.execute(users.select()).one().id)
        session = find_session(connection, cookie)
    for kind in service.tasks:
        service.next(kind, session, 10)
    app = create_app(service, url=url)
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield url, {"Cookie": f"mie_session={cookie}", "X-CSRF-Token": session.csrf}
    running.should_exit = True
    thread.join()
    listener.close()
    service.database.close()


# Not these: the first ends the session that the others use, the second may close its account.
LEFT_OUT = ("/api/logout", "/api/users/{user_id}")

# A link that nobody made is well formed and still refused. Sessions are taken away in `test_attacks.py`.
SKIPPED = ("positive_data_acceptance", "ignored_auth")


def test_every_route_keeps_to_its_description(server: tuple[str, dict[str, str]]) -> None:
    url, headers = server
    description = schemathesis.openapi.from_url(f"{url}/api/openapi.json", headers=headers)
    checks = [c for c in schemathesis.checks.CHECKS.get_all() if c.__name__ not in SKIPPED]
    statuses: dict[str, set[int]] = {}
    for found in description.get_all_operations():
        operation = found.ok()
        if operation.path in LEFT_OUT:
            continue

        @given(case=operation.as_strategy())
        @settings(max_examples=10, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
        def sends(case: Any) -> None:
            answer = case.call(headers=headers)
            statuses.setdefault(case.operation.label, set()).add(answer.status_code)
            case.validate_response(answer, checks=checks)

        sends()
    assert len(statuses) >= 18
    for label in statuses.keys() - {"POST /api/join", "POST /api/login"}:
        assert not statuses[label] & {401, 403}, label  # the admin may call everything
