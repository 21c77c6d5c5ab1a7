"""Every difference between two recordings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

ABSENT = "(absent)"


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """(place, value as JSON) of everything in a document; an empty list or mapping is a value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{place} / {key}" if place else str(key))
    elif isinstance(value, list) and value:
        for at, item in enumerate(value):
            yield from leaves(item, f"{place}[{at}]")
    else:
        yield place, json.dumps(value, ensure_ascii=False)


def differences(first: Any, second: Any, ignore: str | None = None) -> list[tuple[str, str, str]]:
    """(place, first, second) wherever two documents differ; `ignore` is a pattern for places."""
    one, two = dict(leaves(first)), dict(leaves(second))
    pattern = None if ignore is None else re.compile(ignore)
    return [
        (place, one.get(place, ABSENT), two.get(place, ABSENT))
        for place in dict.fromkeys((*one, *two))
        if one.get(place, ABSENT) != two.get(place, ABSENT) and not (pattern and pattern.search(place))
    ]
