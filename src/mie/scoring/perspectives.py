"""What scoring knows about perspectives: the metrics of each, and what follows from what they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mie.scoring.metric import METRICS

# The metrics of a sample, by its perspective. "rubric" is a judge's.
_METRICS: Final[Mapping[str, tuple[str, ...]]] = {
    "perception": ("dice", "dice_guarded", "p_acc", "b_psnr", "b_ssim", "class_dice"),
    "modification": ("changed_psnr", "changed_ssim", "unchanged_psnr", "unchanged_ssim", "rubric"),
    "transformation": ("psnr", "ssim"),
}
# What a sample that paints is expected to have.
_PAINTED: Final = frozenset({"region", "colours"})


def metrics_of(perspective: str) -> tuple[str, ...]:
    """The metrics that the perspective names; none for one that is not known here."""
    return _METRICS.get(perspective, ())


def needs_of(perspective: str) -> frozenset[str]:
    """Everything that its metrics need."""
    return frozenset(
        need for name in metrics_of(perspective) if name in METRICS for need in METRICS[name].needs
    )


def paints(perspective: str) -> bool:
    """The edit paints a region in a colour, so that the region is read back from the reference."""
    return "colours" in needs_of(perspective)


def changes_content(perspective: str) -> bool:
    """The edit changes what is there, inside an area, rather than painting over it."""
    return "region" in needs_of(perspective) and not paints(perspective)


def edits_whole_image(row: Mapping[str, Any]) -> bool:
    """The edit concerns the whole image, so that it has no foreground and no background."""
    return row["mask"] is None and not (paints(row["perspective"]) or changes_content(row["perspective"]))


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
