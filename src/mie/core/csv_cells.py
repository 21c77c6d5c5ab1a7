"""Cells of CSV files that spreadsheet programs take for text, whatever data sets and people put into them.

A cell that begins with `=`, `+`, `-` or `@` is a formula to a spreadsheet: it can start programs and send the
sheet away. Such a cell gets a leading apostrophe, which `plain_cell` takes off again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

_FORMULA: Final = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")


def safe_cell(value: Any) -> Any:
    """The value, or text that no spreadsheet runs.

    >>> safe_cell("=1+1"), safe_cell("-0.5"), safe_cell(-0.5), safe_cell("a=1")
    ("'=1+1", '-0.5', -0.5, 'a=1')
    """
    if isinstance(value, str) and _FORMULA.match(value) and not _is_number(value):
        return f"'{value}"
    return value


def safe_row(cells: Iterable[Any]) -> list[Any]:
    return [safe_cell(cell) for cell in cells]


def plain_cell(text: str) -> str:
    """What `safe_cell` was given.

    >>> plain_cell("'=1+1"), plain_cell("'tis"), plain_cell(safe_cell("'=x"))
    ('=1+1', "'tis", "'=x")
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and text == text.strip() and text.isascii()
    except ValueError:
        return False
