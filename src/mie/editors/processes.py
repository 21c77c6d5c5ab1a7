"""Child processes on a leash: no shell, their own process group, the end of what they said kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import IO, Any, Final

from mie.editors.base import EditError

_KEPT: Final = 4096  # bytes of output that are kept for the reason of a failure
_GRACE: Final = 1.0  # seconds for the last words of a process to arrive


class Tail:
    """Reads a pipe to its end in a thread of its own, so that the writer never blocks, and keeps the tail."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._kept = b""
        self._thread = threading.Thread(target=self._drain, args=(pipe,), daemon=True)
        self._thread.start()

    def _drain(self, pipe: IO[bytes]) -> None:
        with pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                self._kept = (self._kept + chunk)[-_KEPT:]

    def text(self) -> str:
        """The last lines. Waits a moment for a process that has just ended."""
        self._thread.join(_GRACE)
        return self._kept.decode(errors="replace").strip()


def start(argv: Sequence[str], **pipes: Any) -> subprocess.Popen[bytes]:
    """A process that leads a group of its own: `kill_group` ends it with everything that it started."""
    try:
        return subprocess.Popen(list(argv), start_new_session=True, **pipes)
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        raise EditError("the command cannot be started", where=argv[0], found=error) from None


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the whole group, unless its leader has ended and been waited for."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ending(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "it closed its output"
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        return f"killed by {name}"
    return f"exit code {code}"


def last_words(how: str, tail: str) -> str:
    return f"{how}; it said: {tail}" if tail else f"{how}; it said nothing"
