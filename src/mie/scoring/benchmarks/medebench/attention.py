"""What MedEBench's attention grounding measures: a map of attention against the region that is to be edited.

The protocol's own number is the IoU of the map, thresholded, with the region. It depends on the threshold, so
two numbers without one stand beside it: whether the highest place lies in the region (the pointing game), and
the area under the ROC curve. Which word is looked at is decided here too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.stats import rankdata

from mie.core.hashing import stable_hash
from mie.errors import MetricError
from mie.records import Mask, Values

OTSU: Final = 1.3  # times Otsu's threshold: what is above counts as looked at
MEASURES: Final = ("iou", "pointing", "auc")
_BINS: Final = 256
_WORD: Final = re.compile(r"[^\W\d_]+(?:[-'][^\W\d_]+)*")
# After one of these an instruction says where or how, no longer what.
_PREPOSITIONS: Final = frozenset(
    (
        *("about", "above", "across", "after", "along", "around", "as", "at", "before", "behind", "below"),
        *("between", "by", "for", "from", "in", "inside", "into", "of", "on", "onto", "out", "over"),
        *("through", "to", "towards", "under", "using", "while", "with", "within", "without"),
    )
)
_OTHER: Final = _PREPOSITIONS | {
    "a",
    "an",
    "and",
    "any",
    "both",
    "but",
    "it",
    "its",
    "or",
    "that",
    "the",
    "this",
}


@dataclass(frozen=True, slots=True)
class Word:
    """A word or phrase of an instruction, and where it ends there."""

    text: str
    end: int

    @property
    def start(self) -> int:
        return self.end - len(self.text)


def normalised(values: Values) -> Values:
    """The map from 0 to 1. `MetricError` for one that is the same everywhere."""
    low, high = float(values.min()), float(values.max())
    if not high > low:
        raise MetricError("the attention is the same everywhere")
    return np.asarray((values - low) / (high - low), np.float32)


def otsu_threshold(values: Values) -> float:
    """Otsu's threshold: the centre of the bin, of 256, that separates two classes best."""
    counts, edges = np.histogram(values, _BINS)
    centres = (edges[:-1] + edges[1:]) / 2
    below, above = np.cumsum(counts), np.cumsum(counts[::-1])[::-1]
    sums = np.cumsum(counts * centres)
    mean_below = sums / np.maximum(below, 1)
    mean_above = (sums[-1] - np.concatenate([[0], sums[:-1]])) / np.maximum(above, 1)
    between = below[:-1] * above[1:] * (mean_below[:-1] - mean_above[1:]) ** 2
    return float(centres[int(np.argmax(between))])


def looked_at(values: Values) -> Mask:
    """Where the map, from 0 to 1, is above 1.3 times Otsu's threshold."""
    scaled = normalised(values)
    return scaled > OTSU * otsu_threshold(scaled)


def measure_map(values: Values, region: Mask) -> dict[str, float]:
    """IoU, pointing game (0 or 1) and AUC of a map `(H, W)` against a region `(H, W)`."""
    if region.shape != values.shape:
        raise MetricError("map and region differ in size", expected=region.shape, found=values.shape)
    inside = int(region.sum())
    if inside in (0, region.size):
        raise MetricError("the region is empty, or the whole image")
    seen = looked_at(values)
    ranks = rankdata(values.ravel())[region.ravel()]
    area = (ranks.sum() - inside * (inside + 1) / 2) / (inside * (region.size - inside))
    return {
        "iou": float((seen & region).sum() / (seen | region).sum()),
        "pointing": float(region.ravel()[int(np.argmax(values))]),
        "auc": float(area),
    }


def concept_word(instruction: str, names: Sequence[str]) -> Word | None:
    """What an instruction is about: the first of `names` that it says, else its object.

    The object is the last word before the first preposition: "Remove the gallstones from the bladder".
    """
    for name in names:
        found = re.search(rf"\b{re.escape(name)}(?:s|es)?\b", instruction, re.IGNORECASE) if name else None
        if found is not None:
            return Word(found[0], found.end())
    before: Word | None = None
    for match in _WORD.finditer(re.split(r"[,;.](?:\s|$)", instruction)[0]):
        if match[0].lower() in _PREPOSITIONS and before is not None:
            break
        if match[0].lower() not in _OTHER:
            before = Word(match[0], match.end())
    return before


def control_word(instruction: str, concept: Word, sample_id: str) -> Word | None:
    """Another word of the instruction, chosen by the sample's id: what a map of any word would reach."""
    words = [
        Word(match[0], match.end())
        for match in _WORD.finditer(instruction)
        if match[0].lower() not in _OTHER
        and not (match.start() < concept.end and match.end() > concept.start)
    ]
    return words[stable_hash("control", sample_id) % len(words)] if words else None


def concepts_of(task: str, target: str | None, table: Mapping[str, str]) -> list[str]:
    """Names to look for: the table's for the task, else the target, else the object of the task's name."""
    own = concept_word(task, ()) if target is None else None
    return [name for name in (table.get(task), target, own and own.text) if name]
