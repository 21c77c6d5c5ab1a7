"""Paths that come out of a file: never trusted to stay where they should."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mie.errors import MieError


def check_relative(text: object) -> str:
    """The text, if it is a relative path without a way out (on any system); `MieError` if not."""
    if not isinstance(text, str) or not text.strip("./"):
        raise MieError("not a file's path", expected="text such as input/0.png", found=repr(text)[:80])
    leaves = text.startswith("/") or ".." in text.split("/") or re.match(r"[A-Za-z]:", text)
    if leaves or "\\" in text or "\0" in text:
        raise MieError(
            "path leaves its folder", expected="a relative path with / and without ..", found=repr(text)[:80]
        )
    return text


def inside(root: Path, base: Path, text: object) -> Path:
    """The existing file `base / text`, refused when it, or a link on the way, lies outside `root`."""
    path = base / check_relative(text)
    top, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([top, real]) != top:
        raise MieError(
            "path leaves its folder",
            where=str(text)[:200],
            expected="a file inside the folder",
            found="a link out of it",
            fix="copy the file into the folder instead of linking to it",
        )
    if not os.path.isfile(path):  # noqa: PTH113 (`Path.is_file` raises on names that are too long)
        raise MieError("file is missing", expected=str(text)[:200])
    return path
