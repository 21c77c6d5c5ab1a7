"""A dataset filtered by a judge's grades of its own target images: ImgEdit's filter, and its quality row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from mie.cli import app
from mie.datasets.dataset import Dataset
from mie.datasets.rejected import read_rejected
from mie.editors.run import run_editor
from mie.errors import ConfigError, MieError
from mie.judges import JudgeOptions
from mie.scoring.filter import filter_dataset
from tests.judges.server import JudgeServer, texts_of
from tests.scoring.benchmarks.runs import structure, transformation, write_samples
from tests.scoring.benchmarks.scoring import imgedit

GRADES = {"good": (5, 5, 4), "fair": (3, 5, 5), "poor": (2, 2, 2), "mute": None}


def answer(body):
    asked = " ".join(texts_of(body))
    grades = next(grades for name, grades in GRADES.items() if f"Paint {name}." in asked)
    if grades is None:
        return "I would rather not say."
    names = ("Instruction adherence", "Editing quality", "Detail preservation")
    return "\n".join(f"{name}: {grade}" for name, grade in zip(names, grades, strict=True))


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A dataset, and the grades that a judge gives its target images."""
    folder = tmp_path_factory.mktemp("filter")
    samples = [replace(structure(name, n), prompt=f"Paint {name}.") for n, name in enumerate(GRADES)]
    dataset = write_samples(samples, folder / "dataset")
    run_editor(dataset.folder, "oracle", folder / "oracle", workers=1)
    with JudgeServer(answer) as server:
        document = imgedit(folder / "oracle", judge=JudgeOptions(f"openai:tiny,base_url={server.url}"))
    return folder, document


def test_the_quality_of_the_dataset_is_that_of_its_targets(graded):
    entry = graded[1]["groups"][0]["metrics"]["imgedit@1"]
    assert entry["mean"] == pytest.approx(
        (14 / 3 + 3 + 2) / 3
    )  # the second and third are capped at the first
    assert (entry["n"], entry["unscored"]) == (3, 1)


@pytest.mark.parametrize(("keep", "left"), [(False, {"good", "fair"}), (True, {"good", "fair", "mute"})])
def test_what_misses_the_threshold_goes_with_its_number(graded, tmp_path, keep, left):
    result = filter_dataset(graded[0] / "oracle", tmp_path / "new", threshold=3, keep_unscored=keep)
    assert {sample.id for sample in Dataset(tmp_path / "new").samples()} == left
    assert result.counts == {"kept": 2, "below the threshold": 1, "unscored": 1}
    rejected = {r.numbers["id"]: r for r in read_rejected(tmp_path / "new/rejected.parquet")}
    assert rejected["poor"].gate == "score"
    assert rejected["poor"].reason == "Overall 2.00, at least 3.00"
    assert rejected["poor"].numbers["imgedit"] == 2
    assert ("mute" in rejected) != keep
    if not keep:
        assert rejected["mute"].reason.startswith("unscored: judge unparseable")
    told = result.info["recipe"]["filter"]
    assert (told["metric"], told["threshold"]) == ("imgedit", 3)
    assert told["parent"]["digest"] == Dataset(graded[0] / "dataset").digest
    assert told["judge"]


def test_metrics_without_a_judge_and_samples_they_do_not_apply_to(tmp_path):
    samples = [structure("s0", 0), transformation("t0", 1)]
    write_samples(samples, tmp_path / "dataset")
    run_editor(tmp_path / "dataset", "oracle", tmp_path / "oracle", workers=1)
    assert CliRunner().invoke(app, ["score", str(tmp_path / "oracle"), "--workers", "1"]).exit_code in (0, 3)
    command = ["filter", str(tmp_path / "oracle"), "--benchmark", "miedb", "--metric", "dice"]
    done = CliRunner().invoke(app, [*command, "--threshold", "0.9", "-o", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert "does not apply" in done.output
    assert len(Dataset(tmp_path / "new")) == 2


def test_only_scores_of_the_target_images_filter_a_dataset(graded, tmp_path):
    run_editor(graded[0] / "dataset", "identity", tmp_path / "identity", workers=1)
    with pytest.raises(ConfigError, match="scores of an editor"):
        filter_dataset(tmp_path / "identity", tmp_path / "new", threshold=1)
    with pytest.raises(MieError, match="no such scores"):
        filter_dataset(graded[0] / "oracle", tmp_path / "new", threshold=1, benchmark="miedb")
    assert not (tmp_path / "new").exists()
