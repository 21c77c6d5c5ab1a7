"""The fault injector `faults.c`: compiled when it is needed, told through a file in shared memory."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
# In the order of `enum` in faults.c. "kill" ends the whole process group, "kill one" the writing process.
KINDS = ("count", "kill", "kill one", "full", "broken", "interrupted", "short")
_LAYOUT = struct.Struct("<4q16s480s")


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def compile_injector(folder: Path) -> Path:
    library = folder / "faults.so"
    command = [compiler() or "cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE]
    subprocess.run(command, check=True)
    return library


@dataclass(frozen=True)
class Fired:
    """The call at which a fault came; `number` is 0 where none came."""

    number: int
    call: str
    path: str


class Control:
    """What the injector in a process, and in its children, does next, and what it has seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)

    def arm(self, kind: str, at: int = 1) -> None:
        """Count from 0, and let the fault come at call `at` or at the next one that it concerns."""
        self._memory[:] = _LAYOUT.pack(KINDS.index(kind), at, 0, 0, b"", b"")

    def disarm(self) -> None:
        """Let every call succeed from now on."""
        self._memory[:8] = struct.pack("<q", KINDS.index("count"))

    @property
    def count(self) -> int:
        return int(_LAYOUT.unpack(self._memory[:])[2])

    @property
    def fired(self) -> Fired:
        _, _, _, number, call, path = _LAYOUT.unpack(self._memory[:])
        return Fired(number, call.rstrip(b"\0").decode(), path.rstrip(b"\0").decode(errors="replace"))
