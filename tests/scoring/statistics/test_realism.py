"""Real or generated: which images are drawn, and the accuracy of the answers, by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, t

from mie.errors import ConfigError, MieError
from mie.scoring.statistics.intervals import wilson
from mie.scoring.statistics.realism import circle_around, draw_key, realism
from mie.scoring.statistics.sheet import Key, Opinion, Stratum, Truth, read_key
from tests.perspectives.modification.lesions import disc
from tests.scoring.benchmarks.runs import write_samples
from tests.scoring.statistics.pairs import is_real, pair, pairs

SAMPLES = [
    *pairs(range(20), range(20, 32)),
    *pairs(range(32, 38), range(38, 44), modality="OCT"),
    *pairs(range(44, 48), range(0), modality="CT"),
    # An imported pair does not say which of its images is real.
    *pair(60, painted=False, recipe="import"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_samples(SAMPLES, tmp_path_factory.mktemp("realism") / "dataset")


def by_id(key, samples=SAMPLES):
    known = {one.id: one for one in samples}
    return [(known[name], place, truth) for (name, place), truth in zip(key.rows, key.truth, strict=True)]


def test_half_of_every_stratum_is_real_and_the_key_knows_which(dataset):
    key = draw_key(dataset, 24, ["modality"])
    assert len(key.rows) == 24
    for sample, place, truth in by_id(key):
        shown = getattr(sample, truth.image)
        assert truth.real == is_real(sample, shown)
        assert key.strata[place].name["modality"] == sample.modality
        inside = shown[sample.mask > 0]
        lesion = bool((inside == 5).all() or (inside == 40).all())
        assert key.strata[place].name["shown"] == ("lesion" if lesion else "healthy tissue")
    halves = Counter((place, truth.real) for _, place, truth in by_id(key))
    for place, stratum in enumerate(key.strata):
        assert halves[place, True] == halves[place, False] == stratum.asked / 2
    asked = {tuple(s.name.values()): (s.samples, s.asked) for s in key.strata}
    assert asked == {
        ("lesion", "OCT"): (12, 4),
        ("healthy tissue", "OCT"): (12, 4),
        ("lesion", "fundus"): (32, 8),
        ("healthy tissue", "fundus"): (32, 8),
    }
    assert key.left_out == ({"stratum": {"modality": "CT"}, "healed": 4, "painted": 0},)


def test_a_pair_shows_one_of_its_images_and_a_patient_comes_once(dataset):
    for seed in range(5):
        key = draw_key(dataset, 500, ["modality"], seed=seed)
        assert len(key.rows) == 2 * (12 + 6)
        samples = [sample for sample, _, _ in by_id(key)]
        assert {sample.task for sample in samples} == {"removal"}
        for name in ("id", "group", "case_id", "patient_id"):
            assert len({getattr(sample, name) for sample in samples}) == len(samples)


def test_images_of_one_case_never_come_together_and_patients_only_where_they_must(tmp_path):
    """Three kinds of lesion painted into one healthy image would tell which of them is not there."""
    samples = [
        *(one for n in range(9) for one in pair(n, painted=True, case=f"c{n // 3}", patient=f"p{n // 3}")),
        *(one for n in range(9, 12) for one in pair(n, painted=False, patient="p0")),
        *(one for n in range(12, 14) for one in pair(n, painted=False)),
    ]
    key = draw_key(write_samples(samples, tmp_path / "dataset"), 100, [])
    chosen = [sample for sample, _, _ in by_id(key, samples)]
    assert len(chosen) == 6
    assert len({sample.case_id for sample in chosen}) == 6
    patients = Counter(sample.patient_id for sample in chosen)
    assert {name: n for name, n in patients.items() if n > 1} == {"p0": 2}, "five patients for six images"
    known = {sample.patient_id: truth.patient for sample, _, truth in by_id(key, samples)}
    assert len(set(known.values())) == 5


def test_the_order_of_a_dataset_means_nothing_and_the_seed_does(dataset, tmp_path):
    key = draw_key(dataset, 12, ["modality"])
    other = draw_key(write_samples(SAMPLES[::-1], tmp_path / "reversed"), 12, ["modality"])
    assert (key.rows, key.truth) == (other.rows, other.truth)
    assert draw_key(dataset, 12, ["modality"], seed=1).rows != key.rows
    equal = draw_key(dataset, 12, ["modality"], allocation="equal")
    assert Counter(equal.strata[place].name["modality"] for _, place in equal.rows) == {"OCT": 6, "fundus": 6}
    (tmp_path / "key.json").write_text(key.as_json())
    assert read_key(tmp_path) == key


def test_both_of_two_are_about_equally_large_and_of_one_data_set(tmp_path):
    """Lesions of a data set are small or large; what is painted into two data sets is both."""
    samples = [
        *(one for n in range(6) for one in pair(n, painted=False, radius=8)),
        *(one for n in range(20, 26) for one in pair(n, painted=True, radius=26)),
        *(one for n in range(26, 32) for one in pair(n, painted=True, radius=8, source="b")),
        *(one for n in range(32, 38) for one in pair(n, painted=True, radius=9)),
    ]
    chosen = by_id(draw_key(write_samples(samples, tmp_path / "dataset"), 12, []), samples)
    assert len(chosen) == 12
    assert {sample.source for sample, _, _ in chosen} == {"source-of-eyes"}
    assert all((sample.mask > 0).sum() < 400 for sample, _, _ in chosen)


def test_datasets_without_both_kinds_are_told_what_is_missing(dataset, tmp_path):
    healed = write_samples(pairs(range(4), range(0)), tmp_path / "healed")
    with pytest.raises(MieError, match="no real images to compare") as error:
        draw_key(healed, 10, ["modality"])
    assert "4 healed and 0 painted" in str(error.value)
    assert "health:" in str(error.value)
    painted = write_samples(pairs(range(0), range(4)), tmp_path / "painted")
    with pytest.raises(MieError, match="images with marked lesions"):
        draw_key(painted, 10, ["modality"])
    apart = write_samples([*pair(0, painted=True, source="a"), *pair(1, painted=False)], tmp_path / "apart")
    with pytest.raises(MieError, match="name fewer columns"):
        draw_key(apart, 10, ["source"])
    neither = write_samples([replace(one, recipe="import") for one in pair(0, painted=True)], tmp_path / "x")
    with pytest.raises(MieError, match="recipe: modification"):
        draw_key(neither, 10, [])
    with pytest.raises(ConfigError, match="needs two"):
        draw_key(dataset, 1, [])
    with pytest.raises(ConfigError, match="no stratum named 'modalty'"):
        draw_key(dataset, 5, ["modalty"])


@given(st.integers(8, 40), st.integers(8, 40), st.integers(1, 7))
def test_the_circle_holds_the_area_and_its_centre_is_the_areas(row, column, radius):
    area = disc(row, column, radius, 48)
    x, y, around = circle_around(area)
    assert (x, y) == pytest.approx((column + 0.5, row + 0.5), abs=0.2)
    rows, columns = np.nonzero(area)
    assert np.hypot(columns + 0.5 - x, rows + 0.5 - y).max() < around < 1.15 * radius + 3


def key_of(*strata: tuple[int, int], patients: int | None = None) -> Key:
    """(real, generated) images of each stratum, of so many patients."""
    rows = [(at, n < real) for at, (real, fake) in enumerate(strata) for n in range(real + fake)]
    return Key(
        sheet="00c0ffee00c0ffee",
        dataset={"name": "d", "digest": "ab" * 32, "samples": 100},
        stratify=(),
        allocation="proportional",
        seed=0,
        strata=tuple(Stratum({"shown": f"s{at}"}, 50, sum(sizes)) for at, sizes in enumerate(strata)),
        rows=tuple((f"s{n}", at) for n, (at, _) in enumerate(rows)),
        question="real",
        truth=tuple(
            Truth("input", real, n % (patients or len(rows)), "a") for n, (_, real) in enumerate(rows)
        ),
    )


def said(*answers: str) -> dict[int, Opinion]:
    words = {"r": "real", "g": "generated"}
    letters = enumerate("".join(answers), start=1)
    return {row: Opinion(words[letter], "") for row, letter in letters if letter != "-"}


def test_accuracy_by_hand():
    """Rows are the real ones of a stratum, then its generated ones."""
    found = realism(key_of((3, 3), (3, 3)), said("rrg", "ggr", "rrr", "gr-"))
    assert (found["asked"], found["answered"], found["right"]) == (12, 11, 8)
    assert found["accuracy"] == pytest.approx(8 / 11)
    assert found["generated"] == {"asked": 6, "answered": 5, "called_generated": 3, "share": 3 / 5}
    assert found["real"] == {"asked": 6, "answered": 6, "called_generated": 1, "share": 1 / 6}
    lesion, healthy = found["strata"]
    assert (lesion["accuracy"], healthy["accuracy"]) == pytest.approx((4 / 6, 4 / 5))
    assert (lesion["generated"]["share"], lesion["real"]["share"]) == pytest.approx((2 / 3, 1 / 3))
    # Wilson's interval, for as many answers as their spread between 11 patients says (Korn and Graubard).
    effective = 10 * (norm.ppf(0.975) / t.ppf(0.975, 10)) ** 2
    assert found["ci95"] == pytest.approx(wilson(8 / 11 * effective, effective))
    assert found["guessing"]["verdict"] == "not told apart"


def test_whoever_calls_all_of_them_the_same_is_right_half_the_time():
    for letter in "rg":
        found = realism(key_of((20, 20)), said(40 * letter))
        assert found["accuracy"] == 0.5
        assert found["ci95"][0] < 0.5 < found["ci95"][1]
        assert found["guessing"]["verdict"] == "not told apart"


def test_verdicts_on_both_sides_of_guessing():
    key = key_of((20, 20))
    right, wrong = realism(key, said(20 * "r", 20 * "g")), realism(key, said(20 * "g", 20 * "r"))
    assert (right["accuracy"], right["guessing"]["verdict"]) == (1.0, "told apart")
    assert 0.85 < right["ci95"][0] < 1.0, "all right is not certain"
    assert (wrong["accuracy"], wrong["guessing"]["verdict"]) == (0.0, "told apart, but the wrong way round")


def test_answers_to_images_of_one_patient_count_as_less():
    """Ten patients with four images each, all four right or all four wrong."""
    answers = "".join("r" if n % 10 < 7 else "g" for n in range(20))
    answers += "".join("g" if n % 10 < 7 else "r" for n in range(20))
    alone, together = (realism(key_of((20, 20), patients=n), said(answers)) for n in (None, 10))
    assert alone["accuracy"] == together["accuracy"] == 0.7
    assert together["patients"] == 10
    width, wider = (one["ci95"][1] - one["ci95"][0] for one in (alone, together))
    assert wider > 1.7 * width


def test_silence_and_few_patients_have_no_interval():
    nothing = realism(key_of((3, 3)), {})
    assert (nothing["accuracy"], nothing["ci95"], nothing["answered"]) == (None, [None, None], 0)
    assert nothing["generated"]["share"] is None
    assert nothing["guessing"]["verdict"] == "undecided"
    two = realism(key_of((3, 3), patients=2), said("rrrggg"))
    assert (two["accuracy"], two["ci95"]) == (1.0, [None, None])
    assert "at least 3" in two["no_interval"]


def test_reasons_are_those_for_generated():
    opinions = {
        1: Opinion("generated", "grain"),
        2: Opinion("real", "looks fine"),
        3: Opinion("generated", ""),
    }
    assert realism(key_of((2, 2)), opinions)["reasons"] == {"grain": 1}
