"""Anything that edits an image: sanity baselines, a folder of outputs, a command, a server.

A new editor is one class that inherits `Editor`, named in the entry-point group `mie.editors`.
"""

from __future__ import annotations

from mie.core.spec import Spec, mask_secrets, parse_spec
from mie.editors.base import (
    Edited,
    EditError,
    Editor,
    Request,
    SampleRef,
    Turn,
    editor_class,
    editor_names,
    open_editor,
)

__all__ = [
    "EditError",
    "Edited",
    "Editor",
    "Request",
    "SampleRef",
    "Spec",
    "Turn",
    "editor_class",
    "editor_names",
    "mask_secrets",
    "open_editor",
    "parse_spec",
]
