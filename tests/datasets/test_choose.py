"""Choosing a benchmark: quotas, strata, diverse images, and what people accepted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mie.cli import app
from mie.datasets.build import build
from mie.datasets.choose import Candidates, Decision, Quota, accepted_by, choose, clusters, unit
from mie.datasets.dataset import Dataset
from mie.datasets.publish import publish
from mie.datasets.recipe import parse_recipe
from mie.datasets.rejected import read_rejected
from mie.datasets.verify import verify
from mie.errors import ConfigError, MieError
from tests.datasets.test_perspectives import TRANSFORMATION, scans, write_scans


def made(count: int, kinds: int = 4, blobs: int = 5, seed: int = 0) -> Candidates:
    """Samples in `kinds` strata, each of `blobs` well separated kinds of images."""
    draw = np.random.default_rng(seed)
    centres = draw.integers(0, 200, (blobs, 256))
    thumbs = centres[np.arange(count) % blobs] + draw.integers(0, 20, (count, 256))
    columns = {name: ["same"] * count for name in ("perspective", "task", "modality", "anatomy", "source")}
    columns["target"] = [f"target {at // blobs % kinds}" for at in range(count)]
    columns["split"] = ["test"] * count
    return Candidates(
        [f"{at:08x}" for at in range(count)],
        [f"patient {at // 2}" for at in range(count)],
        columns,
        unit(thumbs.astype(np.uint8)),
    )


def test_every_kind_of_image_of_every_stratum_is_taken():
    candidates = made(400)
    choice = choose(candidates, Quota.parse(20))
    assert len(choice.places) == 20
    by_target = Counter(candidates.columns["target"][at] for at in choice.places)
    assert set(by_target.values()) == {5}
    # Each of the five kinds of images once in each stratum, though they are drawn by pixels alone.
    kinds = Counter((candidates.columns["target"][at], at % 5) for at in choice.places)
    assert set(kinds.values()) == {1}
    patients = [candidates.subjects[at] for at in choice.places]
    assert len(set(patients)) == len(patients)


def test_the_choice_does_not_depend_on_the_order():
    candidates = made(200)
    back = np.arange(200)[::-1]
    turned = Candidates(
        [candidates.ids[at] for at in back],
        [candidates.subjects[at] for at in back],
        {name: [column[at] for at in back] for name, column in candidates.columns.items()},
        candidates.features[back],
    )
    one, other = choose(candidates, Quota.parse(30)), choose(turned, Quota.parse(30))
    assert {candidates.ids[at] for at in one.places} == {turned.ids[at] for at in other.places}


def test_clusters_are_those_of_scikit_learn():
    """On separated blobs there is one right answer."""
    features = made(300, blobs=6).features
    labels, distances = clusters(features, 6)
    from scipy.cluster.vq import kmeans2

    start = np.stack([features[labels == k][0] for k in range(6)])
    centres, expected = kmeans2(features.astype(np.float64), start.astype(np.float64), minit="matrix")
    assert np.array_equal(labels, expected)
    assert np.allclose(distances, ((features - centres[expected]) ** 2).sum(axis=1), atol=1e-4)


def test_equal_images_still_fill_the_quota():
    candidates = made(40, kinds=1)
    flat = Candidates(
        candidates.ids, candidates.subjects, candidates.columns, np.zeros((40, 256), np.float32)
    )
    assert len(set(choose(flat, Quota.parse(17)).places)) == 17


def test_quotas_by_column_and_what_they_lack():
    candidates = made(100)
    quota = Quota.parse({"target": {"target 0": 10, "target 1": 40, "target 9": 3}})
    choice = choose(candidates, quota, strata=("modality",))
    found = Counter(candidates.columns["target"][at] for at in choice.places)
    assert found == {"target 0": 10, "target 1": 25}
    assert choice.short == {"target 1": 15, "target 9": 3}
    assert choose(candidates, Quota.parse("miedb")).short == {"total": 3385}


@pytest.mark.parametrize(
    ("quota", "says"),
    [
        ("midb", "did you mean 'miedb'"),
        (0, "at least 1"),
        ({"modalty": {"CT": 3}}, "did you mean 'modality'"),
        ({"modality": 3}, "how many of each value"),
        ({"modality": {"CT": "many"}}, "at least 1"),
        ({"modality": {"CT": 1}, "task": {"lesion": 1}}, "by one column"),
    ],
)
def test_quotas_that_make_no_sense(quota, says):
    with pytest.raises(ConfigError, match=says):
        Quota.parse(quota)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("choose")
    write_scans(root / "s", 10)
    body = {"name": "all", "split": {"test": 1.0}, "sources": [scans(root / "s")]}
    config = parse_recipe({**body, "perspectives": ["perception", TRANSFORMATION]}, where="t", base=Path())
    build(config, root / "d", workers=1)
    return Dataset(root / "d")


def test_a_benchmark_is_a_dataset_with_its_own_digest_and_card(dataset, tmp_path):
    result = publish(dataset, tmp_path / "b", quota=8, workers=1)
    benchmark = Dataset(tmp_path / "b")
    assert benchmark.info["counts"]["samples"] == 8
    assert set(benchmark.info["counts"]["by_perspective"].values()) <= {3, 4, 5}
    assert benchmark.digest != dataset.digest
    assert verify(benchmark, workers=1).problems == []
    whole = dict(zip(*dataset.table(["id", "sha256"]).values(), strict=True))
    assert all(whole[i] == sha for i, sha in zip(*benchmark.table(["id", "sha256"]).values(), strict=True))
    assert benchmark.info["recipe"]["chosen"]["parent"]["digest"] == dataset.digest
    assert "## How the samples were chosen" in (tmp_path / "b/README.md").read_text()
    again = publish(dataset, tmp_path / "again", quota=8, workers=1)
    assert again.info["digest"] == result.info["digest"]


def test_only_what_three_people_accepted_is_published_and_it_says_who(dataset, tmp_path):
    ids = dataset.table(["id"])["id"]
    people = ("R01", "R02", "R03")
    decisions = [Decision(i, person, True) for i in ids[:9] for person in people]
    decisions[0] = Decision(ids[0], "R01", False)  # one person rejects the first
    del decisions[5]  # two people only for the second
    decisions += [Decision(ids[0], "consensus", True)]  # adjudicated
    result = publish(dataset, tmp_path / "b", quota=100, decisions=decisions, split=None, workers=1)
    chosen = result.info["recipe"]["chosen"]["reviews"]
    assert set(chosen["accepted_by"]) == {ids[0], *ids[2:9]}
    assert chosen["accepted_by"][ids[0]] == ["R02", "R03", "consensus"]
    assert chosen["accepted_by"][ids[4]] == list(people)
    refused = {r.numbers["id"]: r.reason for r in read_rejected(tmp_path / "b/rejected.parquet")}
    assert refused == {ids[1]: "accepted by 2, 3 are needed"}
    assert result.choice.short == {"total": 92}
    with pytest.raises(MieError, match="accepted by enough people"):
        publish(dataset, tmp_path / "c", quota=5, decisions=decisions[:-1], needed=4, workers=1)


def test_a_rejection_counts_unless_a_consensus_settles_it():
    said = [Decision("a", "R1", True), Decision("a", "R2", True), Decision("a", "R3", False)]
    assert accepted_by(said, 2) == ({}, {"a": "rejected by 1 of 3"})
    assert accepted_by([*said, Decision("a", "consensus", False)], 2)[1] == {"a": "rejected by consensus"}


def test_the_command_with_a_review(dataset, tmp_path):
    pytest.importorskip("starlette")
    from mie.review.service import open_review
    from tests.review.conftest import Review

    runner = CliRunner()
    draft = ["choose", str(dataset.folder), "--quota", "4", "--spare", "0.5", "-o", str(tmp_path / "draft")]
    assert runner.invoke(app, [*draft, "--workers", "1"]).exit_code == 0
    place = str(tmp_path / "r.sqlite")
    service = open_review([tmp_path / "draft"], db=place, raters=3)
    rejected = Dataset(tmp_path / "draft").table(["id"])["id"][0]
    review = Review(service)
    people = [review.person(name) for name in ("ann", "bob", "cy")]
    for person in people:
        for item in person.take("inspect", 10):
            decision = {"decision": "accept", "reason": None, "scores": {}}
            if item["sample_id"] == rejected and person is people[0]:
                decision = {"decision": "reject", "reason": "wrong mask", "scores": {}}
            person.answer(item, **decision)
    service.database.close()
    final = ["--reviews", place, "--workers", "1", "--json"]
    outcome = runner.invoke(
        app, ["choose", str(tmp_path / "draft"), "--quota", "4", "-o", str(tmp_path / "b"), *final]
    )
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)["counts"]["samples"] == 4
    chosen = Dataset(tmp_path / "b").info["recipe"]["chosen"]["reviews"]["accepted_by"]
    assert rejected not in chosen
    assert {len(raters) for raters in chosen.values()} == {3}
    other = runner.invoke(app, ["choose", str(dataset.folder), "--quota", "4", "-o", "x", *final])
    assert "another dataset" in str(other.exception)
