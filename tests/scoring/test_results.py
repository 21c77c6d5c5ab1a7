"""The one reader of scores: means, samples, reasons, and which attempt counts."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from mie.errors import ConfigError, MieError
from mie.scoring.benchmarks import Benchmark
from mie.scoring.metric import Metric
from mie.scoring.results import Results, benchmarks_of
from mie.scoring.score import score
from mie.scoring.scores import Attempt, Line, Score, read_score_table, write_scores_file, write_summary
from tests.scoring.benchmarks.runs import attempt_at, structure, transformation, write_run, write_samples

SAMPLES = [
    structure("aa", 0),
    structure("bb", 1, modality="OCT"),
    structure("cc", 3, patient_id=None),
    structure("dd", 4),
    transformation("ee", 2, patient_id="p9"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    outputs = {s.id: [attempt_at(s, n), attempt_at(s, 10 + n)] for n, s in enumerate(SAMPLES)}
    outputs["bb"][0] = None
    outputs["dd"] = ["out of memory", None]
    outputs["ee"][1] = SAMPLES[4].target_image
    dataset = write_samples(SAMPLES, folder / "dataset")
    return write_run(folder / "run", dataset, outputs)


@pytest.fixture(scope="module")
def results(run):
    return score(run)


def test_it_reads_back_what_was_scored(run, results):
    again = Results.open(run, "miedb", "paper")
    assert again.document == results.document
    assert len(again) == len(SAMPLES)
    assert again.benchmark.name == again.name == "miedb"
    assert benchmarks_of(run, "paper") == ["miedb"]
    with pytest.raises(MieError, match="no such scores") as caught:
        Results.open(run, "medebench")
    assert "scores by miedb" in str(caught.value)


def test_a_mean_with_its_coverage_and_patients(results):
    mean = results["dice"]
    assert (mean.n, mean.unscored) == (2, 2)
    assert (mean.patients, mean.images) == (1, 1)
    values = results.values("dice")
    assert list(values.index) == ["aa", "bb", "cc", "dd"]
    assert values.isna().tolist() == [False, True, False, True]
    assert float(mean) == mean.mean == pytest.approx(values.mean())
    assert results["dice@2"].n == 3
    assert results["psnr@2"].capped == 1
    assert "1 exact match, capped" in results["psnr@2"].notes
    assert repr(mean).startswith("DICE .")
    assert "2/4 samples" in repr(mean)
    assert results.means(modality="OCT")["dice@1"].n == 0
    assert math.isnan(results.means(modality="OCT")["dice@1"].mean)
    assert str(results.means(modality="OCT")["dice@1"]) == "–"
    assert set(results.by("modality")) == {"OCT", "fundus"}


def test_the_interval_of_a_capped_metric_ends_at_its_cap(tmp_path):
    samples = [transformation(f"s{n}", n, patient_id=f"p{n}") for n in range(4)]
    outputs = {sample.id: [sample.target_image] for sample in samples}
    outputs["s0"] = [samples[0].input]
    run = write_run(tmp_path / "run", write_samples(samples, tmp_path / "dataset"), outputs)
    entry = score(run).document["groups"][0]["metrics"]["psnr@1"]
    assert entry["capped"] == 3
    assert entry["ci95"][0] < entry["mean"] < entry["ci95"][1] == 100
    released = score(run, variant="as_released").document["groups"][0]["metrics"]["psnr@1"]
    assert released["ci95"] == [None, None], "three values are infinite"


def test_a_name_that_is_not_there(results):
    with pytest.raises(ConfigError, match="no metric dcie@1") as caught:
        results["dcie"]
    assert "dice@1" in caught.value.fix
    with pytest.raises(ConfigError, match="no such group"):
        results.means(modality="CT")
    assert "dice" in results
    assert "rubric" not in results


def test_it_shows_as_a_table(results):
    page = results._repr_html_()
    assert page.count("<tr>") == 1 + len(results.keys)
    assert "DICE, pass@1" in page
    assert "<script" not in page
    text = repr(results)
    assert text.splitlines()[0].endswith("miedb, paper, 5 samples")
    assert len(text.splitlines()) == 1 + len(results.keys)


def test_markup_in_a_name_stays_text(run, results):
    odd = Results(run, {**results.document, "variant": "<b>paper</b>"})
    assert "<b>" not in odd._repr_html_()


def test_reasons_and_lines(results):
    assert results.reasons["*", "edit failed: out of memory"] == 1
    assert results.reasons["*", "no output"] == 2
    lines = {line.id: line for line in results.lines()}
    assert lines["cc"].patient is None
    assert lines["cc"].case == "case 3"
    first, second = lines["bb"].attempts
    assert first.score("dice") == Score("dice", None, "no output")
    assert not first.has_output
    assert second.score("dice").scored
    assert second.score("psnr") == Score("psnr", None, "does not apply")


def test_the_frame(results):
    frame = results.frame
    assert isinstance(frame, pd.DataFrame)
    assert len(frame) == 10
    assert frame[frame.k == 0].set_index("id").dice.notna().sum() == 2


def test_scores_that_are_older_than_the_edits(run, results):
    assert not results.stale
    path = run / "edits.jsonl"
    before = path.read_text()
    path.write_text(before + before.splitlines()[0] + "\n")
    assert results.stale
    path.write_text(before)
    assert not Results.open(run).stale


def test_pass_at_1_as_released_is_the_first_attempt_that_exists(tmp_path):
    """Of all metrics alike: where that attempt has no value of a metric, the sample has none."""
    samples = {
        "late": [{"*": "no output"}, {"dice": 0.5, "b_ssim": 0.7}],
        "odd": [{"dice": 0.4}, {"dice": 0.6, "b_ssim": 0.9}],  # the first has no window for B-SSIM
        "none": [{"*": "no output"}, {"*": "no output"}],
    }
    path = write_lines(tmp_path, samples, ("dice", "b_ssim"), "as_released", missing_as_zero=True)
    table = read_score_table(path)
    first = table.select("b_ssim", 1)
    np.testing.assert_array_equal(first.values, [0.7, np.nan, 0.0])
    np.testing.assert_array_equal(first.attempts, [1, 0, 0])
    np.testing.assert_array_equal(table.select("b_ssim", 2).values, [0.7, 0.9, 0.0])
    np.testing.assert_array_equal(table.select("b_ssim", 2).attempts, [1, 1, 0])
    paper = read_score_table(write_lines(tmp_path, samples, ("dice", "b_ssim"), "paper"))
    np.testing.assert_array_equal(paper.select("dice", 1).values, [np.nan, 0.4, np.nan])


def test_the_best_of_k_where_lower_is_better(tmp_path):
    samples = {
        "a": [{"lpips_all": 0.5, "clip_all": 0.5}, {"lpips_all": 0.2, "clip_all": 0.2}],
        "b": [{"*": "no output"}, {"lpips_all": 0.9, "clip_all": 0.9}],
        "c": [{}, {"lpips_all": math.inf, "clip_all": 0.1}],
    }
    path = write_lines(tmp_path, samples, ("lpips_all", "clip_all"), "paper", protocol="omni-iie")
    table = read_score_table(path)
    np.testing.assert_array_equal(table.select("lpips_all", 2).values, [0.2, 0.9, np.inf])
    np.testing.assert_array_equal(table.select("lpips_all", 2).attempts, [1, 1, 1])
    np.testing.assert_array_equal(table.select("clip_all", 2).values, [0.5, 0.9, 0.1])


def test_a_metric_of_a_package_that_is_gone_keeps_its_direction(tmp_path):
    samples = {"a": [{"error": 0.5}, {"error": 0.2}]}
    spec = Metric("error", "Error", unit="mm", decimals=2, higher_is_better=False).record()
    path = write_lines(tmp_path, samples, ("error",), "paper", protocol="theirs", specs={"error": spec})
    table = read_score_table(path)
    assert table.select("error", 2).values.tolist() == [0.2]
    assert table.metric("error").title == "Error (mm)"


def test_a_benchmark_object_in_place_of_a_name(run):
    """Declared here, in no registry: every metric by its own function, in this process."""

    def brightness(output, region):
        return float(output[region].mean())

    bright = Metric("brightness", "Brightness", needs={"region"}, function=brightness, decimals=1)
    mine = score(run, Benchmark("mine", metrics=("psnr", bright), psnr_cap=100.0))
    assert mine["psnr"].n == 3
    assert mine["brightness"].n == 2  # a transformation has no region
    assert mine["psnr@2"].capped == 1
    again = Results.open(run, "mine")
    assert again["brightness"].metric.decimals == 1
    first = next(iter(again.lines())).attempts[0]
    assert first.score("brightness").value == pytest.approx(again.values("brightness")["aa"])


def write_lines(folder, samples, metrics, variant, **header):
    """`samples`: id -> for each attempt its values; the key "*" says that there is no output."""
    group = dict.fromkeys(("perspective", "task", "modality", "anatomy", "target", "source"), "x")
    lines = [{"protocol": "miedb", "variant": variant, "attempts": 2, "metrics": metrics, **header}]
    for name, attempts in samples.items():
        bodies = [
            {"k": k, "metrics": {}, "unscored": values}
            if "*" in values
            else {
                "k": k,
                "metrics": {n: v if math.isfinite(v) else str(v) for n, v in values.items()},
                "unscored": {},
            }
            for k, values in enumerate(attempts)
        ]
        about = {"id": name, "group": group, "patient": None, "case": name, "applies": metrics}
        lines.append({**about, "attempts": bodies})
    path = folder / f"{variant}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_torn_or_foreign_file_is_named(tmp_path):
    path = tmp_path / "half"
    path.write_text('{"protocol": "miedb"')
    with pytest.raises(MieError, match="not a file of scores") as caught:
        read_score_table(path)
    assert "half:1" in str(caught.value)
    path.write_text('{"protocol": "miedb"}\n')
    with pytest.raises(MieError, match="not a file of scores"):
        read_score_table(path)
    line = Line({"id": "a", "group": {}, "patient": None, "case": "c", "applies": [], "attempts": []})
    assert line.attempts == []
    assert Attempt({"k": 0, "metrics": {"psnr": "inf"}}).values == {"psnr": math.inf}


def test_what_a_killed_call_left_goes_with_the_next_one(tmp_path):
    """Of this variant alone: another one may be being written at the same time."""
    for folder, name, write in (
        ("scores", "miedb.paper.jsonl", lambda path: write_scores_file(path, {}, [])),
        ("summary", "miedb.paper.json", lambda path: write_summary(path, {"groups": []})),
    ):
        own, other = (tmp_path / folder / f".{n}.17.ab.tmp" for n in (name, "miedb.as_released.json"))
        own.parent.mkdir()
        own.touch()
        other.touch()
        write(tmp_path / folder / name)
        assert {path.name for path in own.parent.iterdir()} == {name, other.name}
