"""The file of ratings: both forms, what is refused, and the raters' common order."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.errors import ConfigError, MieError
from mie.scoring.statistics.people import Rating, gather, read_human, read_ratings

ROWS = [
    {"sample_id": "s1", "rater": "ann", "run": "a", "rank": 1},
    {"sample_id": "s1", "rater": "ann", "run": "b", "rank": 2},
    {"sample_id": "s1", "rater": "bob", "run": "a", "rank": 1.5},
    {"sample_id": "s1", "rater": "bob", "run": "b", "rank": 1.5},
]


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(k for row in rows for k in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path, rows):
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("write", "name"), [(write_csv, "r.csv"), (write_jsonl, "r.jsonl")])
def test_both_forms_say_the_same(tmp_path, write, name):
    rows = [*ROWS, {"sample_id": 's, "2"', "rater": "Zoë", "run": "a", "score": 4, "comment": "fine"}]
    ratings = read_ratings(write(tmp_path / name, rows))
    assert len(ratings) == 5
    assert ratings[2] == Rating("s1", "bob", "a", 1.5, None)
    assert ratings[4] == Rating('s, "2"', "Zoë", "a", None, 4.0)


def test_model_is_another_word_for_run(tmp_path):
    rows = [{"sample_id": 7, "rater": 1, "model": "a", "score": "4.5", "criterion": "quality"}]
    assert read_ratings(write_jsonl(tmp_path / "r.jsonl", rows)) == [
        Rating("7", "1", "a", None, 4.5, "quality")
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_id": ""}, "no sample_id"),
        ({"rater": None}, "no rater"),
        ({"run": ""}, "no run or model"),
        ({"rank": ""}, "neither rank nor score"),
        ({"rank": 0}, "below 1"),
        ({"rank": "first"}, "rank is not a number"),
        ({"rank": "nan"}, "rank is not a number"),
        ({"score": "inf"}, "score is not a number"),
        ({"rank": True}, "rank is not a number"),
    ],
)
def test_bad_rows_are_named_with_their_line(tmp_path, change, message):
    path = write_jsonl(tmp_path / "r.jsonl", [ROWS[0], {**ROWS[1], **change}])
    with pytest.raises(MieError, match=message) as caught:
        read_ratings(path)
    assert caught.value.where == f"{path}:2"


def test_refused_files(tmp_path):
    with pytest.raises(MieError, match="answered twice"):
        read_ratings(write_csv(tmp_path / "twice.csv", [ROWS[0], ROWS[0]]))
    with pytest.raises(MieError, match="no ratings"):
        read_ratings(write_jsonl(tmp_path / "empty.jsonl", []))
    with pytest.raises(MieError, match="no file"):
        read_ratings(tmp_path / "none.csv")
    for name, data in {"a.jsonl": b"[1]\n", "b.jsonl": b"{\n", "c.csv": b"\xff\xfe\x00"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(MieError, match="not a file of ratings"):
            read_ratings(tmp_path / name)
    mixed = [ROWS[0], {**ROWS[1], "rank": None, "score": 3}]
    with pytest.raises(MieError, match="ranks and scores"):
        read_human(write_jsonl(tmp_path / "mixed.jsonl", mixed))


def test_several_questions(tmp_path):
    rows = [{**row, "criterion": c} for row in ROWS for c in ("quality", "accuracy")]
    path = write_csv(tmp_path / "r.csv", rows)
    with pytest.raises(ConfigError, match="several questions") as caught:
        read_human(path)
    assert "--criterion" in str(caught.value)
    assert read_human(path, "quality").ratings == 4
    with pytest.raises(ConfigError, match="beauty"):
        read_human(path, "beauty")


def test_consensus():
    ratings = [
        *(Rating("s", "ann", m, r, None) for m, r in (("a", 1), ("b", 2), ("c", 3))),
        *(Rating("s", "bob", m, r, None) for m, r in (("a", 2), ("b", 1), ("c", 3))),
        *(Rating("s", "cy", m, r, None) for m, r in (("c", 1), ("b", 2))),
    ]
    human = gather(ratings)
    # Cy left a out: only Ann and Bob count for all three, and they tie a with b.
    assert human.consensus("s", ["a", "b", "c"]).tolist() == [1.5, 1.5, 3]
    # For b and c alone all three count: 1, 1, 2 against 2, 2, 1.
    assert human.consensus("s", ["b", "c"]).tolist() == [1, 2]
    assert human.consensus("s", ["a", "d"]) is None
    assert (human.raters, human.models, human.scores) == (["ann", "bob", "cy"], ["a", "b", "c"], {})


def test_a_higher_score_is_a_better_place():
    human = gather([Rating("s", "ann", m, None, s) for m, s in (("a", 2.0), ("b", 5.0), ("c", 2.0))])
    assert human.consensus("s", ["a", "b", "c"]).tolist() == [2.5, 1, 2.5]
    assert human.scores["s"]["b"] == {"ann": 5.0}


@given(st.binary(max_size=200), st.sampled_from([".csv", ".jsonl"]))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data, ending):
    path = tmp_path_factory.mktemp("bytes") / f"r{ending}"
    path.write_bytes(data)
    try:
        ratings = read_ratings(path)
    except MieError:
        return
    assert all(np.isfinite(r.rank if r.rank is not None else r.score) for r in ratings)
