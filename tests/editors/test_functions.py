"""Functions and editor objects as editors: what is recorded, and who may resume."""

import functools
import json

import numpy as np
import pytest
from PIL import Image

from mie.core.spec import parse_spec
from mie.datasets.dataset import Dataset
from mie.editors import Edited, Editor
from mie.editors.base import origin_of
from mie.editors.baselines import Identity
from mie.editors.run import run_editor
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.images.png import decode_png


def invert(image, instruction):
    return 255 - image


def darken(image, instruction):
    return image // 2


def strength(by):
    def editor(image, instruction):
        return image // by

    return editor


class Model:
    """A model object as users have one: parameters, and a method or `__call__`."""

    def __init__(self, by):
        self.by = by
        self._cache = object()

    def __call__(self, image, instruction):
        return image // self.by

    def predict(self, image, instruction):
        return image // self.by


class Mine(Editor):
    def __init__(self, by=1):
        self.by = by
        self.closed = False

    def edit(self, image, instruction, *, seed, history):
        return Edited(image // self.by)

    def about(self):
        return {"by": self.by}

    def close(self):
        self.closed = True


def info(folder):
    return json.loads((folder / "run.json").read_text())


def test_a_function_is_recorded_by_name_and_source(dataset, tmp_path):
    run = run_editor(dataset, invert, tmp_path / "run", limit=3)
    editor = info(tmp_path / "run")["editor"]
    assert editor["spec"] == "<tests.editors.test_functions:invert>"
    assert editor["name"] == "invert"
    assert len(editor["meta"]["source_sha256"]) == 64
    with pytest.raises(ConfigError):
        parse_spec(editor["spec"])
    for sample in Dataset(dataset)[:3]:
        output = decode_png(run.output_path(sample.id, 0).read_bytes())
        assert np.array_equal(output, 255 - sample.input)


def test_the_same_function_resumes_and_another_does_not(dataset, tmp_path):
    folder = tmp_path / "run"
    run_editor(dataset, invert, folder, limit=4)
    journal = folder / "edits.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    assert run_editor(dataset, invert, folder, limit=4).info["counts"]["done"] == 4
    for other in (darken, "identity", Mine()):
        with pytest.raises(MieError, match="another run"):
            run_editor(dataset, other, folder, limit=4)
    run_editor(dataset, "identity", tmp_path / "spec", limit=2)
    with pytest.raises(MieError, match="another run"):
        run_editor(dataset, invert, tmp_path / "spec", limit=2)


def test_a_changed_function_of_the_same_name_does_not_resume(dataset, tmp_path):
    run_editor(dataset, strength(2), tmp_path / "run", limit=2)
    run_editor(dataset, strength(2), tmp_path / "run", limit=2)
    with pytest.raises(MieError, match="another run") as caught:
        run_editor(dataset, strength(3), tmp_path / "run", limit=2)
    assert "with source" in caught.value.expected


@pytest.mark.parametrize(
    ("a", "same", "other"),
    [
        (strength(2), strength(2), strength(3)),
        (Model(2), Model(2), Model(3)),
        (Model(2).predict, Model(2).predict, Model(3).predict),
        (functools.partial(invert, x=1), functools.partial(invert, x=1), functools.partial(invert, x=2)),
        (Mine(2), Mine(2), Mine(3)),
        (lambda image, text, by=2: image // by, None, lambda image, text, by=3: image // by),
    ],
)
def test_origins_tell_values_apart(a, same, other):
    assert same is None or origin_of(a) == origin_of(same)
    assert origin_of(a).sha256 not in (None, origin_of(other).sha256)


def test_what_has_no_source_runs_once_and_is_not_resumed(dataset, tmp_path):
    scope = {}
    exec("def typed(image, instruction):\n    return image", scope)
    typed = scope["typed"]
    typed.__module__ = None
    assert origin_of(typed).label == "<callable>"
    folder = tmp_path / "run"
    assert run_editor(dataset, typed, folder, limit=2).info["editor"]["meta"]["source_sha256"] is None
    with pytest.raises(MieError, match="cannot be resumed"):
        run_editor(dataset, typed, folder, limit=2)


def test_an_editor_object_is_recorded_and_stays_open(dataset, tmp_path):
    mine = Mine(2)
    run = run_editor(dataset, mine, tmp_path / "run", limit=2)
    assert run.info["editor"]["spec"] == "<tests.editors.test_functions:Mine>"
    assert run.info["editor"]["meta"]["by"] == 2
    assert not mine.closed
    assert run_editor(dataset, Mine(2), tmp_path / "run", limit=2).info == run.info
    with pytest.raises(MieError, match="another run"):
        run_editor(dataset, Mine(3), tmp_path / "run", limit=2)


def test_seed_and_history_are_passed_to_functions_that_take_them(dataset, tmp_path):
    seen = []

    def noisy(image, instruction, *, seed, history):
        seen.append((seed, tuple(history)))
        return image

    run = run_editor(dataset, noisy, tmp_path / "run", limit=2, attempts=2)
    assert sorted(seen) == sorted((edit.seed, ()) for edit in run.edits().values())


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (lambda image: None, "returned nothing"),
        (lambda image: image / 255, "float64"),
        (lambda image: "a.png", "returned no image"),
        (lambda image: image[:2, :2], "implausible size"),
    ],
)
def test_wrong_results_are_failures_with_a_reason(dataset, tmp_path, result, reason):
    run = run_editor(dataset, lambda image, text: result(image), tmp_path / "run", limit=1)
    (edit,) = run.edits().values()
    assert edit.state == "failed"
    assert reason in edit.reason


def test_pictures_of_pillow_grey_arrays_and_edited_are_taken(dataset, tmp_path):
    kinds = {
        "pillow": lambda image, text: Image.fromarray(255 - image),
        "edited": lambda image, text: Edited(255 - image, {"note": "x"}),
    }
    sample = Dataset(dataset)[0]
    for name, function in kinds.items():
        run = run_editor(dataset, function, tmp_path / name, limit=1)
        assert np.array_equal(decode_png(run.output_path(sample.id, 0).read_bytes()), 255 - sample.input)
    grey = run_editor(dataset, lambda image, text: image[..., 0], tmp_path / "grey", limit=1)
    assert grey.edits()[sample.id, 0].meta["mode"] == "L"


@pytest.mark.parametrize(("editor", "found"), [(Identity, "the class Identity"), (3, "3"), (None, "None")])
def test_what_is_no_editor(dataset, tmp_path, editor, found):
    with pytest.raises(ConfigError, match="not an editor") as caught:
        run_editor(dataset, editor, tmp_path / "run")
    assert caught.value.found == found
    assert not (tmp_path / "run").exists()


def test_a_subset_is_run_recorded_and_resumed(dataset, tmp_path):
    ds = Dataset(dataset)
    part = ds.filter(split="test", bin=None).filter(id=ds.filter(split="test").ids()[:5])
    run = run_editor(part, invert, tmp_path / "run")
    assert sorted(k for k, _ in run.edits()) == sorted(part.ids())
    assert info(tmp_path / "run")["config"]["where"]["split"] == ["test"]
    assert Run.open(tmp_path / "run").sample_ids() == part.ids()
    assert run.info["dataset"]["samples"] == len(ds)
    assert run_editor(part, invert, tmp_path / "run").info == run.info
    with pytest.raises(MieError, match="another run"):
        run_editor(ds, invert, tmp_path / "run")
    assert "where" not in run_editor(ds, invert, tmp_path / "all", limit=1).info["config"]


def test_a_run_of_nothing_is_refused_with_the_reason(dataset, tmp_path):
    ds = Dataset(dataset)
    with pytest.raises(ConfigError, match="nothing to edit") as caught:
        run_editor(ds, "identity", tmp_path / "run", split="val")
    assert "test (" in caught.value.found
    with pytest.raises(ConfigError, match="nothing to edit") as caught:
        run_editor(ds.filter(modality="CT"), "identity", tmp_path / "run")
    assert caught.value.expected == "modality: CT"
    assert caught.value.found == f"modality: fundus ({len(ds)})"
    assert not (tmp_path / "run").exists()


def test_an_output_folder_that_cannot_be_written(dataset, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(MieError, match="cannot write here") as caught:
        run_editor(dataset, "identity", tmp_path / "file" / "run", limit=1)
    assert "a file at" in caught.value.found
    assert caught.value.fix == "choose another folder"
