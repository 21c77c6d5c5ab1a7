"""A review that is served inside the test, and a browser on it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from sqlalchemy import select

from mie.review.auth import create_invite
from mie.review.database import answers, users
from mie.review.server import create_app
from mie.review.service import ReviewService

QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
# How the page says that all pictures of an item are there.
SHOWN = "document.querySelector('.work:not([hidden])')?.dataset.shown"


class Served:
    def __init__(self, service: ReviewService, url: str) -> None:
        self.service, self.url = service, url

    def link(self, name: str, role: str = "rater") -> str:
        with self.service.database.write() as connection:
            return f"{self.url}/#join={create_invite(connection, name=name, role=role, days=1)[1]}"

    def answers(self, name: str | None = None) -> dict[int, dict[str, Any]]:
        """What stands in the database: item -> answer."""
        query = select(answers.c.item_id, answers.c.payload).join(users, users.c.id == answers.c.user_id)
        if name is not None:
            query = query.where(users.c.name == name)
        with self.service.database.read() as connection:
            return {
                row.item_id: row.payload for row in connection.execute(query.order_by(answers.c.event_id))
            }


@contextmanager
def serving(service: ReviewService) -> Iterator[Served]:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = create_app(service, url=url)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Served(service, url)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        service.database.close()


class Seat:
    """One person at one browser. What the page complains about fails the test when it is closed."""

    def __init__(self, browser: Any, **options: Any) -> None:
        width = options.pop("width", 1400)
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.complaints: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type != "info" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def join(self, served: Served, name: str = "Ada", role: str = "rater") -> Seat:
        self.page.goto(served.link(name, role))
        self.page.get_by_role("heading", name=f"Welcome, {name}").wait_for()
        return self

    def shown(self, other_than: int | None = None) -> int:
        """The item on the screen, once its pictures are."""
        wanted = f"n = {SHOWN}; n && n != {other_than or 0}"
        self.page.wait_for_function(f"() => {{ let n; {wanted.replace('; n', '; return n')} }}")
        return int(self.page.evaluate(SHOWN))

    def saved(self) -> None:
        self.page.wait_for_function("() => document.querySelector('#bar .saved').dataset.waiting === '0'")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []
