"""Child processes on a leash: no shell, their own process group, the end of what they said kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from mie.core.registry import nearest_name
from mie.core.spec import mask_secrets
from mie.editors.base import Edited, EditError, Editor, Request, Turn
from mie.editors.outputs import read_output
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.records import Pixels

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


# A long-lived process that speaks JSON lines: a request on its stdin, a reply on its stdout.

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


# A program as an editor, in any language and any environment.
#
# One process per edit, with `{input}`, `{instruction}`, `{output}` and `{seed}` filled in:
#
#     command:python my.py --image {input} --prompt={instruction} --out {output} --seed {seed}
#
# or, with `jsonl=true`, one process for all edits (a model is loaded once). It reads one JSON object per
# line,
# `{"id", "input", "instruction", "output", "seed"}`, writes a PNG to `output`, and answers with one line,
# `{"output": path}` or `{"error": text}`. Lines on its stdout that are no JSON object are ignored.
#
# There is no shell: the template is split into words once, and each value goes into its word as it is. A
# word
# of its own for `{instruction}` could be taken for a flag when it begins with `-`; `--prompt={instruction}`
# cannot. Past the time limit the program is killed with everything that it started.

PLACEHOLDERS: Final = ("input", "instruction", "output", "seed")
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


class Command(Editor):
    """`timeout` and `startup` in seconds; `startup` is added for the first reply of a `jsonl` process."""

    tuning = frozenset({"timeout", "startup"})

    def __init__(
        self, command: str, *, jsonl: bool = False, timeout: float = 300.0, startup: float = 600.0
    ) -> None:
        if timeout <= 0 or startup < 0:
            raise ConfigError("time limit does not make sense", expected="seconds above 0", found=timeout)
        self._argv = _split(command, jsonl=jsonl)
        self._timeout = timeout
        self._lines = LineProcess(self._argv, timeout=timeout, startup=startup) if jsonl else None
        self.thread_safe = not jsonl
        self._running: set[subprocess.Popen[bytes]] = set()
        self._guard = threading.Lock()
        self._closed = False

    def about(self) -> dict[str, Any]:
        return {"program": shutil.which(self._argv[0])}

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self.edit_request(Request(image, instruction, seed, history=history))

    def edit_request(self, request: Request) -> Edited:
        with tempfile.TemporaryDirectory(prefix="mie-edit-", ignore_cleanup_errors=True) as folder:
            source, target = Path(folder, "input.png"), Path(folder, "output.png")
            source.write_bytes(encode_png(request.image))
            values = {
                "input": str(source),
                "instruction": request.instruction,
                "output": str(target),
                "seed": request.seed,
            }
            try:
                if self._lines is not None:
                    name = None if request.sample is None else f"{request.sample.id}_{request.attempt}"
                    target = Path(folder, _reply(self._lines.ask({"id": name, **values})))
                else:
                    self._run(fill(self._argv, values))
                    if not target.exists():
                        raise EditError("the command wrote no output", expected="a picture at {output}")
                return read_output(target, like=request.image.shape)
            except EditError as error:
                # The folder has another name each time; without it equal failures are counted as one.
                error.found = None if error.found is None else error.found.replace(folder, "FOLDER")
                raise

    def _run(self, argv: Sequence[str]) -> None:
        with self._guard:
            if self._closed:
                raise EditError("interrupted")
            process = start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self._running.add(process)
        assert process.stdout is not None  # noqa: S101
        tail = Tail(process.stdout)
        try:
            code = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise EditError(
                "the command ran past its time limit",
                expected=f"an end within {self._timeout:g} s",
                found=last_words("killed", tail.text()),
            ) from None
        finally:
            kill_group(process)  # when we are interrupted ourselves
            self._running.discard(process)
        if code:
            raise EditError("the command failed", found=last_words(ending(code), tail.text()))

    def close(self) -> None:
        with self._guard:
            self._closed = True
            for process in list(self._running):
                kill_group(process)
        if self._lines is not None:
            self._lines.close()


def fill(argv: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """The words with their placeholders filled in; what is filled in is never looked at again."""
    return [_PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), word) for word in argv]


def _split(command: str, *, jsonl: bool) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            "cannot split this command into words", where=_shown(command), found=error
        ) from None
    if not argv:
        raise ConfigError("no command", expected="command:PROGRAM {input} {output}")
    if shutil.which(argv[0]) is None:
        raise ConfigError("no such program", where=_shown(command), found=argv[0])
    named = {name for word in argv for name in _PLACEHOLDER.findall(word)}
    for name in sorted(named.difference(PLACEHOLDERS)):
        near = nearest_name(name, PLACEHOLDERS)
        if near:
            raise ConfigError(
                f"unknown placeholder {{{name}}}", where=_shown(command), fix=f"did you mean {{{near}}}?"
            )
    if jsonl and named & set(PLACEHOLDERS):
        raise ConfigError(
            "a jsonl command takes no placeholders", where=_shown(command), expected="requests on its stdin"
        )
    missing = [name for name in ("input", "output") if name not in named]
    if missing and not jsonl:
        raise ConfigError(
            f"the command has no {{{missing[0]}}}",
            where=_shown(command),
            expected="{input} and {output}, most often {instruction}, perhaps {seed}",
            fix="say jsonl=true if it reads its requests from stdin",
        )
    return argv


def _reply(reply: Mapping[str, Any]) -> str:
    if reply.get("error") is not None:
        raise EditError("the command reports an error", found=str(reply["error"])[:2000])
    if not isinstance(reply.get("output"), str) or "\0" in reply["output"]:
        raise EditError("the command's reply names no file", found=repr(reply.get("output"))[:200])
    return str(reply["output"])


def _shown(command: str) -> str:
    return mask_secrets(command)[:200]
