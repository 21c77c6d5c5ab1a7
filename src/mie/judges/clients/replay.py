"""Replies that were recorded: a judge's own journal, or lines written by hand.

A line is `{"key": ..., "reply": text}`; `repeat`, `repair`, `finish`, `refusal`, `model` and `usage` may
stand beside. The last of two lines for one question holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mie.errors import ConfigError
from mie.judges.contracts import CallError, Patience, Reply, Request, Usage


class Replay:
    """Looks questions up by key, repeat, and whether they are a repair."""

    provider = "replay"
    parameters: Mapping[str, Any] = {}
    remote = False
    free = True
    at_once: int | None = None
    patience = Patience(retries=0)

    def __init__(self, file: str) -> None:
        path = Path(file)
        self._lines: dict[tuple[str, int, bool], Mapping[str, Any]] = {}
        models = set()
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    body = _line(line, f"{path}:{number}")
                    self._lines[body["key"], int(body.get("repeat", 0)), bool(body.get("repair"))] = body
                    models.add(str(body.get("model") or "recorded"))
        except OSError as error:
            raise ConfigError("cannot read the recorded replies", where=path, found=error.strerror) from None
        self.model = "+".join(sorted(models)) or "recorded"

    def ready(self) -> None:
        pass

    async def ask(self, request: Request) -> Reply:
        repair = len(request.messages) > 2
        body = self._lines.get((request.key, request.repeat, repair))
        if body is None:
            raise CallError("failed", f"no recorded reply for {request.key}", retry=False)
        usage = body.get("usage") or {}
        return Reply(
            body["reply"],
            body.get("finish", "stop"),
            body.get("refusal"),
            str(body.get("model") or "recorded"),
            Usage(int(usage.get("input", 0)), int(usage.get("output", 0))),
        )

    async def close(self) -> None:
        pass


def _line(line: str, where: str) -> Mapping[str, Any]:
    try:
        body = json.loads(line)
        if isinstance(body["key"], str) and isinstance(body["reply"], str):
            return dict(body)
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(
        "not a recorded reply", where=where, expected='{"key": ..., "reply": ...}', found=repr(line[:120])
    )
