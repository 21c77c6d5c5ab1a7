"""From decisions to a new version of the dataset, proven by `mie verify`."""

import json
import re
import uuid
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from mie.cli import app as cli
from mie.datasets.dataset import Dataset
from mie.datasets.rejected import read_rejected
from mie.datasets.verify import verify
from mie.errors import MieError
from mie.images.overlay import deblend, dice
from mie.images.png import encode_png
from mie.review.apply import apply_reviews
from tests.review.conftest import Person, by_area


def upload(rater: Person, item, mask):
    path, headers = f"/api/items/{item['id']}/mask", {"Content-Type": "image/png"}
    sent = rater.http.put(path, content=encode_png(mask), headers=headers)
    assert sent.status_code == 200, sent.text
    return sent.json()["mask"]


def test_rejected_samples_go_and_masks_are_painted_anew(review, place, material, tmp_path):
    opened = review("inspect", "mask", raters=2)
    a, b, judge = opened.person("Ada"), opened.person("Bob"), opened.person("Cy", "adjudicator")
    words = {
        "both reject": ("reject", "reject"),
        "divided": ("accept", "reject"),
        "both accept": ("accept", "accept"),
        "settled": ("reject", "reject"),
        "flagged": ("flag", "flag"),
    }
    ids = {}
    for person, at in ((a, 0), (b, 1)):
        for item, (name, said) in zip(person.take("inspect", len(words)), words.items(), strict=True):
            person.answer(item, decision=said[at], reason="artefact")
            ids[name] = item["sample_id"]
            if name == "settled":
                settled = item
    answer = {"kind": "inspect", "decision": "accept"}
    body = {"key": uuid.uuid4().hex, "version": settled["version"], "answer": answer}
    judge.post(f"/items/{settled['id']}/consensus", 201, **body)
    kept = {i["sample_id"]: i for i in a.take("mask", 10) if i["sample_id"] not in ids.values()}
    b.take("mask", 10)
    grown, moved, lost = list(kept.values())[:3]
    before = {s.id: s for s in Dataset(material / "dataset").samples()}
    new = np.roll(before[moved["sample_id"]].mask, 4, axis=0)
    for person in (a, b):
        theirs = person.get(f"/items/{grown['id']}")  # each rater has labels of their own
        person.answer(grown, choice=by_area(person, theirs)["dilated"])
        person.answer(moved, choice="repaired", mask=upload(person, moved, new))
        person.answer(lost, choice="none")

    applied = apply_reviews(place, material / "dataset", tmp_path / "new")
    assert applied.counts == {"rejected": 2, "repaired": 2, "divided": 2}
    assert verify(tmp_path / "new", workers=1).ok
    after = {s.id: s for s in Dataset(tmp_path / "new").samples()}
    assert len(after) == len(before) - 2
    ids |= {"grown": grown["sample_id"], "moved": moved["sample_id"], "lost": lost["sample_id"]}
    changed = {"rejected": {ids["both reject"], ids["lost"]}, "repainted": {ids["grown"], ids["moved"]}}
    for name, samples in changed.items():
        change = applied.changes[name]
        assert change.n == len(samples) == len(change.examples)
        assert set(change.examples) == samples
        assert change.by_split == Counter(before[i].split for i in samples)
    kept = applied.changes["kept"]
    assert kept.n == len(before) - 4 == sum(kept.by_split.values())
    assert len(kept.examples) == 3
    assert set(kept.examples) < set(before) & set(after)
    assert applied.changes["failed"].n == 0
    assert ids["both reject"] not in after
    assert {ids[name] for name in ("divided", "both accept", "settled", "flagged")} <= set(after)
    (repaired,) = (s for s in after.values() if s.parents == (moved["sample_id"],))
    assert np.array_equal(repaired.mask, new)
    assert dice(deblend(repaired.input, repaired.target_image, repaired.colour), new > 0) > 0.99
    assert np.array_equal(repaired.input, before[moved["sample_id"]].input)
    (wider,) = (s for s in after.values() if s.parents == (grown["sample_id"],))
    assert (wider.mask > 0).sum() > (before[grown["sample_id"]].mask > 0).sum()
    reasons = [r for r in read_rejected(tmp_path / "new/rejected.parquet") if r.gate == "review"]
    assert [r.reason for r in reasons if r.numbers["id"] == ids["both reject"]] == [
        "rejected by 2 of 2: artefact"
    ]
    assert applied.info["recipe"]["reviews"]["parent"]["digest"] == Dataset(material / "dataset").digest
    assert applied.info["digest"] != Dataset(material / "dataset").digest


def test_the_command_and_what_it_refuses(review, place, material, tmp_path):
    opened = review("inspect")
    rater = opened.person("Ada")
    (item,) = rater.take("inspect")
    rater.answer(item, decision="reject", reason="other")
    command = ["build", str(material / "dataset"), "--apply-reviews", place, "-o", str(tmp_path / "v2")]
    done = CliRunner().invoke(cli, [*command, "--no-stats", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["counts"]["samples"] == len(Dataset(material / "dataset")) - 1
    assert told["reviews"]["counts"]["rejected"] == 1
    split = next(s.split for s in Dataset(material / "dataset").samples() if s.id == item["sample_id"])
    assert told["changes"]["rejected"] == {"n": 1, "by_split": {split: 1}, "examples": [item["sample_id"]]}
    assert told["changes"]["kept"]["n"] == told["counts"]["samples"]
    command[-1] = str(tmp_path / "v2-again")
    text = CliRunner().invoke(cli, [*command, "--no-stats"]).stdout
    (line,) = (line for line in text.splitlines() if "rejected by reviewers" in line)
    assert item["sample_id"] in line
    assert re.search(r"kept as they were\W+23\b", text)
    with pytest.raises(MieError, match="another dataset"):
        apply_reviews(place, tmp_path / "v2", tmp_path / "v3")
    with pytest.raises(MieError, match="no review database here"):
        apply_reviews(str(tmp_path / "none.sqlite"), material / "dataset", tmp_path / "v3")
    assert not (tmp_path / "none.sqlite").exists()
