"""Our prompts, one file each: `<id>.v<version>.txt`, the system text, a line `--- user`, the user text.

A text that is changed gets a new version: scores are only comparable under the same words.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Final

from mie.judges.contracts import Prompt

_USER: Final = "\n--- user\n"


@lru_cache
def load_prompt(id: str, version: int) -> Prompt:
    """The prompt of that name and version."""
    text = (resources.files(__name__) / f"{id}.v{version}.txt").read_text(encoding="utf-8")
    system, _, user = text.partition(_USER)
    return Prompt(id, version, system.strip(), user.strip())
