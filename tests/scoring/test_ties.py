"""Run against run: what counts as a tie."""

import pytest

from mie.scoring.statistics import compare_runs
from tests.scoring.statistics.files import write_scores


@pytest.mark.parametrize(
    ("difference", "outcome"),
    [
        (0.0, (0, 3, 0)),
        (5e-7, (0, 3, 0)),
        (-5e-7, (0, 3, 0)),
        (2e-6, (3, 0, 0)),
        (-2e-6, (0, 0, 3)),
    ],
)
def test_values_nearer_than_a_millionth_are_equal(tmp_path, difference, outcome):
    """Two DICE of nothing in common differ by the smoothing term alone, around 1e-9: nobody has won."""
    first = {name: [0.25 + difference] for name in "abc"}
    second = {name: [0.25] for name in "abc"}
    files = {
        name: write_scores(tmp_path / name / "scores/miedb.paper.jsonl", samples, patients=["p1", "p2", "p3"])
        for name, samples in (("x", first), ("y", second))
    }
    (pair,) = compare_runs(files, "dice@1")
    assert (pair.wins, pair.ties, pair.losses) == outcome


def test_large_numbers_tie_by_their_difference_and_not_by_their_size(tmp_path):
    """28.1001 dB are not 28.1 dB; two exact matches are equal."""
    runs = {"x": {"a": [28.1001], "b": ["inf"]}, "y": {"a": [28.1], "b": ["inf"]}}
    files = {
        name: write_scores(tmp_path / name / "scores/miedb.paper.jsonl", samples)
        for name, samples in runs.items()
    }
    (pair,) = compare_runs(files, "dice@1")
    assert (pair.wins, pair.ties, pair.losses) == (1, 1, 0)
