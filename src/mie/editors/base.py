"""What an editor is: an image and an instruction go in, an edited image comes out.

An editor is one class that inherits `Editor` and implements `edit`. Its constructor takes the argument and
the options of the spec string (`mie.core.spec`) and stays cheap: weights are loaded at the first edit. The
first line of its docstring is what `mie run --help` shows.

A Python function is an editor too: `mie.run(ds, my_function, "out/mine")`. A run must be able to tell whether
it is resumed with the same editor. A spec string says so by itself. Of a function we record its name and the
SHA-256 of its source text with the plain values that it closes over; of an `Editor` object its class, the
SHA-256 of the class's source and what `about()` says. What a function calls, and weights that it holds, are
not part of the digest.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from PIL import Image

from mie.core.registry import Registry, found_in
from mie.core.spec import Spec, construct, parse_spec
from mie.errors import ConfigError, MieError
from mie.records import Pixels


class EditError(MieError):
    """One edit failed. The run records the reason and continues."""


class RefusedError(EditError):
    """The model declined this edit, by its provider's content policy. It is recorded apart from failures."""


class StopRunError(MieError):
    """No further edit can succeed: a wrong key, money spent, a program that never starts.

    The run records what is finished and ends with this error; the same command resumes it.
    """


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier turn of the same conversation: its instruction and the image that the editor returned."""

    instruction: str
    image: Pixels


@dataclass(frozen=True, slots=True)
class SampleRef:
    """Which sample of a dataset is being edited. Only `folder` and `oracle` look at it; a model must not."""

    id: str
    stem: str  # the id as a file name: `outputs/<stem>_<attempt>.png`
    params: Mapping[str, Any] = field(default_factory=dict)
    colour: str | None = None
    target_image: Pixels | None = None  # only for editors with `needs_target`


@dataclass(frozen=True, slots=True)
class Request:
    """One edit to make. `image` is `(H, W, 3) uint8` RGB; the editor may change it in place."""

    image: Pixels
    instruction: str
    seed: int = 0
    attempt: int = 0
    history: Sequence[Turn] = ()
    sample: SampleRef | None = None
    origin: str | None = None  # where `image` is the output of an earlier turn: that file's SHA-256
    references: Sequence[Pixels] = ()  # further images that the instruction may speak of
    original: Pixels | None = None  # where the conversation began, for editors with `needs_original`


@dataclass(frozen=True, slots=True)
class Edited:
    """An edited image, `(H, W, 3) uint8` RGB, and what the editor says about it (JSON values).

    NumPy and Matplotlib take it as an array; a notebook shows the image.
    """

    image: Pixels
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.image, dtype, copy=copy)

    def _repr_png_(self) -> bytes:
        from mie.images.png import encode_png

        return encode_png(self.image)


class Editor(ABC):
    """Anything that edits an image."""

    batch_size: int = 1
    deterministic: bool = False  # the same image, instruction and seed give the same pixels
    native_sizes: tuple[tuple[int, int], ...] = ()  # (height, width) it was made for; empty: any
    thread_safe: bool = False  # several threads may call it at the same time
    workers: int | None = 1  # the default number of threads that do; None: one per core
    destination: str | None = None  # the host that images are sent to; None: they stay on this machine
    generative: bool = True  # a model makes its pixels, so its outputs are marked as synthetic
    model: str | None = None  # which one, for that mark: no path, no address
    needs_target: ClassVar[bool] = False  # pass it the sample's target image
    needs_original: ClassVar[bool] = False  # in later turns pass it the conversation's first image
    takes_references: bool = False  # it is shown the request's further images
    on_step: Callable[[int, int], None] | None = None  # told (done, total) where an edit has steps
    spent: float | None = None  # US dollars that the edits of this run have cost; None: nothing, or unknown
    # Options that change how long an edit may take but never its result: a run may be resumed with others.
    tuning: ClassVar[frozenset[str]] = frozenset()

    def load(self) -> None:  # noqa: B027 (most editors have nothing to load)
        """Load weights. A run calls it before its first edit: what cannot be loaded ends the run at once."""

    @abstractmethod
    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        """Return the edited image.

        Any exception is recorded as the reason why this edit failed, `RefusedError` as a refusal; only
        `StopRunError` ends the run.
        """

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        """Return one outcome per request, in order; a request that fails has an error in its place."""
        return [self._outcome(request) for request in requests]

    def edit_request(self, request: Request) -> Edited:
        """Make one edit. Override this instead of `edit` to see the sample or the attempt."""
        return self.edit(request.image, request.instruction, seed=request.seed, history=request.history)

    def _outcome(self, request: Request) -> Edited | EditError:
        try:
            return self.edit_request(request)
        except StopRunError:
            raise
        except Exception as error:  # editors are third-party code
            return as_edit_error(error)

    def sends(self, request: Request) -> tuple[int, int]:
        """How many images and bytes this edit would send to `destination`. Nothing is sent."""
        return 0, 0

    def cost(self, edits: int) -> float | None:
        """About how many US dollars so many edits cost; None where that is unknown."""
        return 0.0 if self.destination is None else None

    def keep_in(self, folder: Path) -> None:  # noqa: B027 (most editors keep nothing)
        """Called before the first edit of a run, with its folder. What is kept there survives a kill.

        Nothing may be written before the first edit.
        """

    def recorded(self, sample_id: str, attempt: int) -> None:  # noqa: B027
        """Called once an edit is on record in the run's folder: it will not be asked for again."""

    def about(self) -> dict[str, Any]:
        """What `run.json` should record besides the spec: model versions, resolved paths."""
        return {}

    def marked_as(self, name: str) -> str:
        """What the marks on its outputs call it: `name`, which it was opened by, and its model."""
        return name if self.model is None else f"{name}:{self.model}"

    def close(self) -> None:  # noqa: B027 (most editors hold nothing)
        """Release processes and connections, including those that another thread is waiting for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @classmethod
    def summary(cls) -> str:
        """The first line of the class's docstring, "" without one."""
        return (inspect.cleandoc(cls.__doc__ or "").splitlines() or [""])[0]


def as_edit_error(error: Exception) -> EditError:
    """Any exception as the reason of a failed edit."""
    if isinstance(error, EditError):
        return error
    if isinstance(error, MieError):
        return EditError(error.what, where=error.where, expected=error.expected, found=error.found)
    return EditError(f"{type(error).__name__}: {error}")


def edit_all(editor: Editor, batch: Sequence[Request]) -> list[Edited | EditError]:
    """Return one outcome per request. A batch that fails as a whole is tried again one by one."""
    try:
        outcomes = list(editor.edit_batch(batch))
        if len(outcomes) != len(batch) or not all(isinstance(o, Edited | EditError) for o in outcomes):
            raise EditError(
                "the editor did not return one outcome per request", expected=len(batch), found=len(outcomes)
            )
    except StopRunError:
        raise
    except Exception as error:  # editors are third-party code
        if len(batch) == 1:
            return [as_edit_error(error)]
        return [outcome for request in batch for outcome in edit_all(editor, [request])]
    return outcomes


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
        "resolve": "mie.editors.resolve:Resolve",
        "command": "mie.editors.command:Command",
        "http": "mie.editors.http:Http",
        "openai": "mie.editors.apis:OpenAI",
        "gemini": "mie.editors.apis:Gemini",
        "ark": "mie.editors.apis:Ark",
        "fal": "mie.editors.apis:Fal",
        **found_in("mie.editors", "EDITOR"),
    },
    group="mie.editors",
    check=_wrong_editor,
)


def open_editor(spec: str | Spec) -> Editor:
    """Open the editor of a spec string such as `folder:outputs/model-a` (see `mie.core.spec`)."""
    spec = parse_spec(spec) if isinstance(spec, str) else spec
    return construct(EDITORS[spec.name], spec)


def editor_summaries() -> dict[str, str]:
    """How to name each editor (`folder:FOLDER`) and one line about it, those of installed packages too."""
    lines = {}
    for name in EDITORS.names():
        try:
            kind = EDITORS[name]
        except ConfigError as error:  # an extra that is not installed, or somebody else's mistake
            lines[name] = f"not available here: {error.what}"
        else:
            lines[f"{name}{_argument(kind)}"] = kind.summary()
    return lines


def _argument(kind: type[Editor]) -> str:
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            word = f":{parameter.name.upper()}"
            return word if parameter.default is parameter.empty else f"[{word}]"
    return ""


# (image, instruction) -> image. A parameter named `seed`, `history` or `references` is passed too.
EditFunction: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an editor that has no spec string comes from."""

    name: str  # "my_function"
    place: str  # "my_module:my_function", or "callable" where Python cannot tell
    sha256: str | None  # of its source and plain values; None where there is no source

    @property
    def label(self) -> str:
        """What stands in place of a spec. No spec begins with "<", so the two cannot be confused."""
        return f"<{self.place}>"


class FunctionEditor(Editor):
    """A Python function `(image, instruction) -> image`."""

    def __init__(self, function: EditFunction) -> None:
        if not callable(function) or isinstance(function, type):
            a_class = isinstance(function, type)
            raise ConfigError(
                "not an editor",
                expected="a spec such as 'otsu', an Editor, or a function (image, instruction) -> image",
                found=f"the class {function.__name__}" if a_class else repr(function)[:120],
                fix="pass an instance of the class" if a_class else None,
            )
        self._function = function
        self._extra = _parameters(function) & {"seed", "history", "references"}
        self.takes_references = "references" in self._extra

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self.edit_request(Request(image, instruction, seed, history=history))

    def edit_request(self, request: Request) -> Edited:
        given = {"seed": request.seed, "history": request.history, "references": request.references}
        extra = {name: given[name] for name in self._extra}
        return as_edited(self._function(request.image, request.instruction, **extra))


@contextmanager
def opened(editor: str | Editor | EditFunction) -> Iterator[tuple[Editor, Spec | Origin]]:
    """The editor and where it comes from. One that we open is closed at the end; the user's own is not."""
    if isinstance(editor, str):
        spec = parse_spec(editor)
        with open_editor(spec) as ours:
            yield ours, spec
        return
    own = editor if isinstance(editor, Editor) else FunctionEditor(editor)
    yield own, origin_of(own)


def as_edited(result: Any) -> Edited:
    """What a function returned: an array, a PIL image or an `Edited`."""
    if isinstance(result, Edited):
        return result
    if isinstance(result, Image.Image):
        return Edited(np.asarray(result.convert("RGB")))
    if isinstance(result, np.ndarray) and result.dtype != np.uint8:
        raise EditError(
            "the function returned an array of another type",
            expected="uint8 values from 0 to 255",
            found=f"{result.shape} {result.dtype}",
            fix="scale the values to 0..255, round and convert with .astype('uint8')",
        )
    if result is None:
        raise EditError("the function returned nothing", expected="an image", fix="add a return statement")
    return Edited(result)


def origin_of(editor: Editor | EditFunction) -> Origin:
    """Name, place and digest of an editor object or a function."""
    if isinstance(editor, Editor) and not isinstance(editor, FunctionEditor):
        kind = type(editor)
        return Origin(kind.__name__, _place(kind), _digest(kind, editor.about()))
    function = editor._function if isinstance(editor, FunctionEditor) else editor
    bound: list[Any] = []
    while isinstance(function, functools.partial):
        bound += [function.args, function.keywords]
        function = function.func
    if inspect.ismethod(function):
        bound.append(_state(function.__self__))
        function = function.__func__
    if not inspect.isfunction(function) and not inspect.isbuiltin(function):  # an object with `__call__`
        bound.append(_state(function))
        function = type(function)
    if inspect.isfunction(function):
        bound += [function.__defaults__, function.__kwdefaults__, _closure(function)]
    return Origin(getattr(function, "__name__", "callable"), _place(function), _digest(function, bound))


def _place(thing: Any) -> str:
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return f"{module}:{name}" if module and name else "callable"


def _digest(thing: Any, values: Any) -> str | None:
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):  # built in, or typed into a shell that keeps no source
        return None
    return hashlib.sha256(json.dumps([source, _plain(values)], sort_keys=True).encode()).hexdigest()


def _closure(function: Any) -> dict[str, Any]:
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            values[name] = None
    return values


def _state(thing: Any) -> Any:
    """The public attributes of an object: what its user set, rather than what it keeps for itself."""
    return {name: value for name, value in getattr(thing, "__dict__", {}).items() if name[:1] != "_"}


def _plain(value: Any) -> Any:
    """Numbers, texts and collections of them; anything else by its type, because its content may be large."""
    if value is None or isinstance(value, str | int | float | Path):
        return repr(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _place(type(value))


def _parameters(function: EditFunction) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return set()
