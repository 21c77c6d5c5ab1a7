"""Start the server: on this machine alone, unless there are accounts."""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from mie.errors import ConfigError, MieError
from mie.images.files import atomic_write
from mie.review.accounts import ROLES, has_accounts, invite, local_invite
from mie.review.app import create_app
from mie.review.database import Database
from mie.review.desk import Desk
from mie.review.export import csv_lines, json_lines, opinions
from mie.review.masks import write_masks
from mie.review.material import Material
from mie.review.plan import prepare
from mie.review.regions import Regions


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
