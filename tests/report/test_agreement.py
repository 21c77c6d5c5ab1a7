"""The folder of `mie agree -o`: the table in three forms, and the histogram of CLIP similarities."""

from __future__ import annotations

import csv
import json

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from mie.cli import app
from tests.scoring.benchmarks.runs import attempt_at, structure, write_run, write_samples
from tests.scoring.benchmarks.scoring import medebench


@pytest.fixture(scope="module")
def rated(tmp_path_factory):
    """Two runs with a CLIP similarity for each sample, and people who rated one sample more."""
    folder = tmp_path_factory.mktemp("agreement")
    samples = [structure(f"s{n}", n) for n in range(6)]
    dataset = write_samples(samples, folder / "dataset")
    for at, name in enumerate(("near", "far")):
        outputs = {sample.id: [attempt_at(sample, at + 1)] for sample in samples}
        run = write_run(folder / name, dataset, outputs)
        medebench(run)
        path = run / "scores/medebench.paper.jsonl"
        header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
        for number, line in enumerate(lines):  # as CLIP's weights would have given
            attempt = line["attempts"][0]
            attempt["metrics"]["isim"] = 0.9 - 0.3 * at - number / 50
            line["applies"].append("isim")
        path.write_text("".join(json.dumps(line) + "\n" for line in (header, *lines)))
    with (folder / "ratings.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sample_id", "rater", "run", "criterion", "rank"])
        for sample in [*(s.id for s in samples), "gone"]:
            for criterion in ("EA", "CP"):
                rows.writerows((sample, "A", run, criterion, n) for n, run in enumerate(("near", "far"), 1))
    return folder


def test_files_and_charts(rated, tmp_path):
    command = ["agree", str(rated / "near"), str(rated / "far"), "--human", str(rated / "ratings.csv")]
    done = CliRunner().invoke(app, [*command, "--benchmark", "medebench", "-o", str(tmp_path / "out")])
    assert done.exit_code in (0, 3), done.output
    assert "1 rated sample is not among the scored ones" in " ".join(done.output.split())
    table = list(csv.DictReader((tmp_path / "out/correlation.csv").open()))
    similar = [row for row in table if row["metric"].startswith("isim")]
    assert {row["criterion"] for row in similar} == {"EA", "CP"}
    assert all(float(row["spearman"]) == pytest.approx(1) for row in similar)
    assert r"\toprule" in (tmp_path / "out/correlation.tex").read_text()
    picture = cv2.imread(str(tmp_path / "out/similarity.png"))
    colours = np.unique(picture.reshape(-1, 3), axis=0)
    assert min(picture.shape[:2]) > 80
    assert len(colours) > 8  # two histograms and their text, on one background
