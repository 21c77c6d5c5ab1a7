"""Editors by name: ours, and those that installed packages offer in the entry-point group `mie.editors`."""

from __future__ import annotations

import importlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from mie.editors.base import Editor
from mie.editors.spec import Spec, parse_spec
from mie.errors import ConfigError
from mie.vocabulary import nearest_name

GROUP: Final = "mie.editors"
_OURS: Final = {
    "identity": "mie.editors.identity:Identity",
    "oracle": "mie.editors.oracle:Oracle",
    "otsu": "mie.editors.otsu:Otsu",
    "kmeans": "mie.editors.kmeans:Kmeans",
    "nlm": "mie.editors.nlm:NonLocalMeans",
    "bilateral": "mie.editors.bilateral:Bilateral",
    "telea": "mie.editors.telea:Telea",
    "compact": "mie.editors.compact.editor:Compact",
    "folder": "mie.editors.folder:Folder",
    "command": "mie.editors.command:Command",
    "http": "mie.editors.http:Http",
}


def editor_names() -> list[str]:
    """Every name that a spec may begin with."""
    return sorted({*_OURS, *_installed()})


def open_editor(spec: str | Spec) -> Editor:
    """The editor of a spec string such as `folder:outputs/model-a`; see `spec.py` for the grammar.

    The class's constructor says what may be given: its positional parameter is the argument, its
    keyword-only ones (`str`, `int`, `float` or `bool`) are the options.
    """
    spec = parse_spec(spec) if isinstance(spec, str) else spec
    kind = editor_class(spec.name)
    argument, options = _parameters(kind)
    if spec.argument is not None and argument is None:
        raise ConfigError(f"editor {spec.name!r} takes no argument", found=repr(spec.masked().argument))
    if spec.argument is None and argument is not None and argument.default is inspect.Parameter.empty:
        raise ConfigError(
            f"editor {spec.name!r} needs an argument", expected=f"{spec.name}:{argument.name.upper()}"
        )
    values = {key: _value(spec, key, text, options) for key, text in spec.options.items()}
    make: Callable[..., Editor] = kind
    return make(**values) if spec.argument is None else make(spec.argument, **values)


def editor_class(name: str) -> type[Editor]:
    """The class behind a name, imported now."""
    if name in _OURS:
        module, _, attribute = _OURS[name].partition(":")
        return typing.cast("type[Editor]", getattr(importlib.import_module(module), attribute))
    installed = _installed()
    if name not in installed:
        known = sorted({*_OURS, *installed})
        near = nearest_name(name, known)
        raise ConfigError(
            f"no editor named {name!r}",
            expected=", ".join(known),
            fix=f"did you mean {near!r}?" if near else None,
        )
    point = installed[name]
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"editor {name!r} cannot be imported", where=point.value, found=error) from error
    if not (isinstance(found, type) and issubclass(found, Editor)):
        raise ConfigError(
            f"{name!r} is no editor", where=point.value, expected="a class that inherits mie.editors.Editor"
        )
    return found


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _OURS}


def _parameters(kind: type[Editor]) -> tuple[inspect.Parameter | None, dict[str, Any]]:
    """The parameter that takes the argument, and each option's type."""
    found = inspect.signature(kind).parameters
    if not found:
        return None, {}
    hints = typing.get_type_hints(kind.__init__)
    places = [p for p in found.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (
        places[0] if places else None,
        {name: hints.get(name, str) for name, p in found.items() if p.kind is p.KEYWORD_ONLY},
    )


def _value(spec: Spec, key: str, text: str, options: Mapping[str, Any]) -> Any:
    if key not in options:
        near = nearest_name(key, options)
        raise ConfigError(
            f"editor {spec.name!r} has no option {key!r}",
            expected=", ".join(options) or "no options",
            fix=f"did you mean {near!r}?"
            if near
            else "put the whole argument in quotes if this is a part of it",
        )
    kind = options[key]
    if isinstance(kind, types.UnionType):  # `float | None`
        kind = next(part for part in kind.__args__ if part is not types.NoneType)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        value = kind(text)
    except (ValueError, KeyError):
        value = None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(
            f"option {key!r} of editor {spec.name!r} is not usable",
            expected="true or false" if kind is bool else f"a value of type {kind.__name__}",
            found=repr(text),
        )
    return value
