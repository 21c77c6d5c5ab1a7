"""HTML without a template language: text is escaped unless it was made here, so nothing is forgotten."""

from __future__ import annotations

import html
import re
from typing import Final

_VOID: Final = frozenset({"br", "hr", "img", "input", "link", "meta", "source", "path", "circle", "line"})
# Control characters have no place in a page; lone surrogates cannot be written as UTF-8.
_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class Markup(str):
    """HTML made by `tag` or `join`: the only strings that are not escaped again."""

    __slots__ = ()


def escaped(value: object) -> str:
    """The value as text that is safe in content and in quoted attributes."""
    if isinstance(value, Markup):
        return value
    return html.escape(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", str(value)))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """One element. `class_` and `aria_label` become `class` and `aria-label`; True is a bare attribute.

    >>> print(tag("p", "a < b", class_="note", hidden=True))
    <p class="note" hidden>a &lt; b</p>
    """
    head = name
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        head += f" {key}" if value is True else f' {key}="{escaped(value)}"'
    if name in _VOID:
        return Markup(f"<{head}>" if name not in ("path", "circle", "line") else f"<{head}/>")
    return Markup(f"<{head}>{''.join(escaped(child) for child in children)}</{name}>")


def join(*children: object, between: str = "") -> Markup:
    """Children side by side, text escaped."""
    return Markup(escaped(between).join(escaped(child) for child in children))
