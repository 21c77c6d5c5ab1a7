"""Who sees what is a matter of hashes: the same everywhere, in proportion, without favourites."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from mie.review.plan import order_of
from mie.review.sampling import allocate, display_seed, draw, raters_of

IDS = [f"{n:016x}" for n in range(1000)]


@given(
    st.dictionaries(st.text(max_size=3), st.integers(1, 200), min_size=1, max_size=12), st.integers(0, 600)
)
def test_seats_are_in_proportion_and_never_more_than_there_are(sizes, total):
    seats = allocate(sizes, total)
    everything = sum(sizes.values())
    assert sum(seats.values()) == min(total, everything)
    assert all(0 <= seats[name] <= sizes[name] for name in sizes)
    if total >= len(sizes):
        assert min(seats.values()) >= 1
    if total * min(sizes.values()) >= everything:  # nobody had to be rounded up to 1
        exact = {name: size * min(total, everything) / everything for name, size in sizes.items()}
        assert all(abs(seats[name] - exact[name]) < 1 for name in sizes)


def test_a_draw_is_stratified_stable_and_depends_on_the_seed():
    strata = {i: "CT" if int(i, 16) % 10 else "MRI" for i in IDS}
    chosen = draw(IDS, strata, 50, seed=1)
    assert Counter(strata[i] for i in chosen) == {"CT": 45, "MRI": 5}
    assert chosen == draw(list(reversed(IDS)), strata, 50, seed=1)
    assert set(chosen) != set(draw(IDS, strata, 50, seed=2))
    assert set(draw(IDS, strata, None, seed=1)) == set(IDS)
    # A larger draw with the same seed keeps the smaller one: what was reviewed stays in.
    assert set(chosen) <= set(draw(IDS, strata, 100, seed=1))


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
