"""One function over many independent tasks. Results arrive in any order, and are always the same."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from mie.core.registry import unknown_name
from mie.errors import MieError

Task = TypeVar("Task")
Result = TypeVar("Result")

ENGINES = ("local", "ray")


# How far one task has come, in up to three numbers that mean what its function says.
Standing: TypeAlias = tuple[int, int, int]
Listener: TypeAlias = Callable[[int, Standing], None]  # (index of the task, how far it has come)
# What to do instead of a task that ended its process, if anything.
Rescue: TypeAlias = Callable[[Task, Standing], Task | None]
Describe: TypeAlias = Callable[[Task, Standing], str]  # what a task was working on, for people
_POLL_SECONDS: Final = 0.5

_tell: Callable[[Standing], None] = lambda _: None


def report(*numbers: int) -> None:
    """Say, from inside a task, how far it has come. Reaches the `listen` of `run_tasks`, except on Ray."""
    first, second, third = (*numbers, 0, 0, 0)[:3]
    _tell((first, second, third))


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    engine: str = "local",
    workers: int | None = None,
    listen: Listener = lambda _index, _standing: None,
    isolate: bool = False,
    rescue: Rescue[Task] = lambda _task, _standing: None,
    describe: Describe[Task] = lambda _task, _standing: "",
    output: Path | None = None,
    inputs: Sequence[Path] = (),
) -> Iterator[Result]:
    """Yield `function(task)` for every task, in order of completion.

    The tasks that were under way when a worker process died are repeated, one at a time in a process each.

    Args:
        function: What is done; on a pool or on Ray it must be importable.
        tasks: What it is done to.
        engine: "local" (a pool of processes) or "ray" (a cluster, `mie.datasets.cluster`).
        workers: Processes; all cores by default, on Ray those of the cluster.
        listen: Called, now and then, with what unfinished tasks `report`.
        isolate: Never run a task in this process, not even the only one: a crash would end the caller.
        rescue: Given a task that ended its process by itself and how far it had come, the task to do in its
            place; None where there is no other.
        describe: What to call a task that ends every process it is given, for the error that names it.
        output: The folder that tasks write into. On Ray, every machine must see it,
        inputs: and these files that they read; checked before the first task.

    """
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    count = workers or cores()
    if engine == "ray":
        from mie.datasets.cluster import run_on_ray

        yield from run_on_ray(
            function, tasks, workers, rescue=rescue, describe=describe, output=output, inputs=inputs
        )
    elif not isolate and (count == 1 or len(tasks) <= 1):
        for index, task in enumerate(tasks):
            with _telling(partial(listen, index)):
                result = function(task)
            yield result
    else:
        yield from _run_on_pools(function, tasks, count, listen, rescue, describe)


@contextmanager
def _telling(tell: Callable[[Standing], None]) -> Iterator[None]:
    global _tell
    before, _tell = _tell, tell
    try:
        yield
    finally:
        _tell = before


def cores() -> int:
    """The cores this process may use; a container often has fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run_on_pools(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int,
    listen: Listener,
    rescue: Rescue[Task],
    describe: Describe[Task],
) -> Iterator[Result]:
    left = dict(enumerate(tasks))
    while left:
        lost: dict[int, Standing] = {}
        for index, result in _run_on_pool(function, dict(left), workers, listen, lost):
            del left[index]
            yield result
        # Nobody knows which of them ended its process, or whether the system did: each gets one of its own.
        for index in lost:
            yield _run_alone(function, left.pop(index), index, listen, rescue, describe)


def _run_alone(
    function: Callable[[Task], Result],
    task: Task,
    index: int,
    listen: Listener,
    rescue: Rescue[Task],
    describe: Describe[Task],
) -> Result:
    while True:
        lost: dict[int, Standing] = {}
        for _, result in _run_on_pool(function, {index: task}, 1, listen, lost):
            return result
        instead = rescue(task, lost[index])
        if instead is None:
            raise MieError(
                "a worker process was killed",
                where=describe(task, lost[index]) or None,
                found="most often this is the system running out of memory",
                fix="run the same command again with fewer --workers: finished parts are kept",
            )
        task = instead


def _run_on_pool(
    function: Callable[[Task], Result],
    tasks: Mapping[int, Task],
    workers: int,
    listen: Listener,
    lost: dict[int, Standing],
) -> Iterator[tuple[int, Result]]:
    """(index, result) of each task; when a worker dies, `lost` gets those under way and the rest is left."""
    # Spawned, not forked: OpenCV and Arrow keep threads that do not survive a fork.
    context = multiprocessing.get_context("spawn")
    todo = iter(tasks.items())
    # Memory that all processes share, without locks: one that ends while it holds a lock stops the others.
    begun = context.RawValue("b", False)
    board = context.RawArray("q", 3 * (max(tasks) + 1))  # three numbers for each task

    def standing(index: int) -> Standing:
        first, second, third = board[3 * index : 3 * index + 3]
        return first, second, third

    with ProcessPoolExecutor(min(workers, len(tasks)), context, _begin, (begun, board)) as pool:
        running: dict[Future[Result], int] = {}
        try:
            while True:
                # Two tasks per worker in flight keep the pool busy without queueing the whole plan.
                while len(running) < 2 * workers and (item := next(todo, None)) is not None:
                    index, task = item
                    running[pool.submit(_work, function, index, task)] = index
                if not running:
                    return
                done, _ = wait(running, _POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    result = future.result()
                    yield running.pop(future), result
                for index in running.values():
                    listen(index, standing(index))
        except BrokenProcessPool:
            if not begun.value:
                raise MieError(
                    "no worker process could begin",
                    found="their own errors stand above; if there are none, the system is out of memory",
                    fix='in a script (a file, not stdin) put the call under `if __name__ == "__main__":`, '
                    "because each worker imports the script; or do without workers, with workers=1",
                ) from None
            lost.update((index, standing(index)) for index in sorted(running.values()))
        finally:
            for future in running:
                future.cancel()


_board: Any = None  # in a worker: the numbers of all tasks


def _begin(begun: Any, board: Any) -> None:
    """In each worker, once it has imported the caller's script and before its first task."""
    import cv2

    global _board
    _board = board
    threading.Thread(target=_end_with_parent, daemon=True).start()
    cv2.setNumThreads(1)
    begun.value = True


def _work(function: Callable[[Task], Result], index: int, task: Task) -> Result:
    with _telling(partial(_write_down, index)):
        return function(task)


def _write_down(index: int, standing: Standing) -> None:
    _board[3 * index : 3 * index + 3] = standing


def _end_with_parent() -> None:
    # A killed parent says no goodbye. Its workers would end their parts, unlocked, beside those of the next
    # call, or wait for a task for ever. What they write is whole or absent: they may end anywhere.
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 (this is a worker)
    parent.join()
    os._exit(1)
