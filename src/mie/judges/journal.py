"""`RUN/judge/<judge>.jsonl`: every reply, synced before it counts, and never asked for again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mie.core.journal import Journal
from mie.errors import MieError


class ReplyJournal:
    """The replies of one judge by the content of their questions. A reply whose line was torn is lost.

    Only the position of each line is kept in memory.
    """

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._positions: dict[str, tuple[int, int]] = {}  # content -> offset, length
        self._keys: set[tuple[str, int]] = set()  # (key, repeat) of first replies
        self._waiting: list[tuple[dict[str, Any], bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        offset = 0
        for line in self._journal.lines():
            self._index(offset, line, _read(line, f"{path}, byte {offset}"))
            offset += len(line)

    def __len__(self) -> int:
        return len(self._positions)

    def find(self, content: str) -> dict[str, Any] | None:
        """The line for a question's content, read from disk; None without a reply."""
        position = self._positions.get(content)
        if position is None:
            return None
        return dict(json.loads(self._journal.read(*position)))

    def has_key(self, key: str, repeat: int) -> bool:
        """Whether there is a reply for this key. Its images may have changed since."""
        return (key, repeat) in self._keys

    def lines(self) -> Iterator[dict[str, Any]]:
        for position in self._positions.values():
            yield json.loads(self._journal.read(*position))

    async def append(self, body: dict[str, Any]) -> None:
        """Return once the line is on disk. Lines that arrive during a sync are written together."""
        line = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
        safe = asyncio.get_running_loop().create_future()
        self._waiting.append((body, line, safe))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        await asyncio.shield(safe)

    async def drain(self) -> None:
        """Wait until every appended line is on disk."""
        if self._writer is not None:
            await asyncio.shield(self._writer)

    def close(self) -> None:
        self._journal.close()

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                offset = self._journal.size
                try:
                    await asyncio.to_thread(self._journal.append, b"".join(line for _, line, _ in group))
                except (OSError, MieError) as error:
                    for _, _, safe in group:
                        safe.set_exception(error)
                    continue
                for body, line, safe in group:
                    self._index(offset, line, body)
                    offset += len(line)
                    safe.set_result(None)
        finally:
            self._writer = None

    def _index(self, offset: int, line: bytes, body: dict[str, Any]) -> None:
        self._positions[body["content"]] = (offset, len(line))
        self._keys.add((body["key"], body["repeat"]))


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
