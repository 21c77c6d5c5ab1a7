"""`RUN/judge/<judge>.jsonl`: every reply, appended and synced before it counts, never asked for again."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mie.errors import MieError


class Journal:
    """The file, open for appending. A last line torn by a kill is cut off: its reply is lost with it.

    In memory lies where each reply stands, not the reply.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._places: dict[str, tuple[int, int]] = {}  # content -> offset, length
        self._keys: set[tuple[str, int]] = set()  # (key, repeat) of first replies
        self._end = 0
        self._waiting: list[tuple[dict[str, Any], bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        for line in self._whole_lines():
            self._index(line, _read(line, f"{path}, byte {self._end}"))
        os.ftruncate(self._handle, self._end)
        os.fsync(self._handle)

    def __len__(self) -> int:
        return len(self._places)

    def find(self, content: str) -> dict[str, Any] | None:
        """The line of a question's content, read from disk."""
        place = self._places.get(content)
        if place is None:
            return None
        return dict(json.loads(os.pread(self._handle, place[1], place[0])))

    def has_key(self, key: str, repeat: int) -> bool:
        """Whether some reply for this key is here. Its images may have changed since."""
        return (key, repeat) in self._keys

    def lines(self) -> Iterator[dict[str, Any]]:
        for offset, length in self._places.values():
            yield json.loads(os.pread(self._handle, length, offset))

    async def append(self, body: dict[str, Any]) -> None:
        """Returns when the line is safe. Lines that come while others are being synced go together."""
        line = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
        safe = asyncio.get_running_loop().create_future()
        self._waiting.append((body, line, safe))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        await asyncio.shield(safe)

    async def drain(self) -> None:
        """Wait until every line that was handed over is safe."""
        if self._writer is not None:
            await asyncio.shield(self._writer)

    def close(self) -> None:
        os.close(self._handle)

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                try:
                    await asyncio.to_thread(self._sync, b"".join(line for _, line, _ in group))
                except OSError as error:
                    os.ftruncate(self._handle, self._end)  # half a line must not stand before whole ones
                    trouble = MieError(
                        "cannot keep the judge's replies",
                        where=self.path,
                        found=error.strerror,
                        fix="free some space and run the same command again: it goes on where it stopped",
                    )
                    for _, _, safe in group:
                        safe.set_exception(trouble)
                    continue
                for body, line, safe in group:
                    self._index(line, body)
                    safe.set_result(None)
        finally:
            self._writer = None

    def _sync(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(self._handle, left) :]
        os.fsync(self._handle)

    def _index(self, line: bytes, body: dict[str, Any]) -> None:
        self._places[body["content"]] = (self._end, len(line))
        self._keys.add((body["key"], body["repeat"]))
        self._end += len(line)

    def _whole_lines(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def _read(line: bytes, where: str) -> dict[str, Any]:
    try:
        body = json.loads(line)
        if isinstance(body["content"], str) and isinstance(body["key"], str) and "reply" in body:
            return dict(body)
    except (ValueError, KeyError, TypeError):
        pass
    raise MieError(
        "not a line of a judge's replies", where=where, expected="a JSON object", found=repr(line[:120])
    )
