"""Region proposals by tiny models with random weights: shapes, order, and what is missing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mie.errors import MieError
from mie.images.png import decode_png
from tests.conftest import crop
from tests.scoring.benchmarks.medebench.tiny import tiny_models
from tests.scoring.benchmarks.runs import modification, structure, write_samples

torch = pytest.importorskip("torch", reason="models are an optional extra")
transformers = pytest.importorskip("transformers", reason="models are an optional extra")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tiny_models(tmp_path_factory.mktemp("models"))


def test_three_proposals_best_first(models):
    from mie.scoring.benchmarks.medebench.regions import Proposer

    proposer = Proposer(models / "detector", models / "segmenter", device="cpu")
    image = crop(3, 60, 80)
    found = proposer.propose(image, "Optic disc")
    assert len(found) == 3
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    for one in found:
        assert one.mask.shape == (60, 80)
        assert one.mask.dtype == np.bool_
        assert len(one.box) == 4
    again = proposer.propose(image, "optic disc.")
    assert [p.box for p in again] == [p.box for p in found]


def test_proposals_of_a_dataset(models, tmp_path):
    from mie.scoring.benchmarks.medebench.regions import Proposer, write_proposals

    samples = [structure("a", 1), modification("b", 2)]
    folder = write_samples(samples, tmp_path / "dataset").folder
    path = write_proposals(folder, tmp_path / "found", None)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["regions"] for line in lines] == [["source"], []]  # the source's mask, where there is one
    own = decode_png((tmp_path / "found/a_source.png").read_bytes())
    np.testing.assert_array_equal(own, samples[0].mask)
    proposer = Proposer(models / "detector", models / "segmenter", device="cpu")
    path = write_proposals(folder, tmp_path / "more", proposer)
    first = path.read_text()
    path.write_text(first[: first.index("\n") + 20])  # killed while the second line was written
    assert write_proposals(folder, tmp_path / "more", proposer).read_text() == first
    assert len(list((tmp_path / "more").glob("*.png"))) == 7


def test_nothing_is_fetched(models, tmp_path):
    from mie.scoring.benchmarks.medebench.regions import Proposer

    with pytest.raises(MieError, match="no model in this folder"):
        Proposer(tmp_path / "absent", models / "segmenter")


def test_pickled_weights_are_rejected(models, tmp_path):
    from mie.scoring.benchmarks.medebench.regions import Proposer

    for file in (models / "detector").iterdir():
        name = "pytorch_model.bin" if file.suffix == ".safetensors" else file.name
        (tmp_path / name).write_bytes(file.read_bytes())
    with pytest.raises(MieError, match="can run code"):
        Proposer(tmp_path, models / "segmenter")
