"""Other tools' formats: there and back, and what becomes of bad records."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mie.datasets.rejected import read_rejected
from mie.errors import MieError
from mie.questions.formats import FORMATS, export_questions, import_questions
from mie.questions.record import Question, QuestionImage
from mie.questions.store import QuestionSet
from mie.questions.write import write_questions
from tests.conftest import crop

_KEPT = (
    *("id", "kind", "text", "options", "answer", "tolerance", "unit", "task", "modality", "submodality"),
    *("anatomy", "source", "case_id", "patient_id", "split", "seed", "license", "flags"),
)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> QuestionSet:
    first, second = (QuestionImage.of(crop(number, 40, 50)) for number in range(2))
    common: dict[str, Any] = {
        "modality": "MRI",
        "submodality": "FLAIR",
        "anatomy": "brain",
        "source": "made",
        "case_id": "c1",
        "patient_id": "p1",
        "license": "CC0",
    }
    questions = [
        Question(
            "a1",
            "closed",
            "Where is it?",
            "B. left",
            (first,),
            ("right", "B. left", "mid\tline"),
            task="LL",
            **common,
        ),
        Question(
            "a2",
            "closed",
            "Which\none is larger?",
            "Image 2",
            (first, second),
            ("Image 1", "Image 2"),
            task="LFD",
            **common,
        ),
        Question(
            "a3", "open", 'What is "it"?', "a glioma", (second,), task="DDR", flags=("reviewed",), **common
        ),
        Question(
            "a4", "number", "How wide?", "12.5", (first,), tolerance=1.5, unit="mm", task="LFD", **common
        ),
        Question(
            "a5",
            "box",
            "Where?",
            "[0.1, 0.2, 0.3, 0.4]",
            (first,),
            tolerance=0.5,
            task="LL",
            seed=9,
            **common,
        ),
    ]
    folder = tmp_path_factory.mktemp("asked") / "set"
    write_questions(questions, folder, name="asked")
    return QuestionSet(folder)


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_round_trip_keeps_the_questions(name: str, asked: QuestionSet, tmp_path: Path) -> None:
    export_questions(asked, name, tmp_path / "out")
    back = import_questions(tmp_path / "out", name, tmp_path / "back")
    assert back.info["rejected"] == {}
    found = {one.id: one for one in back}
    assert len(found) == len(asked)
    for one in asked:
        other = found[one.id]
        for field in _KEPT:
            expected = getattr(one, field)
            assert getattr(other, field) == expected, (name, field)
        assert [image.digest for image in other.images] == [image.digest for image in one.images]
        assert not other.masks


def test_what_would_tell_the_answer_stays_behind(asked: QuestionSet, tmp_path: Path) -> None:
    for name in FORMATS:
        for path in export_questions(asked, name, tmp_path / name):
            assert b'"evidence"' not in path.read_bytes()
            assert b"masks" not in path.read_bytes()
    with pytest.raises(MieError, match="taken"):
        export_questions(asked, "llava", tmp_path / "llava")
    with pytest.raises(MieError, match="vlmevalkit"):
        export_questions(asked, "vlmeval", tmp_path / "x")


def test_the_benchmarks_own_records_are_read(tmp_path: Path) -> None:
    """As the released files have them: a letter, a path or a list, names of tasks, labels of modalities."""
    (tmp_path / "img").mkdir()
    for number in range(2):
        (tmp_path / "img" / f"{number}.png").write_bytes(QuestionImage.of(crop(number, 40, 50)).data)
    record = {
        "question": "Which lobe?",
        "options": ["A. frontal", "B. temporal", "C. parietal", "D. occipital", "E. none"],
        "answer": "C",
        "image_path": ["img/0.png", "img/1.png"],
        "task_label": "Lesion Localisation",
        "clinical_phase": "Lesion Identification and Localisation",
        "modality_type": ["MRI", "T2W"],
        "source_file": "some.json",
    }
    bad = [
        {**record, "answer": "F"},
        {**record, "options": ["x", "X", "y"], "answer": "y"},
        {**record, "image_path": "img/9.png"},
        {**record, "image_path": "../secret.png"},
        {key: value for key, value in record.items() if key != "question"},
        "not a record",
    ]
    open_one = {**record, "options": [], "answer": "a stroke", "image_path": "img/0.png", "task_label": None}
    (tmp_path / "qa.json").write_text(json.dumps([record, open_one, *bad]))
    found = import_questions(tmp_path / "qa.json", "omnibrain", tmp_path / "set")
    assert len(found) == 2
    first = found.filter(kind="closed")[0]
    assert (first.answer, first.letter, first.task, first.phase) == ("parietal", "C", "LL", "LIL")
    assert (first.modality, first.submodality, first.source, len(first.images)) == (
        "MRI",
        "T2W",
        "some.json",
        2,
    )
    reasons = [one.reason for one in read_rejected(found.folder / "rejected.parquet")]
    assert len(reasons) == len(bad)
    for said in (
        "key is not among the options",
        "two options are equal",
        "missing",
        "leaves its folder",
        "question",
    ):
        assert any(said in reason for reason in reasons), said


def test_only_bad_records_are_no_set(tmp_path: Path) -> None:
    (tmp_path / "qa.json").write_text(json.dumps([{"question": "?", "answer": "A", "image_path": "no.png"}]))
    with pytest.raises(MieError):
        import_questions(tmp_path / "qa.json", "omnibrain", tmp_path / "set")
    assert not (tmp_path / "set" / "questions.json").exists()
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(MieError, match="JSON"):
        import_questions(tmp_path / "bad.json", "omnibrain", tmp_path / "other")


def test_an_import_can_be_curated(asked: QuestionSet, tmp_path: Path) -> None:
    from mie.questions.recipe import CurateConfig

    export_questions(asked, "llava", tmp_path / "out")
    config = CurateConfig(
        keep=2, near_duplicates=False, most_same_answer=1.0, most_above_chance=10, blind="off"
    )
    assert len(import_questions(tmp_path / "out", "llava", tmp_path / "two", curate=config)) == 2
    other = CurateConfig(domain=("retina",), near_duplicates=False, blind="off")
    with pytest.raises(MieError):
        import_questions(tmp_path / "out", "llava", tmp_path / "none", curate=other)


def test_vlmevalkits_columns_hold_what_its_reader_wants(asked: QuestionSet, tmp_path: Path) -> None:
    """It reads with pandas, decodes `image`, and takes letters and `answer` as they are."""
    pandas = pytest.importorskip("pandas")
    (path,) = export_questions(asked.filter(kind="closed"), "vlmevalkit", tmp_path / "out")
    rows = pandas.read_csv(path, sep="\t")
    assert list(rows["index"]) == [0, 1]
    assert list(rows["answer"]) == ["B", "B"]
    assert rows["C"][0] == "mid\tline"
    assert base64.b64decode(rows["image"][0]) == asked.filter(id="a1")[0].images[0].data
    assert len(json.loads(rows["image"][1])) == 2
    assert {"category", "l2-category", "split", "hint"} <= set(rows.columns)


def test_the_lmms_eval_task_runs_on_its_own(asked: QuestionSet, tmp_path: Path) -> None:
    """Its YAML names functions of the module beside it, which need nothing of this package."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))
    export_questions(asked, "lmms-eval", tmp_path / "task")
    task = Loader((tmp_path / "task" / "asked.yaml").read_text()).get_single_data()
    spec = importlib.util.spec_from_file_location("utils", tmp_path / "task" / "utils.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for key in ("doc_to_visual", "doc_to_text", "doc_to_target", "process_results"):
        assert callable(getattr(module, task[key].removeprefix("utils.")))
    assert (task["output_type"], task["test_split"]) == ("generate_until", "test")
    assert Path(task["dataset_kwargs"]["data_files"]["test"]).is_file()
    doc = {"question": "Where?", "options": ["left", "right"], "letter": "B", "answer": "right"}
    assert "B. right" in module.doc_to_text(doc)
    assert module.process_results(doc, ["(B) right"]) == {"accuracy": 1.0}
    assert module.process_results(doc, ["I think it is B or A"]) == {"accuracy": 0.0}
    assert module.process_results({**doc, "options": []}, ["Right."]) == {"accuracy": 1.0}
