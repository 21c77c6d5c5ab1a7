"""Which number a sample gets: pass@1 and pass@k, by both variants' rules."""

import json

import numpy as np
import pytest

from mie.errors import ConfigError, MieError
from mie.scoring.statistics import read_score_table
from tests.scoring.statistics.files import write_scores

SAMPLES = {
    "all": [0.2, 0.9, 0.5],
    "late": [None, 0.4, 0.6],
    "none": [None, None, None],
    "odd": ["too small", 0.3, None],
}
nan = np.nan


def test_paper(tmp_path):
    table = read_score_table(write_scores(tmp_path / "s", SAMPLES))
    np.testing.assert_array_equal(table.select("dice", 1).values, [0.2, nan, nan, nan])
    np.testing.assert_array_equal(table.select("dice", 3).values, [0.9, 0.6, nan, 0.3])
    assert not table.select("dice", 1).missing.any()


def test_as_released(tmp_path):
    table = read_score_table(write_scores(tmp_path / "s", SAMPLES, variant="as_released"))
    first = table.select("dice", 1)
    np.testing.assert_array_equal(first.values, [0.2, 0.4, 0.0, nan])
    np.testing.assert_array_equal(first.missing, [False, False, True, False])
    np.testing.assert_array_equal(first.scored, [True, True, True, False])
    np.testing.assert_array_equal(table.select("dice", 3).values, [0.9, 0.6, 0.0, 0.3])


def test_infinity_is_a_number(tmp_path):
    table = read_score_table(write_scores(tmp_path / "s", {"a": ["inf", 3.0], "b": [1.0, None]}))
    np.testing.assert_array_equal(table.select("dice", 2).values, [np.inf, 1.0])


def test_samples_belong_together_by_patient_and_by_image_where_that_is_unknown(tmp_path):
    patients = ["a/1", "a/1", "b/1", None, None, None]
    path = write_scores(tmp_path / "s", {n: [1.0] for n in "abcdef"}, patients=patients)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[4:]:
        line["case"] = "images/1.png"
    for line in (lines[2], lines[6]):  # a cohort may be in two data sets; two data sets may have an image 1
        line["group"] = {**line["group"], "source": "another"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert (clusters := read_score_table(path).clusters).codes.tolist() == [0, 0, 1, 2, 2, 3]
    assert (clusters.patients, clusters.unknown) == (2, 2)


def test_only_metrics_that_apply_somewhere(tmp_path):
    table = read_score_table(write_scores(tmp_path / "s", SAMPLES))
    assert table.keys == [("dice", 1), ("dice", 3)]
    with pytest.raises(ConfigError, match="dice@2") as caught:
        table.select("dice", 2)
    assert "dice@" in caught.value.fix


def test_what_is_no_file_of_scores(tmp_path):
    with pytest.raises(MieError, match="no scores"):
        read_score_table(tmp_path / "nothing")
    (tmp_path / "half").write_text('{"protocol": "miedb"')
    with pytest.raises(MieError, match="not a file of scores"):
        read_score_table(tmp_path / "half")
