"""Decoders that no header bounds, in a child process with a limit on time and memory.

What a header says bounds the pixels, not the work: a code stream of JPEG 2000 or JPEG-LS, or a compressed
TIFF, can keep its decoder busy for long, take any memory on the way, or end the process. Each process that
meets such a file starts one child and keeps it. A child that takes too long, or ends, is replaced, and the
file is refused. Only JSON and plain arrays travel: nothing that a broken child sends back is run.
"""

from __future__ import annotations

import atexit
import importlib
import json
import math
import os
import resource
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.errors import ImageError

Reply = tuple[dict[str, Any], list[NDArray[Any]]]

# What a child may be asked for: a function (facts, bytes of the file) -> Reply.
TASKS: Final = {
    "frame": "mie.images.dicom_frames:decode_frame",
    "raster": "mie.images.raster:decode_in_child",
}
SECONDS: Final = 10.0  # of the processor, for any picture
SECONDS_PER_MEGAPIXEL: Final = 0.1
_PATIENCE: Final = 10.0  # by the clock, the same many times over: the machine may be busy
MEMORY: Final = 4 * 2**30  # bytes beyond what the child has when it begins
_LONGEST: Final = 2**33  # of a reply
_START: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from mie.images.child import serve
serve()
"""


def decode_limited(
    task: str, facts: Mapping[str, Any], data: bytes, *, pixels: int, kind: str, where: object
) -> Reply:
    """What the task makes of `data`; `ImageError` where it raises, takes too long, or ends the child."""
    seconds = SECONDS + SECONDS_PER_MEGAPIXEL * pixels / 1e6
    with _lock:
        child = _running_child()
        try:
            child.send({"task": task, "facts": facts, "seconds": seconds}, [data])
            said, arrays = child.receive(_PATIENCE * seconds)
        except (EOFError, OSError, ValueError, KeyError) as error:
            code = child.end()
            slow = isinstance(error, TimeoutError) or code == -signal.SIGXCPU
            raise ImageError(
                f"{kind} file cannot be decoded",
                where=where,
                expected=f"pixels within {seconds:.0f} s and {MEMORY:,} bytes",
                found="its decoder does not end" if slow else "it ends the decoder's process",
            ) from None
        except BaseException:  # Ctrl-C while it decodes: the reply must not be taken for the next one's
            child.end()
            raise
    if (trouble := said.get("error")) is not None:
        raise ImageError(
            f"{kind} file cannot be decoded",
            where=where,
            expected=f"a complete {kind} file of a supported kind",
            found=trouble,
        )
    return said["facts"], arrays


class _Child:
    """A process that decodes, and the two pipes to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            process_group=0,  # Ctrl-C is for us
        )
        self._limit = math.inf

    @property
    def alive(self) -> bool:
        # In a process that was forked from us it is nobody's child, and counts as ended: see `Popen.poll`.
        return self._process.poll() is None

    def send(self, head: Mapping[str, Any], bodies: Sequence[bytes]) -> None:
        assert self._process.stdin is not None  # noqa: S101 (a pipe)
        _send(self._process.stdin, head, bodies)

    def receive(self, seconds: float) -> Reply:
        assert self._process.stdout is not None  # noqa: S101 (a pipe)
        self._limit = time.monotonic() + seconds
        head, bodies = _receive(self._read)
        return head, [_array(kind, bytes_) for kind, bytes_ in zip(head["arrays"], bodies, strict=True)]

    def _read(self, size: int) -> bytearray:
        stream = self._process.stdout
        assert stream is not None  # noqa: S101 (a pipe)
        data = bytearray(size)
        view, at = memoryview(data), 0
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while at < size:
                if not selector.select(max(0.0, self._limit - time.monotonic())):
                    raise TimeoutError
                count = os.readv(stream.fileno(), [view[at:]])
                if not count:
                    raise EOFError
                at += count
        return data

    def end(self) -> int:
        """Kill it, if it is ours; the exit code it had, if it ended by itself."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return self._process.wait(0.5)  # closed pipes end it, and what it ended by must not be lost
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


_lock = threading.Lock()
_child: _Child | None = None


def _running_child() -> _Child:
    global _child
    if _child is None or not _child.alive:
        _child = _Child()
    return _child


@atexit.register
def _end_child() -> None:
    if _child is not None:
        _child.end()


def _unlock() -> None:
    """In a forked process, where the thread that held the lock does not exist."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def _send(stream: IO[bytes], head: Mapping[str, Any], bodies: Sequence[Any]) -> None:
    """A head in JSON with the length of each body, then the bodies."""
    text = json.dumps({**head, "lengths": [memoryview(body).nbytes for body in bodies]}).encode()
    for piece in (struct.pack("<Q", len(text)), text, *bodies):
        view = memoryview(piece).cast("B")
        while view:
            view = view[os.write(stream.fileno(), view[: 1 << 20]) :]


def _receive(read: Callable[[int], bytearray]) -> tuple[dict[str, Any], list[bytearray]]:
    (size,) = struct.unpack("<Q", read(8))
    if size > 1 << 24:
        raise ValueError("the head is too long")
    head = json.loads(bytes(read(size)))
    if sum(head["lengths"]) > _LONGEST:
        raise ValueError("the reply is too long")
    return head, [read(length) for length in head["lengths"]]


def _array(kind: Sequence[Any], data: bytearray) -> NDArray[Any]:
    name, shape = kind
    dtype = np.dtype(str(name))
    if dtype.kind not in "biuf":
        raise ValueError("not an array of numbers")
    return np.frombuffer(data, dtype).reshape(shape)


def serve() -> None:
    """In the child: decode what comes until the pipe ends."""
    import cv2

    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not come between
    cv2.setNumThreads(1)
    functions = {name: _function(target) for name, target in TASKS.items()}
    _limit_memory()
    while True:
        try:
            head, (data,) = _receive(_read_input)
        except EOFError:
            return
        _limit_time(head["seconds"])
        try:
            facts, arrays = functions[head["task"]](head["facts"], bytes(data))
            arrays = [np.ascontiguousarray(array) for array in arrays]
            reply: dict[str, Any] = {"facts": facts}
        except MemoryError:
            reply, arrays = {"error": "it needs more memory than is allowed"}, []
        except Exception as error:
            # An error of ours has said all in its own words: the caller's says the rest.
            found = getattr(error, "found", None) or f"{type(error).__name__}: {error}"
            reply, arrays = {"error": str(found)[:500]}, []
        del data
        reply["arrays"] = [(array.dtype.str, array.shape) for array in arrays]
        try:
            _send(output, reply, [array.reshape(-1).view(np.uint8) for array in arrays])
        except BrokenPipeError:
            return


def _function(target: str) -> Callable[[Mapping[str, Any], bytes], Reply]:
    module, _, name = target.partition(":")
    function: Callable[[Mapping[str, Any], bytes], Reply] = getattr(importlib.import_module(module), name)
    return function


def _read_input(size: int) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        count = os.readv(0, [view[at:]])
        if not count:
            raise EOFError
        at += count
    return data


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # a decoder writes no file
    if sys.platform == "linux":  # macOS does not keep to it
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))


def _limit_time(seconds: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime + seconds), hard))
