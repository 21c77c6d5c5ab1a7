"""From answers to a share, by hand and by simulation."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.scoring.statistics.intervals import wilson
from mie.scoring.statistics.quality import _verdict, quality
from mie.scoring.statistics.sheet import Key, Opinion, Stratum


def key_of(*strata: tuple[int, int]) -> Key:
    """(samples in the dataset, asked) for each stratum."""
    rows = [(f"s{at}-{n}", at) for at, (_, asked) in enumerate(strata) for n in range(asked)]
    return Key(
        sheet="00c0ffee00c0ffee",
        dataset={"name": "d", "digest": "ab" * 32, "samples": sum(samples for samples, _ in strata)},
        stratify=("modality",),
        allocation="proportional",
        seed=0,
        strata=tuple(Stratum({"modality": f"m{at}"}, *sizes) for at, sizes in enumerate(strata)),
        rows=tuple(rows),
    )


def said(key: Key, *good: int) -> dict[int, Opinion]:
    """The first so many of each stratum are good, the others bad."""
    left = list(good)
    out = {}
    for row, (_, at) in enumerate(key.rows, start=1):
        out[row] = Opinion("good" if left[at] > 0 else "bad", "")
        left[at] -= 1
    return out


@given(st.integers(1, 400), st.data())
def test_in_proportion_it_is_the_plain_share_and_wilson(n, data):
    good = data.draw(st.integers(0, n))
    key = key_of((10 * n, n))
    found = quality(key, said(key, good))
    assert found["share"] == pytest.approx(good / n)
    assert found["effective_answers"] == pytest.approx(n)
    assert found["ci95"] == pytest.approx(wilson(good, n))
    # Wilson's interval is where the score test just accepts.
    z = NormalDist().inv_cdf(0.975)
    for bound in found["ci95"]:
        if 1e-6 < bound < 1 - 1e-6:
            assert abs(good / n - bound) == pytest.approx(z * np.sqrt(bound * (1 - bound) / n), abs=1e-9)


def test_strata_count_as_much_as_they_have_samples():
    key = key_of((900, 50), (100, 50))
    found = quality(key, said(key, 50, 25))
    assert (found["good"], found["answered"], found["asked"]) == (75, 100, 100)
    assert found["share"] == pytest.approx(0.9 * 1.0 + 0.1 * 0.5)
    assert found["effective_answers"] == pytest.approx(1 / (0.9**2 / 50 + 0.1**2 / 50))
    assert [one["share"] for one in found["strata"]] == [1.0, 0.5]
    assert found["strata"][1]["ci95"] == pytest.approx(wilson(25, 50))
    # In proportion nothing is lost by strata.
    even = key_of((900, 90), (100, 10))
    assert quality(even, said(even, 90, 5))["effective_answers"] == pytest.approx(100)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    draw = np.random.default_rng(3)
    truth, sizes, asked = (0.99, 0.8), (8000, 2000), (60, 60)
    wanted = np.average(truth, weights=sizes)
    key = key_of(*zip(sizes, asked, strict=True))
    hits = 0
    for _ in range(1000):
        good = draw.binomial(asked, truth).tolist()
        low, high = quality(key, said(key, *good))["ci95"]
        hits += low <= wanted <= high
    assert 930 <= hits <= 1000


def test_the_bar_is_met_only_by_a_whole_interval_over_it():
    key = key_of((10_000, 200))
    verdicts = {good: quality(key, said(key, good))["bar"]["verdict"] for good in (200, 198, 190, 170)}
    assert verdicts == {200: "met", 198: "met", 190: "undecided", 170: "missed"}
    assert wilson(197, 200)[0] > 0.95 > wilson(196, 200)[0]
    assert quality(key, said(key, 200))["bar"]["of"] == 6000


def test_silence_is_not_a_number_and_coverage_stands_beside():
    key = key_of((100, 10), (50, 5))
    nothing = quality(key, {})
    assert (nothing["share"], nothing["ci95"], nothing["answered"]) == (None, [None, None], 0)
    assert nothing["bar"]["verdict"] == "undecided"
    half = quality(key, {row: Opinion("good", "") for row in range(1, 11)})
    assert (half["share"], half["answered"], half["asked"]) == (1.0, 10, 15)
    assert half["strata_without_answers"] == [{"modality": "m1"}]
    assert half["strata"][1]["share"] is None
    assert half["bar"] == {
        "share": 0.95,
        "of": 6000,
        "verdict": "undecided",
        "why": "1 strata have no answer",
    }


def test_the_verdict_on_both_sides_of_the_bar():
    """Met needs more than 95%; exactly 95% at the upper end is missed, at the lower end undecided."""
    verdicts = [_verdict(low, high, 0)["verdict"] for low, high in ((0.951, 0.99), (0.95, 0.99), (0.9, 0.95))]
    assert verdicts == ["met", "undecided", "missed"]
    assert _verdict(0.96, 0.99, 1)["verdict"] == "undecided"  # a stratum nobody answered for
