"""Which samples make up a batch: rows drawn by group, kinds in exact shares."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows in groups (a data set's target, a kind of pair). A group of n rows is drawn by n to the `power`.

    Power 1 draws every row alike, so large data sets rule; 0 draws every group alike, so a group of three is
    learnt by heart.
    """

    rows: tuple[NDArray[np.int64], ...]
    share: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        keys: Sequence[Hashable],
        power: float,
        emphasis: Mapping[Any, float] | None = None,
        patients: Sequence[Hashable] | None = None,
    ) -> Groups:
        """`emphasis`: by the key of a group, how many times more often than that it is drawn.

        With `patients`, one for each row, n is the geometric mean of a group's rows and patients: fifty
        slices of one patient teach less than fifty patients.
        """
        members: dict[Hashable, list[int]] = {}
        for row, key in enumerate(keys):
            members.setdefault(key, []).append(row)
        more = emphasis or {}
        size = {key: float(len(m)) for key, m in members.items()}
        if patients is not None:
            size = {key: (n * len({patients[row] for row in members[key]})) ** 0.5 for key, n in size.items()}
        weight = np.array([n**power * more.get(key, 1.0) for key, n in size.items()])
        return cls(tuple(np.array(m) for m in members.values()), weight / weight.sum())

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        groups = rng.choice(len(self.rows), count, p=self.share)
        places = rng.random(count)
        drawn = [self.rows[g][int(u * len(self.rows[g]))] for g, u in zip(groups, places, strict=True)]
        return np.array(drawn, np.int64)


def counts(batch: int, shares: dict[str, float]) -> dict[str, int]:
    """How many of a batch each kind gets: the same in every batch, so ratios hold exactly."""
    whole = sum(shares.values())
    exact = {name: batch * share / whole for name, share in shares.items()}
    given = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: (given[name] - exact[name], name))
    for name in by_rest[: batch - sum(given.values())]:
        given[name] += 1
    return given
