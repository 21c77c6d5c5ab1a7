"""A program that stays: requests as JSON lines on its stdin, replies on its stdout.

docs/reference/worker-protocol.md is the contract. The process starts at the first request. After a crash it
is started again, and what it had not answered is asked once more. After a late or invalid reply it is
started again for the next request. One that ends `MOST_DEATHS` times in a row without a reply stops the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

from mie.editors.base import EditError, StopRunError

MOST_DEATHS: Final = 5  # in a row, each before the first reply
_TAIL: Final = 4096  # bytes of output that are kept for the reason of a failure
_TAIL_SECONDS: Final = 1.0  # how long to wait for the last output of a process that has ended
_EXIT_SECONDS: Final = 5.0  # how long a process may take to end once its stdin is closed
_MAX_LINE: Final = 2**20

Reply = dict[str, Any]


class CrashError(EditError):
    """The process ended before it replied."""


class Worker:
    """A long-lived process. Requests are mappings with an `id` each, replies are matched by it."""

    def __init__(self, argv: Sequence[str], *, timeout: float, startup: float) -> None:
        self._argv = argv
        self._timeout = timeout
        self._startup = startup  # more seconds for the first reply: models take time to load
        self._process: subprocess.Popen[bytes] | None = None
        self._spoke = False  # whether this process has said anything that counts
        self._deaths = 0
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, requests: Sequence[Mapping[str, Any]]) -> list[Reply | EditError]:
        """Send all requests, then wait for all replies. One outcome each, in order."""
        with self._lock:
            outcomes = self._ask(requests)
            # Which of them ended the process is not known: each is asked once more, by itself.
            for request in requests:
                if isinstance(outcomes[request["id"]], CrashError):
                    outcomes.update(self._ask([request]))
        return [outcomes[request["id"]] for request in requests]

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
                process.wait(_EXIT_SECONDS)
            except (OSError, subprocess.TimeoutExpired):
                pass
            finally:
                self._stop()
                self._lock.release()
        else:
            kill_group(process)

    def _ask(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, Reply | EditError]:
        """An outcome for each id."""
        if self._closed:
            return {request["id"]: EditError("interrupted") for request in requests}
        replies: dict[str, Reply | EditError] = {}
        waiting = [request["id"] for request in requests]
        try:
            limit = self._timeout * len(requests)
            fresh = self._process is None
            if fresh:
                self._start()
                limit += self._startup
            lines = b"".join(json.dumps(request).encode() + b"\n" for request in requests)
            self._exchange(lines, waiting, replies, limit, fresh=fresh)
        except EditError as error:
            self._stop()  # else a late reply would be taken for the answer to the next request
            if isinstance(error, CrashError) and not self._closed:
                self._count_death(error)
            replies.update(dict.fromkeys(waiting, error))
        except BaseException:
            self._stop()
            raise
        return replies

    def _count_death(self, error: CrashError) -> None:
        self._deaths = 0 if self._spoke else self._deaths + 1
        if self._deaths >= MOST_DEATHS:
            raise StopRunError(
                "the command ends each time before it replies",
                where=self._argv[0],
                expected=f"a reply in {MOST_DEATHS} starts",
                found=error.found,
                fix="start it by hand to see why; then run the same command again: it resumes",
            )

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self._process = start(self._argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        assert self._process.stderr is not None  # noqa: S101
        self._tail = OutputTail(self._process.stderr)
        self._spoke = False

    def _stop(self) -> None:
        if self._process is not None:
            kill_group(self._process)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None

    def _exchange(
        self,
        lines: bytes,
        waiting: list[str],
        replies: dict[str, Reply | EditError],
        limit: float,
        *,
        fresh: bool,
    ) -> None:
        """Write the lines and move ids from `waiting` to `replies`, within `limit` seconds."""
        assert self._process is not None  # noqa: S101
        assert self._process.stdin is not None  # noqa: S101
        assert self._process.stdout is not None  # noqa: S101
        stdin, stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(stdin, False)
        os.set_blocking(stdout, False)
        self._unread = b""
        with contextlib.suppress(BlockingIOError):
            while not fresh and os.read(stdout, 65536):  # whatever it printed since its last reply
                pass
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as ready:
            ready.register(stdin, selectors.EVENT_WRITE)
            ready.register(stdout, selectors.EVENT_READ)
            while waiting:
                events = ready.select(max(0.0, deadline - time.monotonic()))
                if not events:
                    kill_group(self._process)
                    raise EditError(
                        "the command ran past its time limit",
                        expected=f"a reply within {limit:g} s",
                        found=with_tail("killed", self._tail.text()),
                    )
                for key, _ in events:
                    if key.fd == stdout:
                        self._read(stdout, waiting, replies)
                        continue
                    try:
                        lines = lines[os.write(stdin, lines) :]
                    except BrokenPipeError:
                        raise self._crashed() from None
                    if not lines:
                        ready.unregister(stdin)

    def _read(self, stdout: int, waiting: list[str], replies: dict[str, Reply | EditError]) -> None:
        chunk = os.read(stdout, 65536)
        if not chunk:
            raise self._crashed()
        self._unread += chunk
        while b"\n" in self._unread and waiting:
            line, _, self._unread = self._unread.partition(b"\n")
            # Libraries print to stdout: lines that are not objects are ignored.
            if not line.lstrip().startswith(b"{"):
                continue
            reply = _parse_reply(line)
            self._spoke, self._deaths = True, 0
            if reply.get("ready") is True:
                continue
            name = reply.get("id", waiting[0])  # without an id: the oldest request
            if name not in waiting:
                raise EditError("the command replied to another request", found=repr(name)[:200])
            waiting.remove(name)
            replies[name] = reply
        if len(self._unread) > _MAX_LINE:
            raise EditError(
                "the command's reply is too long", expected=f"a line of at most {_MAX_LINE} bytes"
            )

    def _crashed(self) -> CrashError:
        assert self._process is not None  # noqa: S101
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        return CrashError(
            "the command ended before it replied", found=with_tail(exit_status(code), self._tail.text())
        )


def _parse_reply(line: bytes) -> Reply:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        raise EditError("the command's reply is not JSON", found=repr(line[:200])) from None
    if not isinstance(reply, dict) or reply.keys().isdisjoint(("output", "error", "refused", "ready")):
        raise EditError(
            "the command's reply has neither output nor error",
            expected='{"output": path}, {"error": text} or {"refused": text}',
            found=repr(line[:200]),
        )
    return reply


class OutputTail:
    """Reads a pipe to its end in its own thread, so that the writer never blocks; keeps the last bytes."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._kept = b""
        self._thread = threading.Thread(target=self._drain, args=(pipe,), daemon=True)
        self._thread.start()

    def _drain(self, pipe: IO[bytes]) -> None:
        with pipe:
            while chunk := os.read(pipe.fileno(), 65536):
                self._kept = (self._kept + chunk)[-_TAIL:]

    def text(self) -> str:
        """The last output. Waits a moment for a process that has just ended."""
        self._thread.join(_TAIL_SECONDS)
        return self._kept.decode(errors="replace").strip()


def start(argv: Sequence[str], **pipes: Any) -> subprocess.Popen[bytes]:
    """Start a process that leads its own group: `kill_group` ends it with everything that it started."""
    try:
        return subprocess.Popen(list(argv), start_new_session=True, **pipes)
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        raise EditError("the command cannot be started", where=argv[0], found=error) from None


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to the whole group, unless its leader has ended and been waited for."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def exit_status(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "it closed its output"
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        return f"killed by {name}"
    return f"exit code {code}"


def with_tail(status: str, tail: str) -> str:
    """An exit status with the last output of the process."""
    return f"{status}; its output: {tail}" if tail else f"{status}; no output"
