"""Batches hold their shares exactly, and groups are drawn by their size to a power."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.training.batches import Groups, counts

SHARES = st.dictionaries(st.text(min_size=1, max_size=4), st.floats(0.01, 10), min_size=1, max_size=5)


@given(st.integers(0, 500), SHARES)
def test_counts_add_up_and_are_within_one_of_the_share(batch: int, shares: dict[str, float]) -> None:
    given_ = counts(batch, shares)
    assert sum(given_.values()) == batch
    assert given_.keys() == shares.keys()
    whole = math.fsum(shares.values())
    for name, share in shares.items():
        assert abs(given_[name] - batch * share / whole) < 1 + 1e-9


@pytest.mark.parametrize(
    ("batch", "shares", "expected"),
    [
        (96, {"perception": 0.6, "transformation": 0.4}, [58, 38]),  # 57.6 and 38.4
        (10, {"a": 3, "b": 1, "c": 1}, [6, 2, 2]),
        (7, {"a": 1}, [7]),
        (4, {"a": 1, "b": 0}, [4, 0]),
        (1, {"b": 1, "a": 1}, [0, 1]),  # a tie goes by name, whatever the order in the file
    ],
)
def test_counts_worked_by_hand(batch: int, shares: dict[str, float], expected: list[int]) -> None:
    assert list(counts(batch, shares).values()) == expected
    assert counts(batch, dict(reversed(shares.items()))) == counts(batch, shares)


@pytest.mark.parametrize("power", [0.0, 0.25, 0.5, 1.0])
def test_groups_are_drawn_by_size_to_the_power(power: float) -> None:
    sizes = {"small": 4, "middle": 64, "large": 400}
    keys = [key for key, size in sizes.items() for _ in range(size)]
    np.random.default_rng(0).shuffle(keys)
    drawn = Groups.of(keys, power).draw(np.random.default_rng(1), 20_000)
    whole = sum(size**power for size in sizes.values())
    for key, size in sizes.items():
        of_group = drawn[[keys[row] == key for row in drawn]]
        assert len(of_group) / len(drawn) == pytest.approx(size**power / whole, abs=0.015)
        often = np.bincount(of_group, minlength=len(keys))[[k == key for k in keys]]
        assert often.min() > 0, "every row comes"
        # Rows of one group come alike: a spread as of dice, with room for chance.
        assert often.std() < 2 * math.sqrt(often.mean())


def test_draws_depend_on_the_generator_alone() -> None:
    groups = Groups.of(list("aabbbc"), 0.5)
    one = groups.draw(np.random.default_rng(5), 50)
    np.random.default_rng(6).random(10)
    assert (groups.draw(np.random.default_rng(5), 50) == one).all()
    assert (groups.draw(np.random.default_rng(6), 50) != one).any()
    assert set(one) <= set(range(6))


def test_emphasis_draws_a_group_more_often() -> None:
    keys = ["a"] * 16 + ["b"] * 16
    share = Groups.of(keys, 0.25, {"b": 3.0, "c": 9.0}).share
    assert share.tolist() == pytest.approx([0.25, 0.75])


def test_slices_of_one_patient_count_less_than_patients() -> None:
    keys = ["one"] * 16 + ["many"] * 16 + ["few"] * 4
    patients = ["p"] * 16 + list(range(16)) + list(range(4))
    share = Groups.of(keys, 0.5, patients=patients).share
    assert share.tolist() == pytest.approx([2 / 8, 4 / 8, 2 / 8])
