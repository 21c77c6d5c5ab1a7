"""`log.jsonl`: one line per event, appended and synced, never rewritten.

A killed run may have logged steps that its last checkpoint does not know. They stay in the file; the line
`{"event": "resume", "step": s}` says that lines after step `s` above it are superseded. One that was killed
in a validation repeats it: the later line counts. `read_log` leaves the others out: the log of a killed run
reads as one history.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mie.errors import MieError


class Journal:
    """The file, open for appending. A last line torn by a kill is cut off first."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._handle).st_size
        tail = os.pread(self._handle, min(size, 1 << 20), max(0, size - (1 << 20)))
        os.ftruncate(self._handle, size - len(tail) + tail.rfind(b"\n") + 1)

    def append(self, event: str, step: int, facts: Mapping[str, Any]) -> None:
        body = {"event": event, "step": step, **facts}
        data = memoryview(json.dumps(body, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        while data:
            data = data[os.write(self._handle, data) :]
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines that count, in order: what a resume has superseded is left out, and so are the resumes."""
    kept: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise MieError("a line of the log is not JSON", where=f"{path}:{number}", found=error) from None
        if line["event"] == "resume":
            kept = [earlier for earlier in kept if earlier["step"] <= line["step"]]
            continue
        if line["event"] == "validation":
            kept = [one for one in kept if (one["event"], one["step"]) != ("validation", line["step"])]
        kept.append(line)
    return kept
