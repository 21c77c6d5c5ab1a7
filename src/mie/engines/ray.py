"""The same tasks on a Ray cluster. All nodes must see data sets and output at the same paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from mie.errors import MieError

Task = TypeVar("Task")
Result = TypeVar("Result")


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
