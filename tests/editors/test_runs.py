"""Reading runs back, also damaged and moved ones."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.datasets.dataset import Dataset
from mie.editors.runs import Run, edit_line, output_name, plain, read_edits, write_run_info
from mie.errors import MieError
from mie.records import Edit

DONE = Edit("0f", 1, 7, "done", 0.25, output_name("0f", 1), "ab" * 32, (3, 4), None, {"a": [1, None]})
FAILED = Edit("weird/../id", 0, 7, "failed", 0.5, reason="it \u2028 broke 🩻")


@pytest.fixture
def dataset(dataset):
    return Dataset(dataset)


@pytest.fixture
def run(dataset, tmp_path):
    folder = tmp_path / "here" / "run"
    folder.mkdir(parents=True)
    moved = shutil.copytree(dataset.folder, tmp_path / "here" / "eyes")
    known = {"path": str(moved), "relative_path": "../eyes", "name": "eyes", "digest": dataset.digest}
    write_run_info(
        folder,
        {
            "status": "complete",
            "dataset": known,
            "config": {"attempts": 3, "split": "train", "limit": 2},
        },
    )
    return Run.open(folder)


def test_an_edit_is_read_back_as_it_was(run):
    (run.folder / "edits.jsonl").write_bytes(edit_line(DONE) + edit_line(FAILED))
    assert run.edits() == {("0f", 1): DONE, ("weird/../id", 0): FAILED}
    assert run.edits()["0f", 1].size == (3, 4)


def test_the_later_line_wins_and_a_torn_one_is_not_there_yet(run):
    later = replace(DONE, state="failed", path=None, reason="x")
    path = run.folder / "edits.jsonl"
    path.write_bytes(edit_line(DONE) + edit_line(later) + edit_line(DONE)[:-1])
    assert run.edits() == {("0f", 1): later}
    path.unlink()
    assert run.edits() == {}


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b"3",
        b"{}",
        json.dumps({"sample_id": "a", "attempt": 0, "seed": 1, "state": "fine", "seconds": 1}).encode(),
        edit_line(replace(DONE, path="../../etc/passwd")).strip(),
        edit_line(replace(DONE, path=None)).strip(),
        edit_line(DONE).strip().replace(b"[3, 4]", b"[3]"),
        edit_line(DONE).strip().replace(b'"attempt": 1', b'"attempt": "1"'),
    ],
)
def test_a_line_that_is_none_is_named(run, line):
    (run.folder / "edits.jsonl").write_bytes(edit_line(FAILED) + line + b"\n")
    with pytest.raises(MieError, match="not an edit") as caught:
        run.edits()
    assert caught.value.where.endswith("edits.jsonl:2")


def test_samples_and_attempts(run, dataset):
    assert run.attempts == 3
    assert run.complete
    assert run.sample_ids() == dataset.table(["id"], "train")["id"][:2]


def test_output_paths_stay_in_the_folder(run):
    for name in ("../x", "/etc/passwd", "a/b", "a\0b", "x" * 300, "CON", ".."):
        path = run.output_path(name, 2)
        assert path.parent == run.folder / "outputs"
        assert path.name.endswith("_2.png")
        assert len(path.name) < 80
    assert run.output_path("00ff", 0) == run.folder / "outputs" / "00ff_0.png"
    assert run.output_path("A", 0) != run.output_path("a", 0)


def test_the_dataset_is_found_where_it_was_beside_or_where_one_says(run, dataset, tmp_path):
    assert run.dataset().digest == dataset.digest
    (tmp_path / "here").rename(tmp_path / "there")
    moved = Run.open(tmp_path / "there" / "run")
    assert moved.dataset().folder.samefile(tmp_path / "there" / "eyes")
    shutil.rmtree(tmp_path / "there" / "eyes")
    with pytest.raises(MieError, match="not there"):
        moved.dataset()
    assert moved.dataset(dataset.folder).digest == dataset.digest


def test_a_changed_dataset_is_refused(run):
    place = Dataset(run.info["dataset"]["path"]).folder / "dataset.json"
    body = json.loads(place.read_text())
    place.write_text(json.dumps({**body, "digest": "0" * 64}))
    with pytest.raises(MieError, match="has changed"):
        run.dataset()


def test_what_is_no_run(run, tmp_path):
    with pytest.raises(MieError, match="no run here"):
        Run.open(tmp_path)
    for text, word in (("{", "not valid JSON"), ("[]", "not a JSON object"), ("3", "not a JSON object")):
        (run.folder / "run.json").write_text(text)
        with pytest.raises(MieError, match=word):
            Run.open(run.folder)
    (run.folder / "run.json").write_text('{"schema_version": 9}')
    with pytest.raises(MieError, match="schema version"):
        Run.open(run.folder)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@given(json_like)
def test_anything_can_be_written_as_json(value):
    text = json.dumps(plain(value), allow_nan=False, ensure_ascii=False)
    text.encode()
    assert plain(json.loads(text)) == plain(value)


def test_numbers_that_are_not_finite_and_numpy():
    value = {"a": [float("inf"), -np.inf, np.float32("nan"), np.int64(3), np.array([1.5]), np.True_]}
    assert plain(value) == {"a": ["inf", "-inf", "nan", 3, [1.5], True]}


@given(st.binary(max_size=200))
def test_junk_is_a_mie_error(tmp_path_factory, junk):
    path = tmp_path_factory.getbasetemp() / "junk.jsonl"
    path.write_bytes(junk + b"\n")
    with pytest.raises(MieError):
        read_edits(path)
