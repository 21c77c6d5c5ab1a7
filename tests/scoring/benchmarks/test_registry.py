"""The registry, the published rows, one-call scoring and the pandas frame."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest

import mie.core.registry
import mie.scoring.benchmarks
from mie.errors import ConfigError, ImageError, MieError
from mie.images.png import encode_png
from mie.judges import open_prompts
from mie.scoring.benchmarks import BENCHMARKS
from mie.scoring.benchmarks.miedb import BENCHMARK, MIEDB, MIEDB_ABLATION
from mie.scoring.benchmarks.miedb.score import score_triplet
from mie.scoring.results import read_scores
from tests.scoring.benchmarks.runs import (
    attempt_at,
    holistic,
    lines_of,
    structure,
    transformation,
    write_run,
    write_samples,
)
from tests.scoring.benchmarks.scoring import miedb as score_run


def test_registry():
    assert BENCHMARKS.names() == ["dialogue", "imgedit", "medebench", "miedb", "omni-iie", "volume"]
    assert BENCHMARKS["miedb"] is BENCHMARK
    with pytest.raises(ConfigError, match="no benchmark named 'miebd'") as caught:
        BENCHMARKS["miebd"]
    assert "'miedb'" in caught.value.fix


@pytest.mark.parametrize("name", BENCHMARKS.names())
def test_every_part_of_a_benchmark_can_be_imported(name):
    benchmark = BENCHMARKS[name]
    assert benchmark.name == name
    for part in ("measure", "questions", "aggregate", "setup", "tables", "published", "importer", "section"):
        assert benchmark.load(part) is not None or getattr(benchmark, part) is None
    questions = benchmark.load("questions")
    if questions is None:
        assert benchmark.judged == ()
    else:
        # Some numbers are only asked for in other words than the default ones.
        asked = {*questions.metrics, *questions.using(open_prompts("context")).metrics}
        assert asked >= set(benchmark.judged)
    metrics = benchmark.find_metrics()
    assert set(benchmark.main) <= set(metrics)
    shown = {column for board in benchmark.boards if not board.spread for column in board.columns}
    assert shown <= {*metrics, *(metric.name for metric in benchmark.summary_metrics)}
    if benchmark.published is None:
        return  # it is ours: no paper has numbers of it
    for metric in benchmark.load("published").columns:
        assert metric.label
    table = benchmark.load("published").table()
    assert len(table.rows) == len(benchmark.load("published").rows) > 5


@pytest.mark.parametrize(
    ("group", "target"),
    [
        ("mie.benchmarks", "mie.scoring.benchmarks.miedb:BENCHMARK"),
        ("mie.protocols", "mie.scoring.benchmarks.miedb:BENCHMARK"),
    ],
)
def test_other_packages_bring_theirs(monkeypatch, group, target):
    points = [EntryPoint("mine", target, group), EntryPoint("miedb", "not:ours", group)]

    def entry_points(group):
        return [point for point in points if point.group == group]

    for module in (mie.core.registry, mie.scoring.benchmarks):
        monkeypatch.setattr(module, "entry_points", entry_points)
    assert BENCHMARKS.names() == ["dialogue", "imgedit", "medebench", "miedb", "mine", "omni-iie", "volume"]
    assert BENCHMARKS["mine"] is BENCHMARKS["miedb"] is BENCHMARK


def test_published_rows():
    by_model = {row.model: row for row in MIEDB}
    assert len(by_model) == 10
    assert (by_model["OmniGen2-MIE"].dice, by_model["OmniGen2-MIE"].b_psnr) == (0.831, 28.1)
    assert max(MIEDB, key=lambda row: row.dice).model == "OmniGen2-MIE"
    # The two tables share their first and last row.
    for ablation, row in (
        (MIEDB_ABLATION[0], by_model["OmniGen2"]),
        (MIEDB_ABLATION[-1], by_model["OmniGen2-MIE"]),
    ):
        for name in ("dice", "p_acc", "rubric", "psnr", "ssim"):
            assert getattr(ablation, name) == getattr(row, name)


@pytest.mark.parametrize("variant", ["paper", "as_released"])
@pytest.mark.parametrize("made", [structure("aa", 0), holistic("aa", 1), transformation("aa", 2)])
def test_a_triplet_scores_as_in_a_run(tmp_path, made, variant):
    output = attempt_at(made, 3)
    run = write_run(tmp_path / "run", write_samples([made], tmp_path / "dataset"), {"aa": [output]})
    score_run(run, variant=variant)
    line = lines_of(run, variant)["aa"]["attempts"][0]
    found = score_triplet(
        made.input, made.prompt, made.target_image, output, colour=made.colour, variant=variant
    )
    assert found["metrics"] == line["metrics"]
    assert found["perspective"] == made.perspective
    assert found["drift"] == line["drift"]


def test_a_triplet_of_files_and_with_its_own_mask(tmp_path):
    made = structure("aa", 0)
    for name, pixels in (("i", made.input), ("o", made.target_image)):
        (tmp_path / f"{name}.png").write_bytes(encode_png(pixels))
    whole = score_triplet(
        tmp_path / "i.png", "Paint it.", tmp_path / "o.png", str(tmp_path / "o.png"), colour="red"
    )
    assert whole["metrics"]["dice"] == 1.0
    empty = np.zeros(made.input.shape[:2], bool)
    other = score_triplet(made.input, "", made.target_image, made.target_image, mask=empty, colour="red")
    assert other["metrics"]["dice"] < 1e-6


def test_a_triplet_that_makes_no_sense():
    made = structure("aa", 0)
    images = (made.input, "Paint it.", made.target_image, made.input)
    with pytest.raises(ConfigError, match="colour"):
        score_triplet(*images, perspective="perception")
    with pytest.raises(ConfigError, match="colour"):
        score_triplet(*images, colour="pink")
    with pytest.raises(ConfigError, match="perspective"):
        score_triplet(*images, perspective="perseption")
    with pytest.raises(ConfigError, match="variant"):
        score_triplet(*images, variant="pape")
    with pytest.raises(ImageError, match="differ in size"):
        score_triplet(made.input, "", made.target_image[1:], made.input)
    with pytest.raises(ImageError, match="mask and input"):
        score_triplet(*images, colour="red", mask=np.zeros((2, 2), bool))
    with pytest.raises(ImageError, match="not an image"):
        score_triplet(made.input / 255, "", made.target_image, made.input)


def test_frame(tmp_path):
    pytest.importorskip("pandas")
    samples = [structure("aa", 0), holistic("bb", 1), transformation("cc", 2)]
    made = {s.id: [s.target_image, None] for s in samples}
    run = write_run(tmp_path / "run", write_samples(samples, tmp_path / "dataset"), made)
    with pytest.raises(MieError, match="no such scores") as caught:
        read_scores(run)
    assert "mie score" in caught.value.fix
    score_run(run, variant="as_released")
    frame = read_scores(run, variant="as_released")
    assert len(frame) == 6
    first = frame[frame.k == 0].set_index("id")
    assert first.dice.dropna().to_dict() == {"aa": 1.0, "bb": 1.0}
    assert first.loc["cc", "psnr"] == np.inf
    assert first.loc["bb", ["class_dice_green", "class_dice_blue"]].tolist() == [1.0, 1.0]
    assert first.unscored.tolist() == ["", "", ""]
    assert set(frame[frame.k == 1].unscored) == {"*: no output"}
    assert frame.groupby("perspective").dice.mean()["perception"] == 1.0
