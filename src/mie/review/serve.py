"""The server put together: guard, routes, the page."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

import mie
from mie.core.files import atomic_write
from mie.errors import ConfigError, MieError
from mie.review.accounts import ROLES, Limiter, has_accounts, invite, local_invite
from mie.review.database import Database
from mie.review.errors import Refused
from mie.review.export import csv_lines, json_lines, opinions
from mie.review.masks import write_masks
from mie.review.material import Material
from mie.review.middleware import Guard
from mie.review.plan import prepare
from mie.review.proposals import Regions
from mie.review.routes import admin_router, consensus_router, session_router, work_router
from mie.review.work import Desk

STATIC: Final = Path(__file__).parent / "static"
_CODES: Final = {400: "invalid", 404: "unknown", 405: "unknown", 413: "too_large", 415: "invalid"}


def create_app(desk: Desk, *, url: str, origins: Iterable[str] = ()) -> FastAPI:
    """The ASGI application. It answers only to the hosts of `url` and `origins`; `url` is what links say."""
    app = FastAPI(
        title="mie review",
        version=mie.__version__,
        openapi_url="/api/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
    )
    app.state.desk = desk
    app.state.limiter = Limiter()
    app.state.url = url
    app.state.secure = url.startswith("https:")
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    for router in (session_router, work_router, consensus_router, admin_router):
        app.include_router(router)
    app.mount("/static", _Static(directory=STATIC), name="static")
    app.add_api_route("/", _page, include_in_schema=False)
    app.add_middleware(Guard, origins={url, *origins}, https=app.state.secure)
    return app


class _Static(StaticFiles):
    """Asked for again each time, answered by 304 while unchanged: an upgrade is seen at once."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _page() -> FileResponse:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


def _refused(_request: Request, refused: Exception) -> Response:
    assert isinstance(refused, Refused)  # noqa: S101
    return JSONResponse(refused.body(), refused.status, headers=refused.headers)


def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    refused = Refused(error.status_code, _CODES.get(error.status_code, "invalid"), str(error.detail))
    return JSONResponse(refused.body(), refused.status, headers=error.headers)


def _invalid(_request: Request, error: Exception) -> Response:
    """The first thing that is wrong; what was sent is not sent back."""
    assert isinstance(error, RequestValidationError)  # noqa: S101
    first: dict[str, Any] = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    text = f"{where}: {first['msg']}".encode(errors="replace").decode()
    return JSONResponse(Refused(422, "invalid", text[:500]).body(), 422)


# Start the server: on this machine alone, unless there are accounts.


def default_database(material: Material) -> Path:
    folder = material.dataset.folder.resolve()
    return folder.with_name(f"{folder.name}-review") / "review.sqlite"


def default_kinds(material: Material) -> list[str]:
    """Inspection, and ranking where there is something to rank."""
    return ["inspect", *(["rank"] if len(material.runs) > 1 else [])]


def open_desk(
    places: Sequence[Path],
    *,
    kinds: Sequence[str] = (),
    db: str | None = None,
    proposals: Path | None = None,
    **settings: Any,
) -> Desk:
    """Open a dataset and runs for review; the items are made if they are not there.

    `proposals` is the folder that `mie propose` wrote.
    """
    material = Material.open(places)
    regions = None if proposals is None else Regions(proposals)
    database = Database(db or default_database(material))
    counts = prepare(database, material, kinds or default_kinds(material), settings, regions)
    return Desk(database, material, counts)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    desk: Desk,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    url: str | None = None,
    ready: Callable[[str], None] = lambda _link: None,
) -> None:
    """Answer until interrupted. `ready` is told the address, on loopback as a link that logs in once."""
    private = is_loopback(host)
    if not private or url is not None:  # or a proxy stands before it
        _check_public(desk, url)
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    local = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    shown = (url or local).rstrip("/")
    origins = {f"http://{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")} if private else set()
    app = create_app(desk, url=shown, origins={local, *origins} if private else origins)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, proxy_headers=False, server_header=False, lifespan="off"
    )
    if private and url is None:
        with desk.database.write() as connection:
            shown += f"/#join={local_invite(connection)}"
    ready(shown)
    # Every statement lets go of the interpreter and waits to get it back: by default for up to 5 ms.
    sys.setswitchinterval(0.0005)
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()
        desk.database.close()


def invite_link(desk: Desk, name: str, role: str, base: str, days: float = 7) -> str:
    """A link that lets a person in once."""
    if role not in ROLES:
        raise ConfigError(f"no role named {role!r}", expected=", ".join(ROLES))
    with desk.database.write() as connection:
        return f"{base.rstrip('/')}/#join={invite(connection, name=name, role=role, days=days)[1]}"


def _check_public(desk: Desk, url: str | None) -> None:
    with desk.database.read() as connection:
        known = has_accounts(connection)
    if not known:
        raise ConfigError(
            "a review that others can reach needs accounts",
            expected="at least one person who was invited",
            found="none",
            fix="first `mie review ... --invite NAME --role admin --url URL`, then this command again",
        )
    parts = urlsplit(url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(
            "the address that people will type is not known",
            expected="--url https://review.example.org",
            found=url,
            fix="requests under any other name are refused",
        )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # The protocol is named: asyncio turns Nagle's delay off only where it sees that this is TCP.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        raise MieError(
            "the server cannot listen there",
            where=f"{host}:{port}",
            found=error.strerror or error,
            fix="choose another --port, or 0 for any that is free",
        ) from None
    listener.set_inheritable(True)
    return listener


def export_file(desk: Desk, path: Path) -> int:
    """Write the opinions of the desk's one task to a .csv or .jsonl file, or of masks the chosen ones to a
    folder; how many there are.
    """
    ways = {".csv": csv_lines, ".jsonl": json_lines}
    if list(desk.tasks) == ["mask"] and not path.suffix:
        return write_masks(desk, path)
    if len(desk.tasks) != 1 or path.suffix not in ways:
        raise ConfigError(
            "an export is of one kind of work",
            expected="one --kind, and a file that ends in .csv or .jsonl; of masks also a folder",
            found=f"{', '.join(desk.tasks)} into {path.name}",
        )
    (task,) = desk.tasks.values()
    found = list(opinions(desk.database, task.id))
    atomic_write(path, "".join(ways[path.suffix](found)))
    return len(found)
