"""A program as an editor, in any language and any environment.

One process per edit, with `{input}`, `{instruction}`, `{output}` and `{seed}` filled in:

    command:python my.py --image {input} --prompt={instruction} --out {output} --seed {seed}

or, with `jsonl=true`, one process for all edits (a model is loaded once). It reads one JSON object per line,
`{"id", "input", "instruction", "output", "seed"}`, writes a PNG to `output`, and answers with one line,
`{"output": path}` or `{"error": text}`. Lines on its stdout that are not JSON objects are ignored.

There is no shell: the template is split into words once, and each value is put into its word as it is. A word
of its own for `{instruction}` could be taken for a flag when it begins with `-`; `--prompt={instruction}`
cannot. After the time limit the program is killed with everything that it started.
"""

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

PLACEHOLDERS: Final = ("input", "instruction", "output", "seed")
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_TAIL: Final = 4096  # bytes of output that are kept for the reason of a failure
_TAIL_SECONDS: Final = 1.0  # how long to wait for the last output of a process that has ended
_EXIT_SECONDS: Final = 5.0  # how long a process may take to end once its stdin is closed
_MAX_LINE: Final = 2**20


class Command(Editor):
    """Runs a program of yours for every edit, or one that reads JSON lines (`jsonl=true`).

    `timeout` and `startup` are in seconds; `startup` is added for the first reply of a `jsonl` process.
    """

    tuning = frozenset({"timeout", "startup"})

    def __init__(
        self, command: str, *, jsonl: bool = False, timeout: float = 300.0, startup: float = 600.0
    ) -> None:
        if timeout <= 0 or startup < 0:
            raise ConfigError("the time limit must be above 0", expected="seconds", found=timeout)
        self._argv = _split(command, jsonl=jsonl)
        self._timeout = timeout
        self._lines = JsonLinesProcess(self._argv, timeout=timeout, startup=startup) if jsonl else None
        self.thread_safe = not jsonl
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
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
                    target = Path(folder, _output_path(self._lines.ask({"id": name, **values})))
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
        with self._lock:
            if self._closed:
                raise EditError("interrupted")
            process = start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self._running.add(process)
        assert process.stdout is not None  # noqa: S101
        tail = OutputTail(process.stdout)
        try:
            code = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise EditError(
                "the command ran past its time limit",
                expected=f"an end within {self._timeout:g} s",
                found=with_tail("killed", tail.text()),
            ) from None
        finally:
            kill_group(process)  # when we are interrupted ourselves
            self._running.discard(process)
        if code:
            raise EditError("the command failed", found=with_tail(exit_status(code), tail.text()))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for process in list(self._running):
                kill_group(process)
        if self._lines is not None:
            self._lines.close()


def fill(argv: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Fill in the placeholders of each word. A value is never searched for placeholders itself."""
    return [_PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), word) for word in argv]


def _split(command: str, *, jsonl: bool) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            "cannot split this command into words", where=_shown(command), found=error
        ) from None
    if not argv:
        raise ConfigError("the command is empty", expected="command:PROGRAM {input} {output}")
    if shutil.which(argv[0]) is None:
        raise ConfigError("no such program", where=_shown(command), found=argv[0])
    named = {name for word in argv for name in _PLACEHOLDER.findall(word)}
    for name in sorted(named.difference(PLACEHOLDERS)):
        # Other words in braces may be meant for the program itself.
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
            expected="{input} and {output}, usually {instruction}, optionally {seed}",
            fix="add jsonl=true if it reads its requests from stdin",
        )
    return argv


def _output_path(reply: Mapping[str, Any]) -> str:
    if reply.get("error") is not None:
        raise EditError("the command reports an error", found=str(reply["error"])[:2000])
    if not isinstance(reply.get("output"), str) or "\0" in reply["output"]:
        raise EditError("the command's reply names no file", found=repr(reply.get("output"))[:200])
    return str(reply["output"])


def _shown(command: str) -> str:
    return mask_secrets(command)[:200]


class JsonLinesProcess:
    """A long-lived process that reads a request per line on stdin and replies with a line on stdout.

    It starts at the first request; after a crash, a late reply or an invalid one, again at the next.
    """

    def __init__(self, argv: Sequence[str], *, timeout: float, startup: float) -> None:
        self._argv = argv
        self._timeout = timeout
        self._startup = startup  # more seconds for the first reply: models take time to load
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and return its reply; `EditError` when none comes in time."""
        with self._lock:
            if self._closed:
                raise EditError("interrupted")
            limit = self._timeout
            if self._process is None:
                self._start()
                limit += self._startup
            try:
                reply = self._exchange(json.dumps(request).encode() + b"\n", limit)
                if reply.get("id", request["id"]) != request["id"]:
                    raise EditError("the command replied to another request", found=repr(reply["id"])[:200])
                return reply
            except BaseException:
                self._stop()  # else its late reply would be taken for the answer to the next request
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
                process.wait(_EXIT_SECONDS)
            except (OSError, subprocess.TimeoutExpired):
                pass
            finally:
                self._stop()
                self._lock.release()
        else:
            kill_group(process)

    def _start(self) -> None:
        pipe = subprocess.PIPE
        self._process = start(self._argv, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        assert self._process.stderr is not None  # noqa: S101
        self._tail = OutputTail(self._process.stderr)

    def _stop(self) -> None:
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
        stdin, stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(stdin, False)
        os.set_blocking(stdout, False)
        self._unread = b""
        with contextlib.suppress(BlockingIOError):
            while os.read(stdout, 65536):  # whatever it printed since its last reply
                pass
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as ready:
            ready.register(stdin, selectors.EVENT_WRITE)
            ready.register(stdout, selectors.EVENT_READ)
            while True:
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
                        reply = self._read(stdout)
                        if reply is not None:
                            return reply
                        continue
                    try:
                        line = line[os.write(stdin, line) :]
                    except BrokenPipeError:
                        raise self._crashed() from None
                    if not line:
                        ready.unregister(stdin)

    def _read(self, stdout: int) -> dict[str, Any] | None:
        chunk = os.read(stdout, 65536)
        if not chunk:
            raise self._crashed()
        self._unread += chunk
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            # Libraries print to stdout: lines that are not objects are ignored.
            if line.lstrip().startswith(b"{"):
                return _parse_reply(line)
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
            "the command ended before it replied", found=with_tail(exit_status(code), self._tail.text())
        )


def _parse_reply(line: bytes) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        raise EditError("the command's reply is not JSON", found=repr(line[:200])) from None
    if not isinstance(reply, dict) or not ("output" in reply or "error" in reply):
        raise EditError(
            "the command's reply has neither output nor error",
            expected='{"output": path} or {"error": text}',
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
