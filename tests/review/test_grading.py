"""Zero tolerance: four grades, a second review of half the items, arbitration, and what stays."""

import uuid

import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.datasets.rejected import read_rejected
from mie.review.api import DIMENSIONS
from mie.review.apply import apply_reviews
from mie.review.events import items_of
from mie.review.figures import agreement
from mie.scoring.statistics import krippendorff_alpha

BEST = dict.fromkeys(DIMENSIONS, 3)


def test_only_samples_without_fault_stay(review, place, material, tmp_path):
    opened = review("grade")
    with opened.service.database.read() as connection:
        wanted = {sample: n for _, sample, n in items_of(connection, "grade")}
    twice = [sample for sample, n in wanted.items() if n == 2]
    once = [sample for sample, n in wanted.items() if n == 1]
    assert len(wanted) == len(Dataset(material / "dataset"))
    assert 0.25 < len(twice) / len(wanted) < 0.75  # half of them, drawn by their names

    a, b, judge = opened.person("Ada"), opened.person("Bob"), opened.person("Cy", "adjudicator")
    faulty = {**BEST, "region": 2}
    given = {
        once[0]: (faulty,),  # one fault, however small
        twice[0]: (BEST, faulty),  # nobody arbitrated
        twice[1]: (BEST, faulty),  # arbitrated: passes
        twice[2]: (BEST, faulty),  # arbitrated: falls
        twice[3]: (BEST,),  # the second review is missing
    }
    items = {}
    for at, person in enumerate((a, b)):
        seen = set()
        while new := [item for item in person.take("grade", 10) if item["id"] not in seen]:
            for item in new:
                seen.add(item["id"])
                items[item["sample_id"]] = item
                grades = given.get(item["sample_id"], (BEST, BEST))
                if at < min(len(grades), wanted[item["sample_id"]]):
                    person.answer(item, grades=grades[at])
    for sample, grades in ((twice[1], BEST), (twice[2], {**BEST, "quality": 1})):
        body = {"key": uuid.uuid4().hex, "version": items[sample]["version"]}
        answer = {"kind": "grade", "grades": grades}
        judge.post(f"/items/{items[sample]['id']}/consensus", 201, **body, answer=answer)

    applied = apply_reviews(place, material / "dataset", tmp_path / "new")
    reasons = {
        r.numbers["id"]: r.reason
        for r in read_rejected(tmp_path / "new/rejected.parquet")
        if r.gate == "review"
    }
    assert reasons[twice[0]] == "faults found by 1 of 2, not arbitrated: region"
    assert reasons[twice[2]] == "faults found by 1 of 1: quality"
    assert reasons[twice[3]] == "graded by 1 of 2: not passed yet"
    assert twice[1] not in reasons
    lost = {once[0], twice[0], twice[2], twice[3]}
    assert lost <= reasons.keys()
    assert all("of" in reason for reason in reasons.values())
    assert {s.id for s in Dataset(tmp_path / "new").samples()} == wanted.keys() - reasons.keys()
    assert applied.counts["divided"] == 0  # what is not settled has gone, with its reason


def test_all_four_grades_from_one_to_three(review):
    opened = review("grade")
    rater = opened.person("Ada")
    assert [q["id"] for q in rater.get("/tasks/grade")["questions"]] == list(DIMENSIONS)
    (item,) = rater.take("grade")
    for grades in ({"region": 3}, {**BEST, "region": 4}, {**BEST, "region": 0}, {**BEST, "beauty": 3}):
        body = {"key": uuid.uuid4().hex, "version": item["version"]}
        rater.post(f"/items/{item['id']}/answers", 422, **body, answer={"kind": "grade", "grades": grades})
    rater.answer(item, grades=BEST)


def test_agreement_is_of_ordered_grades():
    grades = {"x": ([1, 2], [3, 3]), "y": ([1, 3], [3, 2])}
    ratings = {
        item: {
            rater: {"kind": "grade", "grades": {**BEST, "region": pair[0], "quality": pair[1]}}
            for rater, pair in zip("AB", pairs, strict=True)
        }
        for item, pairs in grades.items()
    }
    found = agreement("grade", ratings)
    assert set(found["by"]) == set(DIMENSIONS)
    expected = krippendorff_alpha(np.array([[1.0, 1.0], [3.0, 3.0]]), "ordinal")
    assert found["by"]["region"]["krippendorff_alpha"] == pytest.approx(expected)
