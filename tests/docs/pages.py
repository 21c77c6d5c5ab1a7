"""The pages, their fenced blocks, and the environment that examples run in."""

from __future__ import annotations

import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command

import mie
from mie.cli import app
from mie.core.files import cache_folder

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    info: str  # what stands behind the opening fence
    text: str
    output: str  # of the `text` block right behind it


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    matches = list(_FENCE.finditer(text))
    return [
        Block(one[1].strip(), one[2], after[2] if after and _is_output(text, one, after) else "")
        for one, after in zip(matches, [*matches[1:], None], strict=False)
    ]


def _is_output(text: str, block: re.Match[str], after: re.Match[str]) -> bool:
    return after[1] == "text" and not text[block.end() : after.start()].strip()


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.info in ("bash", "python")]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def environment(folder: Path, *first: Path) -> dict[str, str]:
    """Of a process that runs an example in `folder`: `mie` is the one under test, or that of `first`."""
    return {
        **os.environ,
        "PATH": os.pathsep.join((*map(str, first), str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": str(Path(mie.__file__).parents[1]),
        "MIE_CACHE": str(cache_folder().resolve()),
        "HF_HOME": str(folder / "huggingface"),
        "COLUMNS": "120",
    }


@lru_cache
def commands() -> dict[str, Any]:
    """Every command with its full name: `mie sources list`."""
    group: Any = get_command(app)
    return {
        f"mie {verb} {part}".strip(): command
        for verb, parent in group.commands.items()
        for part, command in getattr(parent, "commands", {"": parent}).items()
    }
