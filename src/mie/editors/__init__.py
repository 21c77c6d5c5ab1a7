"""Anything that edits an image: sanity baselines, a folder of outputs, a command, a server.

A new editor is one class that inherits `Editor`, named in the entry-point group `mie.editors`.
"""

from __future__ import annotations

from mie.core.spec import Spec, mask_secrets, parse_spec
from mie.editors.base import (
    EDITORS,
    Edited,
    EditError,
    Editor,
    Request,
    SampleRef,
    Turn,
    open_editor,
)

__all__ = [
    "EDITORS",
    "EditError",
    "Edited",
    "Editor",
    "Request",
    "SampleRef",
    "Spec",
    "Turn",
    "mask_secrets",
    "open_editor",
    "parse_spec",
]
