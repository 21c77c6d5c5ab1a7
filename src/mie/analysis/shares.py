"""Shares: how often yes was said, and how sure that is."""

from __future__ import annotations

import math


def wilson(successes: float, n: float, z: float = 1.959963984540054) -> tuple[float, float]:
    """The Wilson score interval of a share, 95% by default; sound at 0, at n, and for small n.

    Neither needs to be whole: a weighted share of an effective number of answers has an interval too.

    >>> [round(x, 4) for x in wilson(9, 10)]
    [0.5958, 0.9821]
    """
    share, square = successes / n, z * z
    centre = share + square / (2 * n)
    spread = z * math.sqrt(max(0.0, share * (1 - share)) / n + square / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + square / n)), min(1.0, (centre + spread) / (1 + square / n))
