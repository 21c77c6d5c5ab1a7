"""Who sees what is a matter of hashes: the same everywhere, in proportion, without favourites."""

from collections import Counter

from scipy.stats import chisquare

from mie.review.assignments import display_seed
from mie.review.plan import raters_per_item
from mie.review.views import blind_labels

IDS = [f"{n:016x}" for n in range(1000)]


def test_the_overlap_is_the_share_that_was_asked_for():
    counts = Counter(raters_per_item(i, 3, 0.2, seed=5) for i in IDS)
    assert set(counts) == {1, 3}
    assert 150 < counts[3] < 250
    assert {raters_per_item(i, 3, 1.0, seed=5) for i in IDS} == {3}
    assert {raters_per_item(i, 3, 0.0, seed=5) for i in IDS} == {1}


def test_every_run_stands_first_equally_often():
    runs = [4, 5, 6, 7]

    def order(user, item):
        labels = blind_labels(runs, display_seed(0, user, item))
        assert list(labels) == ["A", "B", "C", "D"]
        return tuple(labels.values())

    first = Counter(order(1, item)[0] for item in range(4000))
    assert chisquare([first[run] for run in runs]).pvalue > 1e-3
    assert len({order(1, item) for item in range(50)}) > 10  # one rater, many items
    assert len({order(user, 9) for user in range(50)}) > 10  # one item, many raters
    assert all(sorted(order(user, 9)) == runs for user in range(50))
    assert order(3, 9) == order(3, 9)
