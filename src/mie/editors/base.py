"""What an editor is: an image and an instruction go in, an edited image comes out.

An editor is one class that inherits `Editor` and writes `edit`. Its constructor takes the argument and the
options of the spec string (`registry.py`) and stays cheap: weights are loaded at the first edit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from mie.core.registry import Registry
from mie.core.spec import Spec, construct, parse_spec
from mie.errors import MieError
from mie.records import Pixels


class EditError(MieError):
    """One edit failed. It is recorded with its reason, and the run goes on."""


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier turn of the same conversation: what was asked, and the image that came of it."""

    instruction: str
    image: Pixels


@dataclass(frozen=True, slots=True)
class SampleRef:
    """Which sample of a dataset is being edited. A model has no business here; `folder` and `oracle` do."""

    id: str
    stem: str  # the id as a file name: `outputs/<stem>_<attempt>.png`
    params: Mapping[str, Any] = field(default_factory=dict)
    colour: str | None = None
    target_image: Pixels | None = None  # only for editors that say `needs_target`


@dataclass(frozen=True, slots=True)
class Request:
    """One edit to make. `image` is `(H, W, 3) uint8` RGB and belongs to the editor."""

    image: Pixels
    instruction: str
    seed: int = 0
    attempt: int = 0
    history: Sequence[Turn] = ()
    sample: SampleRef | None = None
    origin: str | None = None  # SHA-256 of the output of an earlier turn that `image` is


@dataclass(frozen=True, slots=True)
class Edited:
    """What came out: `(H, W, 3) uint8` RGB, and what the editor wants remembered (JSON-able)."""

    image: Pixels
    meta: Mapping[str, Any] = field(default_factory=dict)


class Editor(ABC):
    """Anything that edits an image."""

    batch_size: int = 1
    deterministic: bool = False  # the same image, instruction and seed give the same pixels
    native_sizes: tuple[tuple[int, int], ...] = ()  # (height, width) it was made for; empty: any
    thread_safe: bool = False  # several threads may call it at once
    workers: int | None = 1  # how many do, unless the user says; None: one per core
    needs_target: ClassVar[bool] = False  # hand it the sample's target image
    # Options that change how long an edit may take, never what comes out: a run goes on with other values.
    tuning: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        """The edited image. Whatever it raises is recorded as the reason why this edit failed."""

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        """One outcome per request, in order; a request that fails has an error in its place."""
        return [self._outcome(request) for request in requests]

    def edit_request(self, request: Request) -> Edited:
        """One request, for editors that look at the sample or the attempt."""
        return self.edit(request.image, request.instruction, seed=request.seed, history=request.history)

    def _outcome(self, request: Request) -> Edited | EditError:
        try:
            return self.edit_request(request)
        except Exception as error:  # an editor is anybody's code
            return as_edit_error(error)

    def about(self) -> dict[str, Any]:
        """What a run should remember of this editor besides its spec: model versions, resolved paths."""
        return {}

    def close(self) -> None:  # noqa: B027 (most editors hold nothing)
        """Give back processes and connections, also those that another thread is waiting for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def as_edit_error(error: Exception) -> EditError:
    """Any exception as the reason of a failed edit."""
    if isinstance(error, EditError):
        return error
    if isinstance(error, MieError):
        return EditError(error.what, where=error.where, expected=error.expected, found=error.found)
    return EditError(f"{type(error).__name__}: {error}")


def _wrong_editor(thing: object) -> str | None:
    fits = isinstance(thing, type) and issubclass(thing, Editor)
    return None if fits else "a class that inherits mie.editors.Editor"


EDITORS: Final[Registry[type[Editor]]] = Registry(
    "editor",
    {
        "identity": "mie.editors.baselines:Identity",
        "oracle": "mie.editors.baselines:Oracle",
        "otsu": "mie.editors.baselines:Otsu",
        "kmeans": "mie.editors.baselines:Kmeans",
        "nlm": "mie.editors.baselines:NonLocalMeans",
        "bilateral": "mie.editors.baselines:Bilateral",
        "telea": "mie.editors.baselines:Telea",
        "compact": "mie.editors.compact.editor:Compact",
        "folder": "mie.editors.folder:Folder",
        "command": "mie.editors.command:Command",
        "http": "mie.editors.http:Http",
    },
    group="mie.editors",
    check=_wrong_editor,
)


def open_editor(spec: str | Spec) -> Editor:
    """The editor of a spec string such as `folder:outputs/model-a`; see `spec.py` for the grammar."""
    spec = parse_spec(spec) if isinstance(spec, str) else spec
    return construct(EDITORS[spec.name], spec)
