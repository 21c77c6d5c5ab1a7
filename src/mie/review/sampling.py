"""By how many people a sample is reviewed, and in which order one sees its outputs: by hash, so the same
everywhere. Which samples are drawn is in `mie.analysis.sampling`.
"""

from __future__ import annotations

from mie.recipes.seeds import stable_hash


def raters_of(sample_id: str, raters: int, overlap: float, seed: int) -> int:
    """`raters` for a share `overlap` of the samples, 1 for the others."""
    return raters if stable_hash("overlap", seed, sample_id) < overlap * 2**64 else 1


def display_seed(task_seed: int, user_id: int, item_id: int) -> int:
    """31 bits: the order in which one rater sees the outputs of one item."""
    return stable_hash("display", task_seed, user_id, item_id) >> 33
