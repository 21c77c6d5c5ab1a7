"""What edits an image: baselines, the compact editor, pipelines, a folder, a command, a server, a function.

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
    editor_summaries,
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
    "editor_summaries",
    "mask_secrets",
    "open_editor",
    "parse_spec",
]
