"""`mie run --engine ray`: one actor per GPU edits, this process alone reads the dataset and writes the run.

An actor opens the editor's spec by itself, so that nothing but requests and outputs travels. When an actor
dies, its requests are given to a new one, or to another where its machine is gone; a request that ends two
actors is a failed edit.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

from mie.core.registry import unknown_name
from mie.core.spec import Spec
from mie.datasets.engine import ENGINES, start_ray
from mie.editors.base import Edited, EditError, Editor, Origin, Request, Turn, edit_all, open_editor
from mie.errors import ConfigError, MieError
from mie.records import Pixels

_LIVES: Final = 2  # actors that one batch may end
_PATIENCE: Final = 30.0  # seconds until what a dead actor held is free again, unless its machine is gone


def on_engine(engine: str, editor: Editor, origin: Spec | Origin, workers: int | None) -> Editor:
    """The editor on the engine of this name, which is not the local one."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if not isinstance(origin, Spec):
        raise ConfigError(
            "other processes cannot be given this editor",
            expected="a spec such as 'compact' with engine='ray'",
            found=origin.label,
        )
    if type(editor).keep_in is not Editor.keep_in:
        raise ConfigError(
            f"{origin.name} runs on this machine alone: it keeps account of what was paid",
            expected="engine local",
            found=engine,
            fix="use --workers for more requests at the same time",
        )
    return OnActors(origin, editor, workers)


class OnActors(Editor):
    """An editor whose edits are made by actors of a Ray cluster, each with a copy of it."""

    thread_safe = True

    def __init__(self, spec: Spec, editor: Editor, actors: int | None) -> None:
        self._spec, self._editor = spec, editor
        self.batch_size = editor.batch_size
        self.deterministic = editor.deterministic
        self.native_sizes = editor.native_sizes
        self.destination = editor.destination
        for name in ("generative", "model", "needs_target", "takes_references", "tuning"):
            setattr(self, name, getattr(editor, name))
        self._ray = start_ray(actors)
        resources = self._ray.cluster_resources()
        gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
        self.workers = actors or gpus or 1
        self._gpus = 1 if gpus else 0
        if self.workers > (gpus or cores):  # they would wait for ever
            raise ConfigError(
                "the cluster is too small",
                expected=f"at most {gpus} workers, one per GPU" if gpus else f"at most {cores} workers",
                found=self.workers,
            )
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._open: set[Any] = set()
        self._closed = False
        self._starting = Lock()

    def about(self) -> dict[str, Any]:
        return self._editor.about()

    def load(self) -> None:
        """Start the actors, all at once, and let each load its weights. The first error ends the run."""
        actors = [self._start() for _ in range(self.workers or 1)]
        for actor, waiting in [(actor, actor.load.remote()) for actor in actors]:
            try:
                error = self._ray.get(waiting)
            except self._ray.exceptions.RayError:
                error = MieError(
                    "an actor died while it loaded the editor",
                    found="most often it was out of memory",
                    fix="ask for fewer --workers",
                )
            if error is not None:
                raise error
            self._idle.put(actor)

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        (outcome,) = self.edit_batch([Request(image, instruction, seed, history=history)])
        if isinstance(outcome, EditError):
            raise outcome
        return outcome

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        """What the next idle actor makes of them. Waits for one."""
        actor = self._next()
        try:
            for _ in range(_LIVES):
                if actor is None:
                    break
                try:
                    return list(self._ray.get(actor.edit.remote(list(requests))))
                except self._ray.exceptions.RayTaskError:
                    raise
                except self._ray.exceptions.RayError:  # the actor, its machine or its memory is gone
                    self._open.discard(actor)
                    actor = self._replacement() or (self._next() if self._open else None)
        finally:
            self._idle.put(actor)
        # A batch is tried again one by one, so that only the request that is to blame fails.
        raise EditError(
            f"the process that made this edit died, {_LIVES} times in a row; most often it was out of memory"
        )

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
                    return self._start()
                time.sleep(0.2)
        return None

    def close(self) -> None:
        self._closed = True
        while self._open:
            self._ray.kill(self._open.pop())

    def _start(self) -> Any:
        actor = self._ray.remote(num_gpus=self._gpus, num_cpus=1)(_Actor).remote(str(self._spec))
        self._open.add(actor)
        return actor


class _Actor:
    """In a process of the cluster, with one GPU of its own where there are any."""

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._editor: Editor | None = None

    def load(self) -> MieError | None:
        """Return the error rather than raise it: Ray would wrap it in one of its own."""
        try:
            self._opened().load()
        except MieError as error:
            return error
        return None

    def edit(self, requests: list[Request]) -> list[Edited | EditError]:
        return edit_all(self._opened(), requests)

    def _opened(self) -> Editor:
        if self._editor is None:
            self._editor = open_editor(self._spec)
        return self._editor
