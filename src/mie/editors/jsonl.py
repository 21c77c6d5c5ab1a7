"""A long-lived process that speaks JSON lines: a request on its stdin, a reply on its stdout."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mie.editors.base import EditError
from mie.editors.processes import Tail, ending, kill_group, last_words, start

_MAX_LINE: Final = 2**20
_GOODBYE: Final = 5.0  # seconds that a process gets to end by itself once its stdin is closed


class LineProcess:
    """Starts at the first request; after a crash, a late reply or nonsense, again at the next one."""

    def __init__(self, argv: Sequence[str], *, timeout: float, startup: float) -> None:
        self._argv = argv
        self._timeout = timeout
        self._startup = startup  # more seconds for the first reply: models take time to load
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to one request; `EditError` when there is none in time."""
        with self._lock:
            if self._closed:
                raise EditError("interrupted")
            limit = self._timeout
            if self._process is None:
                self._begin()
                limit += self._startup
            try:
                reply = self._exchange(json.dumps(request).encode() + b"\n", limit)
                if reply.get("id", request["id"]) != request["id"]:
                    raise EditError("the command replied to another request", found=repr(reply["id"])[:200])
                return reply
            except BaseException:
                self._end()  # a process that is out of step would answer the next request with this reply
                raise

    def close(self) -> None:
        """End the process. Also called while another thread waits in `ask`."""
        self._closed = True
        process = self._process
        if process is None:
            return
        if self._lock.acquire(blocking=False):
            try:
                if process.stdin is not None:
                    process.stdin.close()
                process.wait(_GOODBYE)
            except (OSError, subprocess.TimeoutExpired):
                pass
            finally:
                self._end()
                self._lock.release()
        else:
            kill_group(process)

    def _begin(self) -> None:
        pipe = subprocess.PIPE
        self._process = start(self._argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        assert self._process.stderr is not None  # noqa: S101
        self._tail = Tail(self._process.stderr)

    def _end(self) -> None:
        if self._process is not None:
            kill_group(self._process)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def _exchange(self, line: bytes, limit: float) -> dict[str, Any]:
        """Write the line and read until a JSON object comes, without blocking, within `limit` seconds."""
        assert self._process is not None  # noqa: S101
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        into, out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(into, False)
        os.set_blocking(out, False)
        self._unread = b""
        with contextlib.suppress(BlockingIOError):
            while os.read(out, 65536):  # what it said unasked since its last reply
                pass
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as ready:
            ready.register(into, selectors.EVENT_WRITE)
            ready.register(out, selectors.EVENT_READ)
            while True:
                events = ready.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    kill_group(self._process)
                    raise EditError(
                        "the command ran past its time limit",
                        expected=f"a reply within {limit:g} s",
                        found=last_words("killed", self._tail.text()),
                    )
                for key, _ in events:
                    if key.fd == out:
                        reply = self._read(out)
                        if reply is not None:
                            return reply
                        continue
                    try:
                        line = line[os.write(into, line) :]
                    except BrokenPipeError:
                        raise self._crashed() from None
                    if not line:
                        ready.unregister(into)

    def _read(self, out: int) -> dict[str, Any] | None:
        chunk = os.read(out, 65536)
        if not chunk:
            raise self._crashed()
        self._unread += chunk
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            # Libraries print to stdout: a line that is no object is none of our business.
            if line.lstrip().startswith(b"{"):
                return _object(line)
        if len(self._unread) > _MAX_LINE:
            raise EditError(
                "the command's reply is too long", expected=f"a line of at most {_MAX_LINE} bytes"
            )
        return None

    def _crashed(self) -> EditError:
        assert self._process is not None  # noqa: S101
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        return EditError(
            "the command ended before it replied", found=last_words(ending(code), self._tail.text())
        )


def _object(line: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        raise EditError("the command's reply is not JSON", found=repr(line[:200])) from None
    if not isinstance(reply, dict) or not ("output" in reply or "error" in reply):
        raise EditError(
            "the command's reply says neither output nor error",
            expected='{"output": path} or {"error": text}',
            found=repr(line[:200]),
        )
    return reply
