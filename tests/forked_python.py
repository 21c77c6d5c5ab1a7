"""Python processes that start with other people's packages already imported.

A test that runs `mie` in a process of its own spends more on importing NumPy, Arrow, matplotlib and torch
than on what it tests. Here one server imports them once and does nothing else; a copy of it (`fork`) runs
each command, with its own arguments, folder, environment and streams. `mie` itself is imported afresh by each
command, so an import that is missing or circular still shows. Tests that send signals, or look at what is
imported, start a process of the usual kind.

`python forked_python.py serve ADDRESS` is the server; `python forked_python.py run ADDRESS WORD...` is the
command `python WORD...` on it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import json
import os
import select
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_PACKAGES = (
    *("numpy", "cv2", "PIL.Image", "PIL.PngImagePlugin", "yaml", "typer", "rich.table", "jinja2", "xxhash"),
    *("pydantic.main", "pydantic.fields", "pydantic.functional_validators", "pydantic.type_adapter"),
    *("pyarrow.parquet", "pyarrow.dataset", "pydicom", "highdicom", "nibabel", "isal.isal_zlib"),
    *("scipy.special", "scipy.ndimage", "scipy.sparse.linalg", "scipy.fft", "numba", "pandas"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
    *("httpx", "tenacity", "openai", "sqlalchemy", "fastapi", "uvicorn", "argon2"),
    *("torch", "torch._dynamo", "safetensors.torch", "transformers", "tokenizers", "accelerate"),
)
_EXECUTABLE = "MIE_TEST_PYTHON"  # a variable: what a command takes for the Python that it runs in
_started: dict[int, Path] = {}  # by process: the address of its server


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run(command, capture_output=True, text=True)` of a command that begins with this Python."""
    assert command[0] == sys.executable
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open() as empty:
        streams = empty.fileno(), out.fileno(), err.fileno()
        code = _ask(address(), command[1:], streams, cwd or Path.cwd(), os.environ if env is None else env)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    done = subprocess.CompletedProcess(list(command), code, *texts)
    if check:
        done.check_returncode()
    return done


class Started:
    """A command under way, in a session of its own: `os.killpg(started.pid, ...)` ends it and its workers."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        assert command[0] == sys.executable
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 (closed with this object)
        with Path(os.devnull).open("r+") as empty:
            streams = empty.fileno(), empty.fileno(), self._err.fileno()
            self._connection = _connect(
                address(), command[1:], streams, Path.cwd(), os.environ if env is None else env, session=True
            )
        self._replies = self._connection.makefile()
        self.pid = int(self._replies.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.wait(0)

    def wait(self, seconds: float | None = None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], seconds)[0]:
            self.returncode = int(self._replies.readline())
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not come so far as to have a session, or has just ended
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def errors(self) -> str:
        """What it has written to its standard error."""
        self._err.seek(0)
        return self._err.read().decode()


def install(folder: Path) -> Path:
    """Write commands `mie` and `python` into `folder`, which a shell finds there with `PATH`."""
    folder.mkdir(parents=True, exist_ok=True)
    start = shlex.join([sys.executable, "-I", "-S", __file__, "run", str(address())])
    for name, words in (("mie", "-m mie"), ("python", "")):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {start} {words} "$@"\n', encoding="utf-8")
        path.chmod(0o755)
    return folder


def quick_children(folder: Path) -> dict[str, str]:
    """Variables for a command that starts `sys.executable` itself: its processes start quickly too."""
    return {_EXECUTABLE: str(install(folder) / "python")}


def address() -> Path:
    """The address of this process's server, which is started if there is none, once it is ready."""
    path = start()
    while not path.exists():
        assert path.parent.exists(), "the server has ended"
        time.sleep(0.05)
    return path


def start() -> Path:
    """The address that the server will have: for the processes that share it (`share`)."""
    if os.getpid() not in _started:
        folder = tempfile.mkdtemp(prefix="mie-fork-")
        path = Path(folder) / "socket"
        # Packages of Hugging Face read this when they are imported.
        environment = {**os.environ, "HF_HOME": f"{folder}/huggingface"}
        command = [sys.executable, __file__, "serve", str(path)]
        server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
        threading.Thread(target=_remove_after, args=(server, folder), daemon=True).start()
        _started[os.getpid()] = path
        atexit.register(_stop, os.getpid(), server, folder)
    return _started[os.getpid()]


def share(path: str) -> None:
    """Use the server that another process has started, and will end."""
    _started[os.getpid()] = Path(path)


def _remove_after(server: subprocess.Popen[bytes], folder: str) -> None:
    """Without its folder, nobody waits for a server that has failed."""
    server.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _stop(process: int, server: subprocess.Popen[bytes], folder: str) -> None:
    if process == os.getpid():
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _ask(path: Path, words: Sequence[str], streams: Sequence[int], cwd: Path, env: Mapping[str, str]) -> int:
    """Have the server run `python WORDS`; the exit code, negative for a signal."""
    with _connect(path, words, streams, cwd, env) as connection, connection.makefile() as replies:
        process = int(replies.readline())
        if __name__ == "__main__":
            for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(name, lambda number, _: os.kill(process, number))
        return int(replies.readline())


def _connect(
    path: Path,
    words: Sequence[str],
    streams: Sequence[int],
    cwd: Path,
    env: Mapping[str, str],
    *,
    session: bool = False,
) -> socket.socket:
    """Send the request. The server answers with the number of the process, and at its end with its code."""
    request = {"words": [*words], "cwd": str(cwd), "env": dict(env), "session": session}
    body = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    socket.send_fds(connection, [len(body).to_bytes(8, "big")], [*streams])
    connection.sendall(body)
    return connection


def _serve(path: str) -> dict[str, Any]:
    """Fork at each request; the copy returns with what it is to do, the server never does."""
    running: dict[int, socket.socket] = {}
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as waiting:
        listener.bind(f"{path}.new")
        listener.listen()
        Path(f"{path}.new").rename(path)  # whoever sees it may connect
        for source in (listener, wake_read, sys.stdin.fileno()):
            waiting.register(source, selectors.EVENT_READ)
        while True:
            sources = [key.fileobj for key, _ in waiting.select()]
            if sys.stdin.fileno() in sources:  # its tests have ended
                os._exit(0)
            if wake_read in sources:
                os.read(wake_read, 512)
                _reap(running)
            if listener in sources:
                connection, _ = listener.accept()
                size, streams, _, _ = socket.recv_fds(connection, 8, 3)
                with connection.makefile("rb") as file:
                    request: dict[str, Any] = json.loads(file.read(int.from_bytes(size, "big")))
                process = os.fork()
                if process == 0:
                    break
                running[process] = connection
                connection.sendall(f"{process}\n".encode())
                for stream in streams:
                    os.close(stream)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for other in (*running.values(), connection):
        other.close()
    os.close(wake_read)
    os.close(wake_write)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return request


def _reap(running: dict[int, socket.socket]) -> None:
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        with running.pop(process) as connection, contextlib.suppress(BrokenPipeError):
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(words: list[str], cwd: str, env: dict[str, str], session: bool) -> None:
    """Run `python WORDS`: a module (-m), a text (-c) or a file."""
    import runpy

    if session:
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.executable = env.get(_EXECUTABLE, sys.executable)
    # As on a machine with one core, unless a command asks for more: tests already run side by side.
    os.sched_getaffinity = lambda _process: {0}  # type: ignore[assignment]
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path[1:] if path not in paths)]
    if spares := _spares(words):
        _hold_spares(spares)
    if words[0] == "-m":
        sys.path.insert(0, cwd)
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _spares(words: list[str]) -> int:
    """How many worker processes a command will start: these read files in processes apart."""
    if words[:2] != ["-m", "mie"] or not {"build", "plan"} & {*words[2:4]} or "--help" in words:
        return 0
    return int(words[words.index("--workers") + 1]) if "--workers" in words else 1


def _hold_spares(count: int) -> None:
    """Fork processes now, of which `multiprocessing` gets one instead of each that it spawns.

    They import `mie` for themselves, as spawned ones do, and are children of this process as those are. More
    than `count` are spawned as usual. Those that nobody takes end with this process.
    """
    from multiprocessing import util

    spares: list[tuple[int, socket.socket]] = []
    for _ in range(count):
        ours, theirs = socket.socketpair()
        process = os.fork()
        if process == 0:
            for one in (ours, *(other for _, other in spares)):
                one.close()
            _become_worker(theirs)
        theirs.close()
        spares.append((process, ours))
    spawn = util.spawnv_passfds

    def take(path: bytes, words: Sequence[str], descriptors: Sequence[int]) -> int:
        if "--multiprocessing-fork" not in words or not spares:
            return spawn(path, words, descriptors)
        process, connection = spares.pop(0)
        numbers = sorted(set(descriptors))
        request = {"code": words[words.index("-c") + 1], "numbers": numbers}
        with connection:
            socket.send_fds(connection, [json.dumps(request).encode()], numbers)
        return process

    util.spawnv_passfds = take  # type: ignore[assignment]


def _become_worker(connection: socket.socket) -> None:
    """Wait until this process is wanted, then run what a spawned one would run, with the same files open."""
    with connection:
        data, received, _, _ = socket.recv_fds(connection, 1 << 16, 64)
    if not data:
        os._exit(0)
    request: dict[str, Any] = json.loads(data)
    free = 1000  # above all that are open, so that none is overwritten before it has its number
    high = [fcntl.fcntl(one, fcntl.F_DUPFD, free) for one in received]
    for one in received:
        os.close(one)
    for one, number in zip(high, request["numbers"], strict=True):
        os.dup2(one, number)
        os.close(one)
    sys.argv = ["-c", "--multiprocessing-fork"]
    exec(request["code"], {"__name__": "__main__"})


def _code_of(request: dict[str, Any]) -> int:
    try:
        _become(**request)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _exit(code: int) -> NoReturn:
    """End as Python ends, but do not take every module apart: with so many, that takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]  # wait for threads, as at the end of any program
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code % 256)


def _import_packages() -> None:
    import importlib

    for name in _PACKAGES:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(name)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _import_packages()
        gc.collect()
        gc.freeze()  # what was imported is never looked at again, so its pages stay shared
        request = _serve(sys.argv[2])
        _exit(_code_of(request))
    else:
        code = _ask(Path(sys.argv[2]), sys.argv[3:], (0, 1, 2), Path.cwd(), os.environ)
        if code < 0:
            with contextlib.suppress(OSError):  # SIGKILL has no other handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        sys.exit(code)
