"""How many to take of each group, so that the numbers add up to a total."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


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


def allocate_equally(sizes: Mapping[T, int], total: int) -> dict[T, int]:
    """How many to take of each group: equally many, small groups whole; what is over goes to the largest.

    >>> allocate_equally({"CT": 90, "MRI": 9, "OCT": 1}, 12)
    {'CT': 6, 'MRI': 5, 'OCT': 1}
    """
    total = min(total, sum(sizes.values()))
    seats = dict.fromkeys(sizes, 0)
    while total:
        free = [name for name in sizes if seats[name] < sizes[name]]
        each = max(1, min(total // len(free), min(sizes[name] - seats[name] for name in free)))
        for name in sorted(free, key=lambda name: -sizes[name])[: total // each]:
            seats[name] += each
            total -= each
    return seats
