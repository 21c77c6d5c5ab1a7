"""`mie plan`: the pilot's numbers are those of the build."""

import json
import math
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from mie.cli import app
from mie.datasets import pilot
from mie.datasets.build import build
from mie.datasets.pilot import Amount, plan_build
from mie.datasets.recipe import parse_recipe
from mie.errors import MieError
from tests.conftest import folder_source, write_folder


def config(root, **body):
    recipe = {"name": "discs", "seed": 3, "sources": [folder_source(root)], **body}
    return parse_recipe(recipe, where="t", base=Path())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """40 images; in every fourth nothing is marked, so it gives no sample."""
    root = write_folder(tmp_path_factory.mktemp("pilot"), 40, patients=40, size=96)
    for path in sorted((root / "masks").iterdir())[::4]:
        cv2.imwrite(str(path), np.zeros((96, 96), np.uint8))
    return root


def test_a_pilot_of_everything_is_exact(source, tmp_path):
    found = plan_build(config(source), share=1, workers=1)
    info = build(config(source), tmp_path / "d", workers=1).info
    lost = sum(info["rejected"].get(gate, 0) for gate in ("duplicate", "leak"))
    assert found.samples.total == found.samples.low == found.samples.high
    assert found.samples.total == info["counts"]["samples"] + lost
    stored = sum(path.stat().st_size for path in (tmp_path / "d" / "data").iterdir())
    assert stored < found.size.total < stored + 40 * 6000  # words that rows share are written for each unit
    assert found.sources[0].measured == found.sources[0].units == 40


def test_a_part_of_it_holds_the_truth_in_its_interval(source):
    whole = plan_build(config(source), share=1, workers=1)
    found = plan_build(config(source), share=0.3, workers=4)
    assert found.sources[0].measured == 12
    assert found.samples.low <= whole.samples.total <= found.samples.high
    assert found.samples.low < found.samples.high
    assert found.hours.total == pytest.approx((found.seconds.total / 4 + found.start) / 3600)


def test_the_interval_is_that_of_a_sample_without_replacement():
    amount = pilot._whole([1.0, 2.0, 3.0], 30)
    # Mean 2, standard deviation 1, t of 2 degrees of freedom 4.3027, a tenth is known.
    wide = 4.302653 / math.sqrt(3) * math.sqrt(0.9) * 30
    assert amount == Amount(60.0, 0.0, pytest.approx(60 + wide))
    assert pilot._whole([1.0, 2.0, 3.0], 3) == Amount(6.0, 6.0, 6.0)
    assert math.isnan(pilot._whole([2.0], 3).low)
    total = pilot._sum([Amount(10, 7, 13), Amount(20, 16, 24)])
    assert (total.total, total.low, total.high) == (30, 25, 35)
    assert math.isnan(pilot._sum([Amount(10, 7, 13), Amount(20)]).high)


def test_nobody_is_asked_and_nothing_is_left(source, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    recipe = {"kind": "modification", "judge": "openai:some-model", "inpainter": "telea", "detector": None}
    found = plan_build(config(source, recipe=recipe), workers=1)
    assert found.judge == "openai:some-model"
    assert not list(tmp_path.iterdir())


def test_the_command_prints_both_forms(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = {"name": "discs", "sources": [folder_source(source)]}
    Path("recipe.yaml").write_text(json.dumps(recipe))
    done = CliRunner().invoke(app, ["plan", "recipe.yaml", "--share", "0.2", "--price", "3", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["cost"]["total"] == pytest.approx(3 * document["hours"]["total"])
    assert document["sources"][0]["measured"] == 8
    done = CliRunner().invoke(app, ["plan", "recipe.yaml", "--share", "0.2", "--price", "3"])
    for words in ("8 of 40", "samples  about", "size     about", "time     about", "money    about"):
        assert words in done.stdout, done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.yaml"}


def test_a_folder_without_images_is_refused(tmp_path, source):
    root = tmp_path / "empty"
    shutil.copytree(source, root)
    for path in (root / "images").iterdir():
        path.unlink()
    with pytest.raises(MieError, match="no image was found"):
        plan_build(config(root))
