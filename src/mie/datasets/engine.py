"""One function over many independent tasks. Results arrive in any order, and are always the same."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeVar

from mie.core.registry import unknown_name
from mie.errors import MieError

if TYPE_CHECKING:
    from multiprocessing.synchronize import Event

Task = TypeVar("Task")
Result = TypeVar("Result")

ENGINES = ("local", "ray")


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    engine: str = "local",
    workers: int | None = None,
) -> Iterator[Result]:
    """Yield `function(task)` for every task, in order of completion. `workers` defaults to all cores."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    count = workers or cores()
    if engine == "ray":
        yield from run_on_ray(function, tasks, count)
    elif count == 1 or len(tasks) <= 1:
        yield from map(function, tasks)
    else:
        yield from _run_on_pool(function, tasks, count)


def cores() -> int:
    """The cores this process may use; a container often has fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _run_on_pool(function: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    # Spawned, not forked: OpenCV and Arrow keep threads that do not survive a fork.
    context = multiprocessing.get_context("spawn")
    todo = iter(tasks)
    begun = context.Event()
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _begin, (begun,)) as pool:
        running: set[Future[Result]] = set()
        try:
            while True:
                # Two tasks per worker in flight keep the pool busy without queueing the whole plan.
                while len(running) < 2 * workers and (task := next(todo, None)) is not None:
                    running.add(pool.submit(function, task))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except BrokenProcessPool:
            if not begun.is_set():
                raise MieError(
                    "no worker process could begin",
                    found="their own errors stand above; if there are none, the system is out of memory",
                    fix='in a script (a file, not stdin) put the call under `if __name__ == "__main__":`, '
                    "because each worker imports the script; or do without workers, with workers=1",
                ) from None
            raise MieError(
                "a worker process was killed",
                found="most often this is the system running out of memory",
                fix="run the same command again with fewer --workers: finished parts are kept",
            ) from None
        finally:
            for future in running:
                future.cancel()


def _begin(begun: Event) -> None:
    """In each worker, once it has imported the caller's script and before its first task."""
    import cv2

    threading.Thread(target=_end_with_parent, daemon=True).start()
    cv2.setNumThreads(1)
    begun.set()


def _end_with_parent() -> None:
    # A killed parent says no goodbye. Its workers would end their parts, unlocked, beside those of the next
    # call, or wait for a task for ever. What they write is whole or absent: they may end anywhere.
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 (this is a worker)
    parent.join()
    os._exit(1)


# The same tasks on a Ray cluster. All nodes must see data sets and output at the same paths.


def run_on_ray(function: Callable[[Task], Result], tasks: Sequence[Task], workers: int) -> Iterator[Result]:
    """Uses the cluster that `RAY_ADDRESS` names, else starts one on this machine with `workers` cores."""
    try:
        import ray
    except ImportError:
        raise MieError(
            "the Ray engine needs Ray", fix="pip install 'mie[ray]', or use --engine local"
        ) from None
    if not ray.is_initialized():
        ray.init(
            num_cpus=None if os.environ.get("RAY_ADDRESS") else workers,
            include_dashboard=False,
            log_to_driver=False,
        )
    remote = ray.remote(num_cpus=1)(function).remote
    todo = iter(tasks)
    running: list[Any] = []
    while True:
        while len(running) < 2 * workers and (task := next(todo, None)) is not None:
            running.append(remote(task))
        if not running:
            return
        done, running = ray.wait(running, num_returns=1)
        yield from ray.get(done)
