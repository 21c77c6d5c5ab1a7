"""Which samples are reviewed, in which order, by how many people: by hash, so the same everywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from mie.recipes.seeds import stable_hash

T = TypeVar("T", bound=Hashable)


def draw(ids: Sequence[str], strata: Mapping[str, Hashable], size: int | None, seed: int) -> list[str]:
    """`size` of the ids (None: all) in an order without meaning, each stratum with its share.

    >>> draw(["a", "b", "c", "d"], {"a": "CT", "b": "CT", "c": "CT", "d": "MRI"}, 2, seed=1)
    ['d', 'b']
    """
    keys = {i: stable_hash("review", seed, i) for i in ids}
    chosen = list(ids)
    if size is not None and size < len(ids):
        groups: dict[Hashable, list[str]] = defaultdict(list)
        for i in ids:
            groups[strata[i]].append(i)
        shares = allocate({name: len(group) for name, group in groups.items()}, size)
        chosen = [
            i for name, group in groups.items() for i in sorted(group, key=keys.__getitem__)[: shares[name]]
        ]
    return sorted(chosen, key=keys.__getitem__)


def allocate(sizes: Mapping[T, int], total: int) -> dict[T, int]:
    """How many to take of each group: in proportion, the largest remainders first, none left out if possible.

    >>> allocate({"CT": 90, "MRI": 9, "OCT": 1}, 10)
    {'CT': 8, 'MRI': 1, 'OCT': 1}
    """
    everything = sum(sizes.values())
    total = min(total, everything)
    least = 1 if total >= len(sizes) else 0
    share = {name: size * total / everything for name, size in sizes.items()}
    seats = {name: max(least, int(share[name])) for name in sizes}

    def missing(name: T) -> tuple[float, int]:
        return share[name] - seats[name], sizes[name]

    while sum(seats.values()) > total:  # the small groups were rounded up
        seats[min((n for n in sizes if seats[n] > least), key=missing)] -= 1
    while sum(seats.values()) < total:
        seats[max((n for n in sizes if seats[n] < sizes[n]), key=missing)] += 1
    return seats


def raters_of(sample_id: str, raters: int, overlap: float, seed: int) -> int:
    """`raters` for a share `overlap` of the samples, 1 for the others."""
    return raters if stable_hash("overlap", seed, sample_id) < overlap * 2**64 else 1


def display_seed(task_seed: int, user_id: int, item_id: int) -> int:
    """31 bits: the order in which one rater sees the outputs of one item."""
    return stable_hash("display", task_seed, user_id, item_id) >> 33
