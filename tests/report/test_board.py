"""One row for each model: means and spreads against plain sums, ranks, the panel's rule, the joint table."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mie.cli import app
from mie.datasets.dataset import Dataset
from mie.datasets.write import write_dataset
from mie.errors import ConfigError, MieError
from mie.images.png import encode_png
from mie.perspectives.perception.samples import Perception
from mie.records import Sample
from mie.report.board import latex, markdown, write_board
from mie.scoring.benchmarks import BENCHMARKS
from mie.scoring.benchmarks.miedb import PUBLISHED
from mie.scoring.board import FIRST, ModelBoard, document, read_board
from mie.scoring.score import summarise
from mie.scoring.scores import (
    encode_line,
    read_score_table,
    scores_path,
    summary_path,
    write_scores_file,
    write_summary,
)
from mie.scoring.statistics.people import Human, Rating, gather
from tests.conftest import make_case
from tests.report.test_page import Reader

CASES = 6
HOSTILE = "<script>alert('m')</script> & 5%_"
PERCEPTION = {"dice": 0.0, "p_acc": 0.0, "b_psnr": 0.0, "b_ssim": 0.0}


def samples() -> list[Sample]:
    """Of each image a perception sample, and a removal of the same target."""
    found = []
    for number in range(CASES):
        modality = ("fundus", "CT", "endoscopy")[number % 3]
        case = make_case(number, 1, modality=modality, patient_id=f"p{number // 2}")
        paint = next(iter(Perception().samples(case, "test", 5)))
        found.append(paint)
        found.append(
            replace(
                paint,
                id=f"{number:016x}",
                perspective="modification",
                task="removal",
                target_image=paint.input,
                colour=None,
                prompt="Remove it.",
            )
        )
    return found


def write_run(
    dataset: Dataset,
    folder: Path,
    name: str,
    dice: Sequence[Sequence[float | None]],
    rubric: Sequence[Sequence[float]],
    *,
    only: str | None = None,
    variant: str = "paper",
    judge: str = "judge",
) -> Path:
    """A scored run with these numbers: an attempt of None has no output."""
    attempts = len(dice[0])
    (folder / "outputs").mkdir(parents=True)
    (folder / "edits.jsonl").write_bytes(b"")
    info = {
        "schema_version": 1,
        "status": "complete",
        "dataset": {
            "path": str(dataset.folder.resolve()),
            "relative_path": "../dataset",
            "name": dataset.name,
            "digest": dataset.digest,
        },
        "editor": {"spec": f"folder:{name}", "name": name},
        "config": {"attempts": attempts, "split": None, "limit": None},
        "counts": {"done": 1, "samples": 1},
    }
    (folder / "run.json").write_text(json.dumps(info))
    lines, seen = [], {"perception": 0, "modification": 0}
    for sample in dataset.samples():
        row = seen[sample.perspective]
        seen[sample.perspective] += 1
        if only not in (None, sample.perspective):
            continue
        tries = []
        for k in range(attempts):
            value = dice[row][k] if sample.perspective == "perception" else rubric[row][k]
            if value is None:
                tries.append({"k": k, "metrics": {}, "unscored": {"*": "no output"}})
                continue
            metrics = {"rubric": value}
            if sample.perspective == "perception":
                psnr = 30.0 + value if row else "inf"
                metrics = {"dice": value, "p_acc": float(value > 0.8), "b_psnr": psnr, "b_ssim": 0.9}
            tries.append({"k": k, "metrics": metrics, "unscored": {}})
            (folder / "outputs" / f"{sample.id}_{k}.png").write_bytes(encode_png(sample.input))
        names = list(PERCEPTION) if sample.perspective == "perception" else ["rubric"]
        keys = ("perspective", "task", "modality", "anatomy", "target", "source")
        lines.append(
            {
                "id": sample.id,
                "group": {key: getattr(sample, key) for key in keys},
                "patient": sample.patient_id,
                "case": sample.case_id,
                "applies": names,
                "attempts": tries,
            }
        )
    who = {
        "model": judge,
        "provider": "local",
        "answered_by": [],
        "parameters": {},
        "prompts": {"miedb_rubric@2": "0" * 64},
        "metrics": ["rubric"],
    }
    header = {
        "protocol": "miedb",
        "variant": variant,
        "version": 1,
        "dataset_digest": dataset.digest,
        "attempts": attempts,
        "metrics": [*PERCEPTION, "rubric"],
        "judge": who,
    }
    path = scores_path(folder, "miedb", variant)
    write_scores_file(path, header, (encode_line(line).encode() for line in lines))
    body = {"protocol": "miedb", "variant": variant, "n_samples": len(lines), "judge": who}
    body["groups"] = summarise(read_score_table(path))
    write_summary(summary_path(folder, "miedb", variant), body)
    return folder


GOOD = [[0.9, 0.7, 0.8]] * 3 + [[0.85, 0.95, 0.9], [0.5, 0.9, 0.4], [0.82, None, 0.9]]
POOR = [[0.3, 0.5, 0.1], [0.2, 0.2, 0.2], [0.9, 0.1, 0.2], [0.4, 0.3, 0.5], [None] * 3, [0.1, 0.2, 0.3]]
GOOD_RUBRIC = [[80.0] * 3, [90.0] * 3, [60.0] * 3, [75.0] * 3, [80.0] * 3, [10.0] * 3]
POOR_RUBRIC = [[80.0] * 3, [20.0] * 3, [90.0] * 3, [20.0] * 3, [20.0] * 3, [85.0] * 3]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("board") / "dataset"
    terms = {"name": "CC0-1.0", "use": "open", "basis": "stated"}
    about = {"name": "board", "description": "", "recipe": {"name": "board"}, "licenses": {"test": terms}}
    write_dataset(samples(), folder, deidentified=True, **about)
    return Dataset(folder)


@pytest.fixture(scope="module")
def runs(dataset: Dataset) -> list[Path]:
    root = dataset.folder.parent
    return [
        write_run(dataset, root / "poor", HOSTILE, POOR, POOR_RUBRIC),
        write_run(dataset, root / "good", "careful", GOOD, GOOD_RUBRIC),
    ]


@pytest.fixture(scope="module")
def human(dataset: Dataset) -> Human:
    """Two raters who prefer the good one but for one sample; a ranking of one model says nothing."""
    ratings = []
    for number in range(4):
        for rater in "AB":
            flip = number == 3 and rater == "B"
            order = {"careful": 2 if flip else 1, "poor": 1 if flip else 2}
            ratings += [Rating(f"{number:016x}", rater, run, rank, None) for run, rank in order.items()]
    return gather(ratings)


@pytest.fixture(scope="module")
def board(runs: list[Path], human: Human) -> ModelBoard:
    return read_board(runs, human=human)


def numbers(board: ModelBoard, metric: str, how: str) -> dict[str, tuple[float, int, int]]:
    at = next(n for n, (column, _) in enumerate(board.columns) if column.metric == metric)
    found = {model.name: model.cells[how, at].mean for model in board.models if (how, at) in model.cells}
    return {name: (mean.mean, mean.n, mean.unscored) for name, mean in found.items()}


def test_means_over_attempts_are_plain_sums_and_a_missing_attempt_is_no_number(board: ModelBoard) -> None:
    first = [row[0] for row in GOOD]
    assert numbers(board, "dice", "pass@1")["careful"] == (pytest.approx(np.mean(first)), 6, 0)
    best = [max(v for v in row if v is not None) for row in GOOD]
    assert numbers(board, "dice", "pass@3")["careful"] == (pytest.approx(np.mean(best)), 6, 0)
    means = [np.mean([v for v in row if v is not None]) for row in GOOD]
    assert numbers(board, "dice", "mean@3")["careful"] == (pytest.approx(np.mean(means)), 6, 0)
    poor = [np.mean(row) for row in POOR if row[0] is not None]
    assert numbers(board, "dice", "mean@3")[HOSTILE] == (pytest.approx(np.mean(poor)), 5, 1)


def test_the_spread_is_that_of_the_attempts_means_over_the_same_samples(board: ModelBoard) -> None:
    whole = np.array([row for row in GOOD if None not in row])
    expected = whole.mean(axis=0).std(ddof=1)
    careful = next(model for model in board.models if model.name == "careful")
    assert careful.cells["mean@3", 0].spread == pytest.approx(expected)
    assert np.isnan(careful.cells["pass@3", 0].spread)


def test_every_mean_has_its_patients_and_rows_are_ranked(board: ModelBoard) -> None:
    assert [model.name for model in board.models] == ["careful", HOSTILE]
    for model in board.models:
        for cell in model.cells.values():
            assert cell.mean.patients is not None
            assert cell.mean.n + cell.mean.unscored > 0


def test_people_fill_the_rank_over_rankings_of_all_models(board: ModelBoard) -> None:
    found = numbers(board, "rank", FIRST)
    assert found["careful"] == (pytest.approx((7 * 1 + 2) / 8), 8, 0)
    assert found[HOSTILE][0] == pytest.approx((7 * 2 + 1) / 8)


def test_ratings_of_samples_that_changed_are_named(runs: list[Path], human: Human) -> None:
    orders = {**human.orders, "gone": {"ann": dict.fromkeys(human.models, 1.0)}}
    found = read_board(runs, human=replace(human, orders=orders))
    (note,) = [note for note in found.notices if "not among the scored ones" in note]
    assert note.startswith("1 rated sample is not among")
    assert "(gone)" in note
    plain = read_board(runs, human=human)
    assert [m.cells for m in found.models] == [m.cells for m in plain.models]
    assert not any("not among the scored ones" in note for note in plain.notices)


def test_published_rows_stand_apart_and_say_where_they_do_not_compare(board: ModelBoard) -> None:
    values = dict(board.published_values())
    assert values["OmniGen2-MIE"] == [0.831, 0.737, 28.1, 0.917, 65.9, 1.4, 22.6, 0.685]
    assert len(values) == len(PUBLISHED.rows)
    labels = [metric.label for n, (_, metric) in enumerate(board.columns) if not board.compares(n)]
    assert labels == ["B-PSNR", "B-SSIM"]


def test_the_joint_table_counts_lesions_that_both_tasks_asked_about(board: ModelBoard) -> None:
    assert board.joint is not None
    assert board.joint.words == ("perception: DICE > .800", "modification: Rubric ≥ 75.0")
    counts = {count.model: count for count in board.joint.counts}
    careful, poor = counts["careful"], counts[HOSTILE]
    # DICE > .8 at pass@1: rows 0, 1, 2, 3, 5; rubric >= 75: rows 0, 1, 3, 4.
    assert (careful.both, careful.first_only, careful.second_only, careful.neither) == (3, 2, 1, 0)
    assert careful.given_first == pytest.approx(3 / 5)
    assert careful.given_not_first == 1.0
    # Row 4 has no output for perception: it is no failure, it has no partner.
    assert (poor.both, poor.first_only, poor.second_only, poor.neither) == (1, 0, 2, 2)
    assert poor.unpaired == 1
    assert poor.patients == 3


def test_a_threshold_can_be_given_and_an_unknown_metric_is_named(runs: list[Path]) -> None:
    found = read_board(runs, success={"rubric": 85.0}).joint
    assert found is not None
    assert {c.model: c.both + c.second_only for c in found.counts}["careful"] == 1
    with pytest.raises(ConfigError, match="rubik"):
        read_board(runs, success={"rubik": 1.0})


def test_runs_of_one_perspective_each_make_one_row(dataset: Dataset, tmp_path: Path) -> None:
    write_run(dataset, tmp_path / "a", "split", GOOD, GOOD_RUBRIC, only="perception")
    write_run(dataset, tmp_path / "b", "split", GOOD, GOOD_RUBRIC, only="modification")
    board = read_board([tmp_path / "a", tmp_path / "b"])
    (model,) = board.models
    assert {n for how, n in model.cells if how == FIRST} == {0, 1, 2, 3, 4}
    both = read_board([tmp_path / "a", f"again={tmp_path / 'a'}"])
    assert [model.name for model in both.models] == ["again", "split"]
    with pytest.raises(ConfigError, match="two runs of one name"):
        read_board([f"x={tmp_path / 'a'}", f"x={tmp_path / 'a'}"])


def test_what_does_not_compare_is_refused_or_said(dataset: Dataset, runs: list[Path], tmp_path: Path) -> None:
    other = write_run(dataset, tmp_path / "other", "other", GOOD, GOOD_RUBRIC, judge="another")
    with pytest.raises(MieError, match="Rubric were scored by different judges"):
        read_board([*runs, other])
    assert "do not compare" in read_board([*runs, other], force=True).notices[0]
    path = scores_path(other, "miedb", "paper")
    path.write_text(path.read_text().replace(dataset.digest, "0" * 64))
    with pytest.raises(MieError, match="different datasets"):
        read_board([*runs, other])
    with pytest.raises(MieError, match="no such scores"):
        read_board(runs, variant="as_released")
    with pytest.raises(ConfigError, match="no run"):
        read_board([])


def test_as_released_counts_a_sample_without_output_as_0_at_every_k(dataset: Dataset, tmp_path: Path) -> None:
    write_run(dataset, tmp_path / "r", "r", POOR, POOR_RUBRIC, variant="as_released")
    board = read_board([tmp_path / "r"], variant="as_released")
    rows = [np.mean(row) if row[0] is not None else 0.0 for row in POOR]
    assert numbers(board, "dice", "mean@3")["r"] == (pytest.approx(np.mean(rows)), 6, 0)
    assert all(board.compares(n) for n in range(len(board.columns)))


@pytest.fixture(scope="module")
def folder(board: ModelBoard, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_board(board, tmp_path_factory.mktemp("page") / "out").parent


def test_the_page_is_whole_and_escapes_names(folder: Path) -> None:
    page = (folder / "index.html").read_text(encoding="utf-8")
    reader = Reader(page)
    assert reader.open == []
    assert "<script>alert" not in page
    text = " ".join(" ".join(reader.text).split())
    assert HOSTILE in text
    for words in ("Perception", "pass@1", "mean@3", "± ", "3 patients", "published", "OmniGen2-MIE"):
        assert words in text
    for image in reader.all("img"):
        assert (folder / str(image["src"])).is_file()
        assert image["alt"]


def test_the_panel_shows_worst_median_and_best_by_the_models_mean(folder: Path, dataset: Dataset) -> None:
    rows = list(csv.DictReader((folder / "tables/panel.csv").open(encoding="utf-8")))
    ids = [sample.id for sample in dataset.samples() if sample.perspective == "perception"]
    # The sample that one model has no output for is not among the candidates.
    means = {
        sample: (good[0] + poor[0]) / 2
        for sample, good, poor in zip(ids, GOOD, POOR, strict=True)
        if poor[0] is not None
    }
    order = sorted(means, key=lambda sample: (means[sample], sample))
    expected = {"worst": order[0], "median": order[len(order) // 2], "best": order[-1]}
    found = {row["rank"]: row["sample_id"] for row in rows if row["perspective"] == "perception"}
    assert found == expected
    assert (folder / "plots/panel_perception.png").stat().st_size > 1000
    assert (folder / "plots/panel_modification.png").is_file()


def test_the_files_hold_the_same_numbers(folder: Path, board: ModelBoard) -> None:
    rows = list(csv.DictReader((folder / "tables/board.csv").open(encoding="utf-8")))
    dice = [r for r in rows if r["metric"] == "dice" and r["at"] == "mean@3" and r["model"] == "careful"]
    assert float(dice[0]["mean"]) == numbers(board, "dice", "mean@3")["careful"][0]
    assert float(dice[0]["spread_over_attempts"]) > 0
    assert {row["model"] for row in rows if row["published"]} == {model for model, _ in PUBLISHED.rows}
    text = markdown(board)
    assert "Perception: DICE" in text
    assert "careful" in text
    assert "(published)" in text
    tex = latex(board)
    assert r"\multicolumn{4}{c}{Perception}" in tex
    assert r"\cmidrule(lr){2-5}" in tex
    assert tex.count(r"\begin{tabular}") == 3
    lines = [line for line in tex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count(" & ") for line in lines} == {len(board.columns)}
    json.dumps(document(board), default=str)


def test_the_folder_is_written_again_and_a_foreign_one_is_left_alone(
    board: ModelBoard, folder: Path, tmp_path: Path
) -> None:
    before = (folder / "index.html").read_bytes()
    write_board(board, folder)
    assert (folder / "index.html").read_bytes() == before
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(MieError):
        write_board(board, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_without_its_dataset_the_board_has_numbers_and_says_why_there_are_no_images(
    dataset: Dataset, runs: list[Path], tmp_path: Path
) -> None:
    copy = shutil.copytree(runs[0], tmp_path / "alone")
    info = json.loads((copy / "run.json").read_text())
    info["dataset"] |= {"path": "gone", "relative_path": "gone"}
    (copy / "run.json").write_text(json.dumps(info))
    index = write_board(read_board([copy]), tmp_path / "out", published=False)
    text = index.read_text(encoding="utf-8")
    assert "No galleries for dataset" in text
    assert "OmniGen2-MIE" not in text


def test_the_verb_prints_tables_json_and_the_page(runs: list[Path], tmp_path: Path) -> None:
    places = [f"mine={runs[1]}", str(runs[0])]
    result = CliRunner().invoke(app, ["board", *places, "--success", "rubric=75"])
    assert result.exit_code == 0, result.output
    assert "mine" in result.output
    assert "(published)" in result.output
    result = CliRunner().invoke(app, ["board", *places, "--json"])
    body = json.loads(result.output)
    assert [model["model"] for model in body["models"]] == ["mine", HOSTILE]
    assert body["joint"]["models"][0]["lesions"] == 6
    assert body["columns"][0] == {"metric": "dice", "label": "DICE", "group": {"perspective": "perception"}}


def test_every_benchmark_has_columns_that_its_published_rows_fill() -> None:
    for name in BENCHMARKS.targets:
        benchmark = BENCHMARKS[name]
        published = benchmark.load("published")
        for column in benchmark.model_columns:
            assert benchmark.metric(column.metric).name == column.metric
        if published is not None and benchmark.model_columns:
            columns = [column.metric for column in benchmark.model_columns]
            assert {metric.name for metric in published.columns} <= set(columns)
