"""Krippendorff's alpha against his own published example, and against the definition pair by pair."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.errors import ConfigError
from mie.scoring.statistics.ranks import LEVELS, krippendorff_alpha

_ = np.nan
# Computing Krippendorff's Alpha-Reliability (2011), section C: four observers, twelve units.
PUBLISHED = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, _, _, _],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, _, 3],
        [_, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, _],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, _],
    ]
)
# Section A: two observers, binary data, no missing data. Section B: two observers, five categories.
BINARY = np.array([[0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]], float)
WORDS = np.array([list("aabbdcccedda"), list("babbbccceddd")])

tables = st.integers(2, 4).flatmap(
    lambda raters: st.lists(
        st.lists(st.sampled_from([1, 2, 3, 4, 5, _]), min_size=raters, max_size=raters),
        min_size=1,
        max_size=8,
    )
)


def test_the_published_examples():
    assert krippendorff_alpha(PUBLISHED, "nominal") == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(PUBLISHED, "ordinal") == pytest.approx(0.815, abs=5e-4)
    assert krippendorff_alpha(PUBLISHED, "interval") == pytest.approx(0.849, abs=5e-4)
    assert krippendorff_alpha(BINARY, "nominal") == pytest.approx(0.095, abs=5e-4)
    codes = np.unique(WORDS, return_inverse=True)[1].reshape(WORDS.shape)
    assert krippendorff_alpha(codes, "nominal") == pytest.approx(0.692, abs=5e-4)


def pair_by_pair(units, level):
    """The definition: every ordered pair within a unit, against every ordered pair of all."""
    units = [[v for v in unit if not np.isnan(v)] for unit in units]
    units = [unit for unit in units if len(unit) > 1]
    everything = sorted(v for unit in units for v in unit)
    if len(set(everything)) < 2:
        return np.nan

    def distance(a, b):
        if level == "nominal":
            return float(a != b)
        if level == "interval":
            return (a - b) ** 2
        low, high = min(a, b), max(a, b)
        between = sum(low <= v <= high for v in everything)
        return (between - (everything.count(a) + everything.count(b)) / 2) ** 2 if a != b else 0.0

    observed = sum(sum(distance(a, b) for a, b in permutations(u, 2)) / (len(u) - 1) for u in units)
    expected = sum(distance(a, b) for a, b in permutations(everything, 2)) / (len(everything) - 1)
    return 1 - observed / expected


@pytest.mark.parametrize("level", LEVELS)
@given(units=tables)
def test_the_definition(level, units):
    found = krippendorff_alpha(np.array(units).T, level)
    np.testing.assert_allclose(found, pair_by_pair(units, level), atol=1e-10)


@given(tables, st.randoms())
def test_renaming_raters_and_units_changes_nothing(units, random):
    table = np.array(units).T
    rows, columns = list(range(table.shape[0])), list(range(table.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    for level in LEVELS:
        expected = krippendorff_alpha(table, level)
        np.testing.assert_allclose(krippendorff_alpha(table[rows][:, columns], level), expected, atol=1e-10)


def test_what_a_level_does_not_look_at():
    assert krippendorff_alpha(PUBLISHED**3, "ordinal") == pytest.approx(
        krippendorff_alpha(PUBLISHED, "ordinal")
    )
    turned = np.choose(np.nan_to_num(PUBLISHED).astype(int), [_, 30, 7, -2, 5, 11])
    turned[np.isnan(PUBLISHED)] = _
    assert krippendorff_alpha(turned, "nominal") == pytest.approx(krippendorff_alpha(PUBLISHED, "nominal"))
    shifted = krippendorff_alpha(2 * PUBLISHED + 3, "interval")
    assert shifted == pytest.approx(krippendorff_alpha(PUBLISHED, "interval"))


def test_extremes():
    same = np.tile([1.0, 2, 5, 3], (3, 1))
    assert [krippendorff_alpha(same, level) for level in LEVELS] == [1, 1, 1]
    assert np.isnan(krippendorff_alpha([[2, 2], [2, 2]]))  # nothing varies
    assert np.isnan(krippendorff_alpha([[1, _], [_, 2]]))  # nobody rated the same unit
    with pytest.raises(ConfigError, match="ratio"):
        krippendorff_alpha(same, "ratio")
