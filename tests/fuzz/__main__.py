"""`python -m tests.fuzz --cases 100000 --seed 1 [--seconds S]`: exit code 1 if any case found a fault."""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz.corpus import seeds
from tests.fuzz.worker import FORMATS, KINDS, case

CPU_SECONDS: Final = 10.0  # of one case; the clock would blame a busy machine
SECONDS: Final = 120.0  # by the clock: a case that waits for something that never comes
CHUNK: Final = 4000  # cases of one worker process


@dataclass
class Report:
    """What ran, and what it found: case -> fault."""

    ran: Counter[str] = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)


def fuzz(cases: int, seed: int, *, first: int = 0, seconds: float | None = None) -> Report:
    """Run cases first..first+cases, or those that fit into `seconds`, in watched processes."""
    report, at, end = Report(), first, first + cases
    stop = None if seconds is None else time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="mie-fuzz-") as folder:
        while at < end and (stop is None or time.monotonic() < stop):
            reached = _watched(seed, at, min(end, at + CHUNK), Path(folder), stop, report)
            report.ran.update(KINDS[number % len(KINDS)] for number in range(at, reached))
            at = reached
    return report


def environment() -> dict[str, str]:
    """For a process that imports `tests`, whatever the working directory is."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _watched(seed: int, first: int, last: int, folder: Path, stop: float | None, report: Report) -> int:
    """One worker process; returns the number of the first case that was not tried."""
    board = folder / "board"
    board.write_bytes(struct.pack("<q", -1))
    command = [
        sys.executable,
        "-m",
        "tests.fuzz.worker",
        str(seed),
        str(first),
        str(last),
        str(folder),
        str(board),
    ]
    output, errors = folder / "output", folder / "errors"
    with output.open("wb") as file, errors.open("wb") as said:
        process = subprocess.Popen(command, stdout=file, stderr=said, env=environment())
    now, cpu, since, killed = -1, 0.0, time.monotonic(), ""
    while process.poll() is None:
        time.sleep(0.1)
        (number,) = struct.unpack("<q", board.read_bytes())
        used = _cpu(process.pid)
        if number != now:
            now, cpu, since = number, used, time.monotonic()
        if stop is not None and time.monotonic() > stop and now >= first:
            killed = "time"
        elif now >= 0 and (used - cpu > CPU_SECONDS or time.monotonic() - since > SECONDS):
            killed = f"took longer than {CPU_SECONDS:g} s"
        if killed:
            process.kill()
    process.wait()
    (number,) = struct.unpack("<q", board.read_bytes())
    for line in output.read_bytes().splitlines():
        body = json.loads(line)
        if "done" in body:
            return last
        report.faults[body["case"]] = body["fault"]
    if killed == "time":
        return number
    if number < first:
        raise RuntimeError(f"the worker could not begin: exit code {process.returncode}")
    report.faults.setdefault(number, killed or f"ended its process: exit code {process.returncode}")
    return number + 1


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def save_faults(report: Report, seed: int, folder: Path) -> None:
    """Each file that found a fault, the fault, and the command that repeats it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = seeds(Path(scratch))
    for number, fault in report.faults.items():
        kind, data = case(seed, number, corpus)
        (folder / f"{seed}-{number}-{FORMATS[kind][0]}").write_bytes(data)
        repeat = f"python -m tests.fuzz --seed {seed} --first {number} --cases 1"
        (folder / f"{seed}-{number}.txt").write_text(f"{repeat}\n{fault}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--faults", type=Path, default=Path("fuzz-faults"), help="where failing files go")
    options = parser.parse_args()
    report = fuzz(options.cases, options.seed, first=options.first, seconds=options.seconds)
    if report.faults:
        save_faults(report, options.seed, options.faults)
    counts = ", ".join(f"{kind} {report.ran[kind]}" for kind in KINDS)
    print(f"{report.ran.total()} cases: {counts}\n{len(report.faults)} faults")
    for number, fault in sorted(report.faults.items()):
        print(f"case {number} ({KINDS[number % len(KINDS)]}): {fault.splitlines()[0][:200]}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
