"""Ray: the tasks of `run_tasks`, and objects that stay loaded, on the machines of a cluster.

Nothing that is lost with a machine counts as done: this process alone keeps journals and hands out work, and
repeats what was under way on a worker, an actor or a machine that died.
"""

from __future__ import annotations

import os
import queue
import secrets
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

import mie
from mie.core.environment import install_hint
from mie.datasets.engine import Describe, Rescue, run_tasks
from mie.errors import ConfigError, MieError

Task = TypeVar("Task")
Result = TypeVar("Result")

_LIVES: Final = 4  # workers that may die under one task, machines that go down included
_ACTOR_LIVES: Final = 2  # actors that one call may end
_PATIENCE: Final = 30.0  # seconds until what a dead process held is free again, unless its machine is gone
_POLL: Final = 1.0
_SHOWN_LATE: Final = 10.0  # seconds after which a network file system shows a new file everywhere


def start_ray(cores: int | None) -> Any:
    """Ray, connected to the cluster that `RAY_ADDRESS` names, else to a new one on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports its use to its makers
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
    try:
        import ray
    except ImportError:
        raise MieError(
            "the Ray engine needs Ray", fix=f"{install_hint('ray')}, or use --engine local"
        ) from None
    for left in (2, 1, 0):
        if ray.is_initialized():
            break
        try:
            # Without an address Ray would also join the cluster of another process on this machine.
            ray.init(
                address=None if os.environ.get("RAY_ADDRESS") else "local",
                num_cpus=None if os.environ.get("RAY_ADDRESS") else cores,
                include_dashboard=False,
                log_to_driver=False,
            )
        except Exception as error:  # Ray raises this class itself when a node is late on a busy machine
            ray.shutdown()
            if not left:
                raise MieError(
                    f"Ray did not start: {error}",
                    fix="see /tmp/ray/session_latest/logs, or use --engine local",
                ) from error
    return ray


# ---- Tasks ----


def run_on_ray(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    workers: int | None,
    *,
    rescue: Rescue[Task],
    describe: Describe[Task],
    output: Path | None = None,
    inputs: Sequence[Path] = (),
) -> Iterator[Result]:
    """Yield the results of the tasks, as `run_tasks` does, from a cluster whose machines share their files.

    Uses the cluster that `RAY_ADDRESS` names, else starts one on this machine with `workers` cores. A task
    whose worker died is repeated in a process of its own, so that one which ends every process is found out,
    and `rescue`d, where it runs; `_LIVES` workers in a row end the call.
    """
    ray = start_ray(workers)
    remote = ray.remote(num_cpus=1, max_retries=0)(_work).remote
    todo = deque(range(len(tasks)))
    deaths: Counter[int] = Counter()
    running: dict[Any, int] = {}
    with _shown_to_others(output, inputs) as proof:
        alive = time.monotonic()
        try:
            while todo or running:
                cpus = int(ray.cluster_resources().get("CPU", 0))
                # Two tasks for each core keep a cluster busy without queueing the whole plan.
                while todo and len(running) < (workers or max(1, 2 * cpus)):
                    index = todo.popleft()
                    alone = (rescue, describe) if deaths[index] else None
                    running[remote(function, tasks[index], proof, alone)] = index
                done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL)
                alive = time.monotonic() if done or cpus else alive
                if time.monotonic() - alive > _PATIENCE:
                    raise MieError(
                        "the cluster has no machine left that works",
                        expected="at least one CPU",
                        fix="start Ray on another machine, then run the same command: it resumes",
                    )
                for ref in done:
                    index = running.pop(ref)
                    try:
                        outcome = ray.get(ref)
                    except ray.exceptions.RayTaskError as error:
                        raise error.cause from None
                    except ray.exceptions.RayError as error:  # the worker, its machine or its memory is gone
                        deaths[index] += 1
                        if deaths[index] >= _LIVES:
                            raise _deadly(describe(tasks[index], (0, 0, 0)), error) from None
                        todo.appendleft(index)
                        continue
                    if isinstance(outcome, MieError):
                        raise outcome
                    yield outcome
        finally:
            for ref in running:
                with suppress(Exception):  # the cluster itself may be gone
                    ray.cancel(ref, force=True)


def _deadly(where: str, error: Exception) -> MieError:
    return MieError(
        f"{_LIVES} workers died in a row while they did the same work",
        where=where or None,
        found=str(error).splitlines()[0][:300] if str(error) else type(error).__name__,
        fix="look for its image; if it needs more memory than a worker has, ask for fewer --workers",
    )


def _work(
    function: Callable[[Task], Result],
    task: Task,
    proof: Proof,
    alone: tuple[Rescue[Task], Describe[Task]] | None,
) -> Result | MieError:
    """In a worker of the cluster. Return an error rather than raise it: Ray would wrap it in its own."""
    import cv2

    cv2.setNumThreads(1)
    try:
        proof.check()
        if alone is None:
            return function(task)
        rescue, describe = alone
        options: dict[str, Any] = {"workers": 1, "isolate": True, "rescue": rescue, "describe": describe}
        (result,) = run_tasks(function, [task], **options)
        return result
    except MieError as error:
        return error


# ---- The files that all machines must see ----


@dataclass(frozen=True, slots=True)
class Proof:
    """What this process wrote and sees, for others to compare."""

    folder: str  # the working directory: paths may be relative to it
    version: str
    token: str = ""
    path: Path | None = None
    inputs: tuple[tuple[Path, int], ...] = ()  # files and their sizes
    patience: float = _SHOWN_LATE

    def check(self) -> None:
        """Enter the working directory; `MieError` on a machine that sees other files or has another mie."""
        if self in _checked:
            return
        where = f"the machine {socket.gethostname()}"
        if mie.__version__ != self.version:
            raise MieError(
                "another version of mie is installed there",
                where=where,
                expected=self.version,
                found=mie.__version__,
                fix="install the same version on every machine of the cluster",
            )
        with suppress(OSError):
            os.chdir(self.folder)
        if self.path is not None and not self._within(self._sees_token):
            raise _not_shared(where, self.path.parent, "the file that this command has just written there")
        for path, size in self.inputs:
            if not self._within(partial(_has_size, path, size)):
                raise _not_shared(where, path, f"a file of {size:,} bytes")
        _checked.add(self)

    def _sees_token(self) -> bool:
        assert self.path is not None  # noqa: S101
        try:
            return self.path.read_text() == self.token
        except OSError:
            return False

    def _within(self, seen: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self.patience
        while not seen():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


_checked: set[Proof] = set()  # in a worker: once is enough


def _not_shared(where: str, path: Path, expected: str) -> MieError:
    return MieError(
        f"this machine does not see {path}",
        where=where,
        expected=expected,
        found="nothing there, or something else",
        fix="put data sets and output in a folder that all machines of the cluster mount at the same path "
        "(NFS, Lustre, a ReadWriteMany volume), or use --engine local",
    )


@contextmanager
def _shown_to_others(output: Path | None, inputs: Sequence[Path]) -> Iterator[Proof]:
    """Write a token into the output's folder; what every worker checks before its first task."""
    proof = Proof(str(Path.cwd()), mie.__version__, secrets.token_hex(16))
    files = tuple((path.absolute(), path.stat().st_size) for path in inputs)
    if output is None:
        yield Proof(proof.folder, proof.version, inputs=files)
        return
    path = (
        output.absolute() / f".shared-{proof.token[:12]}.tmp"
    )  # as `atomic_path` names what may be left by a kill
    path.write_text(proof.token)
    try:
        yield Proof(proof.folder, proof.version, proof.token, path, files)
    finally:
        path.unlink(missing_ok=True)


# ---- Objects that stay loaded ----


class Loaded(Protocol):
    """What an actor holds: made from a spec, cheap to make, loaded once."""

    def __init__(self, spec: str) -> None: ...

    def load(self) -> None: ...

    def work(self, item: Any) -> Any: ...


class ActorsDiedError(Exception):
    """The processes that were given one item died, or there is none left to give it to."""


class Actors:
    """Copies of one object in processes of the cluster, one GPU each where there are any.

    `call` may be used from many threads. An actor that dies is replaced; where the cluster has nothing left
    to run a new one on, the others do its work.
    """

    def __init__(self, kind: type[Loaded], spec: str, count: int | None) -> None:
        self._kind, self._spec = kind, spec
        self._ray = start_ray(count)
        resources = self._ray.cluster_resources()
        gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        self.count = count or gpus or 1
        self._gpus = 1 if gpus else 0
        if self.count > (gpus or cores):  # they would wait for ever
            raise ConfigError(
                "the cluster is too small",
                expected=f"at most {gpus} workers, one per GPU" if gpus else f"at most {cores} workers",
                found=self.count,
            )
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._open: set[Any] = set()
        self._closed = False
        self._starting = Lock()

    def load(self) -> None:
        """Start the actors, all at once, and let each load its weights. The first error is raised."""
        actors = [self._start() for _ in range(self.count)]
        for actor, waiting in [(actor, actor.load.remote()) for actor in actors]:
            try:
                error = self._ray.get(waiting)
            except self._ray.exceptions.RayError:
                error = MieError(
                    "an actor died while it loaded the model",
                    found="most often it was out of memory",
                    fix="ask for fewer --workers",
                )
            if error is not None:
                raise error
            self._idle.put(actor)

    def call(self, item: Any) -> Any:
        """What the next idle actor makes of the item. Waits for one; `ActorsDiedError` if two die."""
        actor = self._next()
        try:
            for _ in range(_ACTOR_LIVES):
                if actor is None:
                    break
                try:
                    return self._ray.get(actor.work.remote(item))
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except self._ray.exceptions.RayError:  # the actor, its machine or its memory is gone
                    self._open.discard(actor)
                    actor = self._replacement() or (self._next() if self._open else None)
        finally:
            self._idle.put(actor)
        raise ActorsDiedError(f"died, {_ACTOR_LIVES} times in a row; most often it was out of memory")

    def close(self) -> None:
        self._closed = True
        while self._open:
            self._ray.kill(self._open.pop())

    def _next(self) -> Any:
        """An idle actor. None in the queue stands for one that died and could not be replaced."""
        while True:
            actor = self._idle.get() or self._replacement()
            if actor is not None or not self._open:
                return actor
            # The cluster has become smaller, and so do we: one actor less takes requests.

    def _replacement(self) -> Any:
        """A new actor for one that died; None where the cluster has nothing left to run it on."""
        kind = "GPU" if self._gpus else "CPU"
        deadline = time.monotonic() + _PATIENCE
        with self._starting:
            while time.monotonic() < deadline and not self._closed:
                if self._ray.available_resources().get(kind, 0) >= 1:
                    actor = self._start()
                    try:  # a machine that has just died is still counted for a while
                        self._ray.get(actor.began.remote(), timeout=_PATIENCE)
                        return actor
                    except self._ray.exceptions.RayError:
                        self._open.discard(actor)
                        self._ray.kill(actor)
                time.sleep(0.2)
        return None

    def _start(self) -> Any:
        remote = self._ray.remote(num_gpus=self._gpus, num_cpus=1)(_Actor).remote
        actor = remote(self._kind, self._spec, str(Path.cwd()))
        self._open.add(actor)
        return actor


class _Actor:
    """In a process of the cluster, with one GPU of its own where there are any."""

    def __init__(self, kind: type[Loaded], spec: str, folder: str) -> None:
        with suppress(OSError):  # paths in the spec may be relative to it
            os.chdir(folder)
        self._loaded = kind(spec)

    def began(self) -> bool:
        return True

    def load(self) -> MieError | None:
        """Return the error rather than raise it: Ray would wrap it in one of its own."""
        try:
            self._loaded.load()
        except MieError as error:
            return error
        return None

    def work(self, item: Any) -> Any:
        return self._loaded.work(item)
