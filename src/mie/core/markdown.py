"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """Text of others, safe inside a table."""
    return " ".join(text.split()).replace("\\", r"\\").replace("|", r"\|").replace("<", "&lt;")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with one line per row."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
