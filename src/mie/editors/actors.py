"""`mie run --engine ray`: one actor per GPU edits, this process alone reads the dataset and writes the run.

An actor opens the editor's spec by itself, so that nothing but requests and outputs travels. When an actor
dies, its requests are given to a new one, or to another where its machine is gone; a request that ends two
actors is a failed edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mie.core.registry import unknown_name
from mie.core.spec import Spec
from mie.datasets.cluster import Actors, ActorsDiedError
from mie.datasets.engine import ENGINES
from mie.editors.base import Edited, EditError, Editor, Origin, Request, Turn, edit_all, open_editor
from mie.errors import ConfigError
from mie.records import Pixels


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
        self._editor = editor
        self.batch_size = editor.batch_size
        self.deterministic = editor.deterministic
        self.native_sizes = editor.native_sizes
        self.destination = editor.destination
        for name in ("generative", "model", "needs_target", "takes_references", "tuning"):
            setattr(self, name, getattr(editor, name))
        self._actors = Actors(_Copy, str(spec), actors)
        self.workers = self._actors.count

    def about(self) -> dict[str, Any]:
        return self._editor.about()

    def load(self) -> None:
        self._actors.load()

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        (outcome,) = self.edit_batch([Request(image, instruction, seed, history=history)])
        if isinstance(outcome, EditError):
            raise outcome
        return outcome

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        """What the next idle actor makes of them. Waits for one."""
        try:
            return list(self._actors.call(list(requests)))
        except ActorsDiedError as error:
            # A batch is tried again one by one, so that only the request that is to blame fails.
            raise EditError(f"the process that made this edit {error}") from None

    def close(self) -> None:
        self._actors.close()


class _Copy:
    """An actor's own copy of the editor."""

    def __init__(self, spec: str) -> None:
        self._spec = spec
        self._editor: Editor | None = None

    def load(self) -> None:
        self._opened().load()

    def work(self, item: list[Request]) -> list[Edited | EditError]:
        return edit_all(self._opened(), item)

    def _opened(self) -> Editor:
        if self._editor is None:
            self._editor = open_editor(self._spec)
        return self._editor
