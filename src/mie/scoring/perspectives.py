"""What scoring asks of a perspective: its metrics, and what of the input its edits change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from mie.perspectives import PERSPECTIVES, Perspective

# What a sample that paints is expected to have.
_PAINTED: Final = frozenset({"region", "colours"})


@cache
def _find(name: str) -> Perspective | None:
    """None for a perspective of a package that is not installed."""
    if name not in PERSPECTIVES:
        return None
    return PERSPECTIVES[name]


def metrics_of(perspective: str) -> tuple[str, ...]:
    """The metrics that the perspective names; none for one that is not known here."""
    found = _find(perspective)
    return () if found is None else found.metrics


def paints(perspective: str) -> bool:
    """The edit paints a region in a colour, so that the region is read back from the reference."""
    found = _find(perspective)
    return found is not None and found.edit == "overlay"


def changes_content(perspective: str) -> bool:
    """The edit changes what is there, inside an area, rather than painting over it."""
    found = _find(perspective)
    return found is not None and found.edit == "area"


def edits_whole_image(row: Mapping[str, Any]) -> bool:
    """The edit concerns the whole image, so that it has no foreground and no background."""
    found = _find(row["perspective"])
    return row["mask"] is None and (found is None or found.edit == "image")


def facts_of(row: Mapping[str, Any]) -> frozenset[str]:
    """The needs of metrics that a sample meets, from its record alone."""
    several = row["task"] == "holistic"
    return needs_met(row["perspective"], has_mask=row["mask"] is not None, several=several)


def needs_met(perspective: str, *, has_mask: bool, several: bool) -> frozenset[str]:
    """The needs that a sample meets, or is expected to: where it does not, the metric is unscored."""
    facts = {"input", "reference"}
    if paints(perspective):
        facts |= _PAINTED
    elif has_mask:
        facts.add("region")
    return frozenset(facts | {"classes"} if several else facts)
