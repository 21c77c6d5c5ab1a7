"""OmniGen2 and models fine-tuned from it: `omnigen2:FOLDER`."""

from __future__ import annotations

from mie.editors.omnigen2.editor import OmniGen2Editor

EDITOR = OmniGen2Editor
