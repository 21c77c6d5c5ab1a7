"""`mie score`: the table, the one JSON document, the exit codes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from mie.cli.score import score
from mie.errors import ConfigError
from tests.scoring.benchmarks.runs import modification, structure, transformation, write_run, write_samples

app = typer.Typer()
app.command()(score)
SAMPLES = [
    structure("aa", 0),
    structure("bb", 1, modality="OCT"),
    transformation("cc", 2),
    modification("dd", 3),
]


@pytest.fixture
def dataset(tmp_path):
    return write_samples(SAMPLES, tmp_path / "dataset")


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_json_is_one_document_and_what_the_run_keeps(dataset, tmp_path):
    run = write_run(tmp_path / "run", dataset, {s.id: [s.target_image] * 2 for s in SAMPLES})
    done = invoke(run, "--protocol", "miedb", "--json")
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document == json.loads((run / "summary/miedb.paper.json").read_text())
    assert list(document)[:5] == ["protocol", "variant", "run", "n_samples", "groups"]
    assert document["groups"][0]["metrics"]["dice@2"]["mean"] == 1.0


def test_table_with_coverage_and_intervals(dataset, tmp_path):
    run = write_run(tmp_path / "run", dataset, {"aa": [SAMPLES[0].target_image]})
    done = invoke(run)
    assert done.exit_code == 3
    assert "1/2" in done.stdout
    assert "0/1" in done.stdout
    assert "by modality" in done.stdout
    assert "not covered: 1 modification" in done.stdout
    assert "no score" in done.stderr
    released = invoke(run, "--variant", "as_released")
    assert released.exit_code == 3
    assert "counted as 0" in released.stdout


def test_no_number_is_a_dash_and_one_is_singular(dataset, tmp_path):
    run = write_run(tmp_path / "run", dataset, {"aa": [SAMPLES[0].target_image]}, limit=1)
    shown = invoke(run).stdout
    assert "1 sample\n" in shown
    assert "nan" not in shown
    row = next(line for line in shown.splitlines() if "dice@1" in line)
    assert [cell.strip() for cell in row.split("│")[1:6]] == ["dice@1", "1.000", "–", "1/1", "1 patient"]
    empty = write_run(tmp_path / "empty", dataset, {"aa": [None]}, limit=2)
    row = next(line for line in invoke(empty).stdout.splitlines() if "dice@1" in line)
    assert [cell.strip() for cell in row.split("│")[1:5]] == ["dice@1", "–", "–", "0/2"]


def test_the_list_of_benchmarks_and_metrics():
    shown = invoke("--list").stdout
    for words in ("miedb", "omni-iie", "paper, as_released", "B-PSNR (dB)", "lower", "rubric_8"):
        assert words in shown
    document = json.loads(invoke("--list", "--json").stdout)
    assert [one["name"] for one in document["benchmarks"]] == [
        "dialogue",
        "imgedit",
        "medebench",
        "miedb",
        "omni-iie",
        "volume",
    ]
    metrics = {one["name"]: one for one in document["metrics"]}
    assert metrics["dice"]["needs"] == ["colours", "input", "region"]
    assert metrics["lpips_fg"]["higher_is_better"] is False
    with pytest.raises(ConfigError, match="which run"):
        invoke()


def test_long_tables_show_the_largest_groups(tmp_path):
    samples = [structure(f"{n:04x}", n, 12, 12, target=f"target {n % 25}") for n in range(30)]
    run = write_run(
        tmp_path / "run", write_samples(samples, tmp_path / "dataset"), {"0000": [samples[0].input]}
    )
    shown = invoke(run).stdout
    assert "the 20 largest of 25" in shown
    assert "target 4 " in shown
    assert "target 9 " not in shown
