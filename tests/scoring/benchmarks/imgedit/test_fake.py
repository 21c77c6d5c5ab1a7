"""The fake score: the recall of somebody's detector, from its file of verdicts."""

from __future__ import annotations

import math

import pytest
from typer.testing import CliRunner

from mie.cli import app
from mie.errors import ConfigError
from mie.scoring.benchmarks.imgedit.fake import fake_score
from tests.scoring.benchmarks.runs import attempt_at, structure, write_run, write_samples


@pytest.fixture
def run(tmp_path):
    samples = [structure(f"s{n}", n) for n in range(6)]
    dataset = write_samples(samples, tmp_path / "dataset")
    outputs = {sample.id: [attempt_at(sample, 1)] for sample in samples}
    return write_run(tmp_path / "run", dataset, {**outputs, "s5": ["out of memory"]})


def verdicts(folder, *rows, header="sample_id,fake"):
    path = folder / "verdicts.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_recall_with_coverage(run, tmp_path):
    # s4 has no verdict; the verdict on s5 is about an output that does not exist.
    found = fake_score(run, verdicts(tmp_path, "s0,yes", "s1,0", "s2,Fake", "s3,true", "s5,yes"))
    assert found["mean"] == pytest.approx(3 / 4)
    assert (found["n"], found["unscored"]) == (4, 2)
    low, high = found["ci95"]
    assert low <= 3 / 4 <= high
    none = fake_score(run, verdicts(tmp_path))
    assert math.isnan(none["mean"])
    assert (none["n"], none["unscored"]) == (0, 6)


def test_the_table_has_a_dash_where_there_is_no_number(run, tmp_path):
    one = CliRunner().invoke(app, ["fake", str(run), "--verdicts", str(verdicts(tmp_path, "s0,yes"))])
    none = CliRunner().invoke(app, ["fake", str(run), "--verdicts", str(verdicts(tmp_path))])
    assert (one.exit_code, none.exit_code) == (0, 0)
    assert "1.000" in one.output  # one image: no interval
    assert "nan" not in one.output + none.output
    assert "unscored, for lack of an output or a verdict: 5 samples" in one.output


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (["s0,maybe"], "not a verdict"),
        (["s0,1", "s0,0"], "two verdicts"),
        (["elsewhere,1"], "not of this run"),
        (["s0"], "not a verdict"),
    ],
)
def test_doubtful_files_are_refused(run, tmp_path, rows, what):
    with pytest.raises(ConfigError, match=what):
        fake_score(run, verdicts(tmp_path, *rows))


def test_no_such_file_and_other_columns(run, tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        fake_score(run, tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="not a file of verdicts"):
        fake_score(run, verdicts(tmp_path, "s0,1", header="id,fake"))
