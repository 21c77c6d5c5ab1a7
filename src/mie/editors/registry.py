"""Editors by name: ours, and those that installed packages offer in the entry-point group `mie.editors`."""

from __future__ import annotations

import importlib
import typing
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from mie.editors.base import Editor
from mie.errors import ConfigError
from mie.spec import Spec, construct, parse_spec
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
    """The editor of a spec string such as `folder:outputs/model-a`; see `spec.py` for the grammar."""
    spec = parse_spec(spec) if isinstance(spec, str) else spec
    return construct(editor_class(spec.name), spec)


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
