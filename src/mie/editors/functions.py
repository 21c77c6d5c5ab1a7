"""Python functions as editors: `mie.run(ds, my_function, "out/mine")`.

A run must be able to tell whether it is resumed with the same editor. A spec string says so by itself. Of a
function we record its name and the SHA-256 of its source text with the plain values that it closes over;
of an `Editor` object its class, the SHA-256 of the class's source and what `about()` says. What a function
calls, and weights that it holds, are not part of the digest.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from mie.core.spec import Spec, parse_spec
from mie.editors.base import Edited, EditError, Editor, Turn, open_editor
from mie.errors import ConfigError
from mie.records import Pixels

# (image, instruction) -> image. A parameter named `seed` or `history` is passed too.
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
        self._extra = _parameters(function) & {"seed", "history"}

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        given = {"seed": seed, "history": history}
        result = self._function(image, instruction, **{name: given[name] for name in self._extra})
        return as_edited(result)


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
