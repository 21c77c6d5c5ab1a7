"""What edits an image: baselines, networks, a folder of outputs, a command, a server, an API, a function.

A new editor is one class that inherits `Editor`, named in the entry-point group `mie.editors`.
"""

from __future__ import annotations

from mie.core.spec import Spec, mask_secrets, parse_spec
from mie.editors.base import (
    EDITORS,
    Edited,
    EditError,
    Editor,
    RefusedError,
    Request,
    SampleRef,
    StopRunError,
    Turn,
    editor_summaries,
    open_editor,
)

__all__ = [
    "EDITORS",
    "EditError",
    "Edited",
    "Editor",
    "RefusedError",
    "Request",
    "SampleRef",
    "Spec",
    "StopRunError",
    "Turn",
    "editor_summaries",
    "mask_secrets",
    "open_editor",
    "parse_spec",
]
