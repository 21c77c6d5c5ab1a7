"""Pipelines of the library diffusers as editors: `diffusers:FOLDER,preset=paper`."""

from __future__ import annotations

from mie.editors.diffusers.editor import DiffusersEditor

EDITOR = DiffusersEditor
