"""Start commands of `mie` quickly: a process that has imported everything forks one child for each.

`python -m bench.kills.processes` is that process. It reads a JSON line per command from stdin, and answers
with the child's number when it has begun and with its exit status when it has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.kills.faults import Control

ROOT = Path(__file__).parents[2]
LIMIT = 900.0  # seconds by the clock for any one command: a busy machine is not to be blamed


@dataclass(frozen=True)
class Ended:
    """How a command ended: `code` is negative for a signal; `hung` if it had to be stopped by us."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    hung: bool = False

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL and not self.hung


class Running:
    """A command that has begun, in a process group of its own."""

    def __init__(self, parent: Processes, pid: int, logs: tuple[Path, Path]) -> None:
        self.pid = pid
        self._parent, self._logs = parent, logs
        self._begun = time.monotonic()

    def stdout(self) -> str:
        return self._logs[0].read_text(errors="replace")

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self, seconds: float = LIMIT) -> Ended:
        hung = not self._parent.ready(seconds)
        if hung:
            self.signal(signal.SIGKILL)
        code = self._parent.ended()["code"]
        self.signal(signal.SIGKILL)  # workers that outlive their parent would write beside the next command
        spent = time.monotonic() - self._begun
        return Ended(code, *(log.read_text(errors="replace") for log in self._logs), spent, hung)

    def alive(self) -> bool:
        return not self._parent.ready(0)


class Processes:
    """The forking process and the pipes to it. `folder` receives logs."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._folder = folder
        self._running: Running | None = None
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
            "MIE_CACHE": str(folder / "cache"),
            "NUMBA_CACHE_DIR": str(folder / "numba"),
            "MPLCONFIGDIR": str(folder / "matplotlib"),
            "TERM": "dumb",
        }
        command = [sys.executable, "-m", "bench.kills.processes", str(library), str(folder)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def start(self, arguments: list[str], root: Path, control: Control) -> Running:
        """Begin `mie ARGUMENTS`, with the injector on all that is written under `root`."""
        logs = self._folder / "stdout", self._folder / "stderr"
        order = {
            "arguments": arguments,
            "root": str(root),
            "control": str(control.path),
            "logs": [str(log) for log in logs],
        }
        assert self._process.stdin is not None
        for log in logs:
            log.write_bytes(b"")
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._running = Running(self, self.answer()["pid"], logs)
        return self._running

    def run(self, arguments: list[str], root: Path, control: Control, after: float | None = None) -> Ended:
        """Run to its end; `after` so many seconds kill it."""
        running = self.start(arguments, root, control)
        timer = threading.Timer(after or 0, running.signal, (signal.SIGKILL,))
        if after is not None:
            timer.start()
        try:
            return running.wait()
        finally:
            timer.cancel()

    def ready(self, seconds: float) -> bool:
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the forking process has ended")
        return json.loads(line)

    def ended(self) -> Any:
        self._running = None
        return self.answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        if self._running is not None:
            self._running.signal(signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait()


def _fork_for_ever(library: ctypes.CDLL, modules: Path) -> None:
    known: set[str] = set()
    while line := sys.stdin.readline():
        if modules.exists():  # what commands imported so far: the next ones find it in memory
            for name in sorted(set(json.loads(modules.read_text())) - known):
                known.add(name)
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        order = json.loads(line)
        gc.freeze()
        child = os.fork()
        if child == 0:
            _become(order, library, modules)
        print(json.dumps({"pid": child}), flush=True)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


def _become(order: dict[str, Any], library: ctypes.CDLL, modules: Path) -> None:
    """Be `mie ARGUMENTS` in a process group of its own; never returns."""
    os.setsid()
    for number, name in enumerate(["/dev/null", *order["logs"]]):
        os.dup2(os.open(name, os.O_RDWR), number)
    os.environ |= {"FAULTS_CONTROL": order["control"], "FAULTS_ROOT": order["root"]}
    library.faults_attach(order["control"].encode(), order["root"].encode())
    sys.argv = ["mie", *order["arguments"]]
    code = 0
    try:
        from mie.cli import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    names = (name for name in sys.modules if name.startswith("mie.") or re.fullmatch(r"[a-z]\w*", name))
    fresh = modules.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(list(names)))
    fresh.replace(modules)  # a kill at random may come here too
    # What the interpreter does at its end, without taking a thousand modules apart.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _fork_for_ever(ctypes.CDLL(sys.argv[1]), Path(sys.argv[2], "modules.json"))
