"""`mie train --processes N`: as many processes of the same command on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mie.errors import MieError

_POLL: Final = 0.2  # seconds
_GRACE: Final = 10.0  # seconds that the others have to end by themselves


def launch(arguments: Sequence[str], processes: int, out: Path) -> int:
    """Run `mie ARGUMENTS` in `processes` processes; return the exit code of the main one.

    Where one of them dies, the others are ended, and the error says which it was and where to resume.
    """
    environment = {
        **os.environ,
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "mie", *arguments],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(processes)
    ]
    ended: set[int] = set()  # by this process, because another one had failed
    try:
        while any(child.poll() is None for child in children):
            if any(child.returncode not in (None, 0, 3) for child in children):
                break
            time.sleep(_POLL)
        _wait(children, _GRACE)
    finally:
        for rank, child in enumerate(children):
            if child.poll() is None:
                ended.add(rank)
                child.terminate()
        _wait(children, _GRACE)
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    codes = {rank: child.returncode for rank, child in enumerate(children)}
    killed = {rank: code for rank, code in codes.items() if code < 0 and rank not in ended}
    if killed:
        rank, code = next(iter(killed.items()))
        from mie.training.checkpoints import newest  # imports torch, which this process does without

        last = newest(out / "checkpoints")
        raise MieError(
            f"process {rank + 1} of {processes} was killed",
            where=out,
            found=f"signal {-code} ({signal.Signals(-code).name})",
            fix="run the same command again: it resumes from "
            + (last.name if last else "the beginning, as no checkpoint had been written"),
        )
    return max(codes[0], 0) or max(*codes.values(), 0)


def _wait(children: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait for all, but no longer than that once one has failed."""
    end = time.monotonic() + seconds
    for child in children:
        try:
            child.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            continue


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
