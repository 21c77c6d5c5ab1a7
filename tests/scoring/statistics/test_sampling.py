"""A draw is a matter of hashes: the same everywhere, in proportion or equal, without favourites."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mie.core.allocation import allocate, allocate_equally
from mie.scoring.statistics.sheet import draw

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


@given(
    st.dictionaries(st.text(max_size=3), st.integers(1, 200), min_size=1, max_size=12), st.integers(0, 600)
)
def test_equal_seats_differ_by_one_at_most_unless_a_group_is_used_up(sizes, total):
    seats = allocate_equally(sizes, total)
    assert sum(seats.values()) == min(total, sum(sizes.values()))
    assert all(0 <= seats[name] <= sizes[name] for name in sizes)
    open_ones = [seats[name] for name in sizes if seats[name] < sizes[name]]
    if open_ones:
        assert max(seats.values()) - min(open_ones) <= 1


def test_an_equal_draw_gives_rare_strata_as_many():
    strata = {i: "CT" if int(i, 16) % 10 else "MRI" for i in IDS}
    chosen = draw(IDS, strata, 50, seed=1, equal=True)
    assert Counter(strata[i] for i in chosen) == {"CT": 25, "MRI": 25}
