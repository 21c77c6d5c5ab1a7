"""Who sees what is a matter of hashes: the same everywhere, in proportion, without favourites."""

from collections import Counter

import numpy as np
from scipy.stats import chisquare

from mie.review.assignments import display_seed, raters_of
from mie.review.plan import order_of

IDS = [f"{n:016x}" for n in range(1000)]


def test_the_overlap_is_the_share_that_was_asked_for():
    counts = Counter(raters_of(i, 3, 0.2, seed=5) for i in IDS)
    assert set(counts) == {1, 3}
    assert 150 < counts[3] < 250
    assert {raters_of(i, 3, 1.0, seed=5) for i in IDS} == {3}
    assert {raters_of(i, 3, 0.0, seed=5) for i in IDS} == {1}


def test_every_run_stands_first_equally_often():
    outputs = [[run, "s", "sha"] for run in (4, 5, 6, 7)]
    first = Counter(order_of(outputs, display_seed(0, 1, item))[0] for item in range(4000))
    assert chisquare([first[run] for run in (4, 5, 6, 7)]).pvalue > 1e-3
    one = [order_of(outputs, display_seed(0, user, 9)) for user in range(50)]
    assert len({tuple(order) for order in one}) > 10
    assert order_of(outputs, display_seed(0, 3, 9)) == order_of(outputs, display_seed(0, 3, 9))
    assert np.all([sorted(order) == [4, 5, 6, 7] for order in one])
