"""The rater's work through HTTP, the same on both databases."""

import io
import json
import uuid
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from sqlalchemy import select
from sqlalchemy.exc import DatabaseError

from mie.datasets.dataset import Dataset
from mie.errors import ImageError
from mie.images.png import decode_png, encode_png
from mie.review import service as service_module
from mie.review.api import CRITERIA
from mie.review.database import DatabaseFailureError, answers, assignments, audit, consensus, events, items
from mie.review.events import Action, rebuild, record
from mie.review.masks import majority, read_upload
from tests.review.conftest import by_area


def test_a_rater_goes_through_all_items_once(review):
    opened = review("inspect")
    rater = opened.person("Ada")
    n = rater.me["tasks"][0]["items"]
    seen = []
    while given := rater.take("inspect", count=3):
        assert given[0]["id"] not in seen
        seen.append(given[0]["id"])
        done = rater.answer(given[0], decision="accept")
    assert len(seen) == n == 24
    assert done["progress"]["done"] == n
    assert done["progress"]["remaining"] == 0
    assert done["progress"]["seconds_per_item"] == 4.0


def test_what_was_taken_is_still_there_after_a_reload(review):
    rater = review("inspect").person("Ada")
    first = [item["id"] for item in rater.take("inspect", 3)]
    assert [item["id"] for item in rater.take("inspect", 3)] == first
    assert [item["id"] for item in rater.take("inspect", 5)][:3] == first


def test_two_raters_share_the_items_without_meeting(review):
    opened = review("inspect", raters=1)
    a, b = opened.person("Ada"), opened.person("Bob")
    ours = [{item["id"] for item in person.take("inspect", 10)} for person in (a, b)]
    assert len(ours[0]) == len(ours[1]) == 10
    assert not ours[0] & ours[1]


def test_overlapping_items_are_seen_by_all(review):
    opened = review("inspect", raters=2, overlap=0.5, seed=1)
    with opened.service.database.read() as connection:
        wanted = dict(connection.execute(select(items.c.id, items.c.wanted)).all())
    both = {i for i, n in wanted.items() if n == 2}
    assert 4 <= len(both) <= 20
    people = [opened.person("Ada"), opened.person("Bob")]
    seen = {0: set(), 1: set()}
    while True:
        left = False
        for at, person in enumerate(people):
            for item in person.take("inspect", 1):
                seen[at].add(item["id"])
                person.answer(item, decision="accept")
                left = True
        if not left:
            break
    assert seen[0] & seen[1] == both
    assert seen[0] | seen[1] == set(wanted)


def test_a_lease_that_ran_out_goes_to_the_next_rater_and_the_late_answer_is_kept(review):
    opened = review("inspect", sample=1)
    late, quick = opened.person("Ada"), opened.person("Bob")
    (item,) = late.take("inspect")
    assert quick.take("inspect") == []
    with opened.service.database.write() as connection:
        connection.execute(assignments.update().values(until=1.0))
    (same,) = quick.take("inspect")
    assert same["id"] == item["id"]
    late.answer(item, decision="flag")
    quick.answer(same, decision="accept")
    with opened.service.database.read() as connection:
        assert connection.execute(select(items.c.open, items.c.answered)).one() == (-1, 2)


def test_the_same_answer_sent_again_is_one_event(review):
    opened = review("inspect")
    rater = opened.person("Ada")
    (item,) = rater.take("inspect")
    key = str(uuid.uuid4())
    first = rater.answer(item, key=key, decision="reject", reason="artefact")
    again = rater.answer(item, 200, key=key, decision="reject", reason="artefact")
    assert first["event"] == again["event"]
    other = rater.answer(item, 409, key=key, decision="accept")
    assert other["error"]["code"] == "conflict"
    with opened.service.database.read() as connection:
        assert len(connection.execute(select(events)).all()) == 1


def test_undo_is_an_event_and_brings_back_what_was(review):
    opened = review("inspect")
    rater = opened.person("Ada")
    (item,) = rater.take("inspect")
    rater.answer(item, decision="accept", comment="fine")
    rater.answer(item, decision="reject", reason="wrong region")
    assert rater.get(f"/items/{item['id']}")["answer"]["decision"] == "reject"
    back = rater.post(f"/items/{item['id']}/undo", key=uuid.uuid4().hex)
    assert back["answer"]["decision"] == "accept"
    key = uuid.uuid4().hex
    assert rater.post(f"/items/{item['id']}/undo", key=key)["answer"] is None
    assert rater.post(f"/items/{item['id']}/undo", key=key)["answer"] is None  # sent again
    rater.post(f"/items/{item['id']}/undo", 409, key=uuid.uuid4().hex)
    assert rater.take("inspect")[0]["id"] == item["id"]
    with opened.service.database.read() as connection:
        assert list(connection.scalars(select(events.c.action).order_by(events.c.id))) == [
            "answer", "answer", "undo", "undo",
        ]  # fmt: skip


def test_what_stands_can_be_rebuilt_from_the_events(review):
    opened = review("inspect", raters=2)
    a, b, judge = opened.person("Ada"), opened.person("Bob"), opened.person("Cy", "adjudicator")
    for person, words in ((a, ("accept", "reject", "flag")), (b, ("accept", "accept", "accept"))):
        for item, word in zip(person.take("inspect", 3), words, strict=True):
            person.answer(item, decision=word, reason="artefact")
    person_item = a.get("/tasks/inspect/history")["items"][-1]["item"]
    a.post(f"/items/{person_item}/undo", key=uuid.uuid4().hex)
    settled = judge.get("/tasks/inspect/consensus", only="disagreement")["items"]
    item = judge.get(f"/tasks/inspect/consensus/{settled[0]['item']}")["item"]
    body = {
        "key": uuid.uuid4().hex,
        "version": item["version"],
        "answer": {"kind": "inspect", "decision": "accept"},
    }
    judge.post(f"/items/{item['id']}/consensus", 201, **body)
    tables = (answers, consensus, items)

    def everything():
        with opened.service.database.read() as connection:
            return [sorted(map(str, connection.execute(select(table)))) for table in tables]

    before = everything()
    with opened.service.database.write() as connection:
        rebuild(connection)
    assert everything() == before


def test_history_is_ones_own_and_newest_first(review):
    opened = review("inspect")
    rater, other = opened.person("Ada"), opened.person("Bob")
    given = rater.take("inspect", 4)
    for item in given:
        rater.answer(item, decision="accept")
    page = rater.get("/tasks/inspect/history", limit=3)
    assert [e["item"] for e in page["items"]] == [item["id"] for item in reversed(given)][:3]
    rest = rater.get("/tasks/inspect/history", limit=3, before=page["before"])
    assert [e["item"] for e in rest["items"]] == [given[0]["id"]]
    assert other.get("/tasks/inspect/history")["items"] == []


def test_pictures_are_the_datasets_own_and_shrink_on_demand(review, material):
    rater = review("inspect").person("Ada")
    (item,) = rater.take("inspect")
    sample = next(s for s in Dataset(material / "dataset").samples() if s.id == item["sample_id"])
    for name, pixels in (("input", sample.input), ("reference", sample.target_image), ("mask", sample.mask)):
        answer = rater.http.get(item["images"][name])
        assert answer.headers["cache-control"] == "private, no-store"  # patients' images stay off the disk
        assert np.array_equal(decode_png(answer.content), pixels)
    assert item["size"] == [sample.input.shape[1], sample.input.shape[0]]
    large = rater.http.get(item["images"]["input"] + "&side=1024")
    assert decode_png(large.content).shape == sample.input.shape


def test_three_proposals_and_a_repaired_mask(review, material):
    opened = review("mask")
    rater = opened.person("Ada")
    (item,) = rater.take("mask")
    sample = next(s for s in Dataset(material / "dataset").samples() if s.id == item["sample_id"])
    assert sorted(p["id"] for p in item["proposals"]) == ["A", "B", "C"]
    shown = {p["id"]: decode_png(rater.http.get(p["image"]).content) for p in item["proposals"]}
    found = {name: shown[label] for name, label in by_area(rater, item).items()}
    assert np.array_equal(found["source"], sample.mask)
    source = sample.mask > 0
    by = max(1, round(min(sample.mask.shape) / 100))
    outside = cv2.distanceTransform((~source).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    inside = cv2.distanceTransform(source.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    assert np.array_equal(found["dilated"] > 0, source | (outside <= by))  # exact for radii up to 2
    assert np.array_equal(found["eroded"] > 0, inside > by)
    repaired = np.roll(sample.mask, 3, axis=1)
    canvas = io.BytesIO()  # as a browser's canvas saves it
    Image.fromarray(np.dstack([repaired] * 3 + [np.full_like(repaired, 255)]), "RGBA").save(canvas, "PNG")
    sent = rater.http.put(
        f"/api/items/{item['id']}/mask", content=canvas.getvalue(), headers={"Content-Type": "image/png"}
    )
    assert sent.status_code == 200, sent.text
    assert np.array_equal(decode_png(rater.http.get(sent.json()["image"]).content), repaired)
    rater.answer(item, choice="repaired", mask=sent.json()["mask"])
    rater.answer(item, 422, choice="repaired", mask="0" * 64)
    rater.answer(item, 422, choice="D")  # there are three
    wrong = encode_png(np.zeros((8, 8), np.uint8))
    for body in (wrong, b"GIF89a", encode_png(np.full_like(repaired, 7)), canvas.getvalue()[:-20]):
        rejected = rater.http.put(
            f"/api/items/{item['id']}/mask", content=body, headers={"Content-Type": "image/png"}
        )
        assert rejected.status_code == 422, rejected.text


MASK_NAMES = ("source", "eroded", "dilated", "thresholded", "shrunk", "grown", "data set")


def test_the_choice_of_a_mask_is_blind_and_stored_by_its_own_name(review):
    opened = review("mask", raters=2)
    people = [opened.person("Ada"), opened.person("Bob")]
    orders = []
    for person, name in zip(people, ("source", "dilated"), strict=True):
        items_ = person.take("mask", 10)
        by_item = [by_area(person, item) for item in items_]
        orders.append([tuple(labels[n] for n in ("eroded", "source", "dilated")) for labels in by_item])
        item, labels = items_[0], by_item[0]
        text = json.dumps(item)
        assert not [word for word in MASK_NAMES if word in text]
        assert item["images"]["mask"] is None  # either would show which mask is the dataset's own
        assert item["images"]["reference"] is None
        for image in ("mask", "reference", *(f"proposal-{n}" for n in MASK_NAMES[:3])):
            assert person.http.get(f"/api/items/{item['id']}/images/{image}").status_code == 404
        person.answer(item, 422, choice=name)
        person.answer(item, choice=labels[name])
        again = person.get(f"/items/{item['id']}")
        assert again["answer"]["choice"] == labels[name]
        assert not [word for word in MASK_NAMES if word in json.dumps(again)]
        history = person.get("/tasks/mask/history")
        assert not [word for word in MASK_NAMES if word in json.dumps(history)]
    assert len(set(orders[0])) > 1  # shuffled from item to item
    assert any(a != b for a, b in zip(*orders, strict=True))  # and from rater to rater
    with opened.service.database.read() as connection:
        rows = connection.execute(select(answers).order_by(answers.c.user_id)).all()
    assert [row.payload["choice"] for row in rows] == ["source", "dilated"]
    chosen = [
        row.payload["labels"][order[0][at]] for row, order, at in zip(rows, orders, (1, 2), strict=True)
    ]
    assert chosen == ["source", "dilated"]
    judge = opened.person("Cy", "adjudicator")
    seen = judge.get(f"/tasks/mask/consensus/{item['id']}")
    theirs = by_area(judge, seen["item"])
    assert [a["answer"]["choice"] for a in seen["answers"]] == [theirs["source"], theirs["dilated"]]
    pictures = {p["label"]: p["image"] for p in seen["item"]["proposals"]}
    assert [a["mask_image"] for a in seen["answers"]] == [pictures[theirs[n]] for n in ("source", "dilated")]
    assert not [word for word in MASK_NAMES if word in json.dumps(seen)]
    export = opened.person("Root", "admin").http.get("/api/export/mask.csv").text.splitlines()
    assert [line.split(",")[-1] for line in export] == ["choice", "source", "dilated"]


def test_a_mask_that_was_chosen_before_labels_were_blind_is_still_read(review):
    opened = review("mask")
    rater = opened.person("Ada")
    (item,) = rater.take("mask")
    old = {"kind": "mask", "choice": "dilated", "mask": None, "comment": ""}  # without "labels"
    action = Action(rater.me["user"]["id"], item["id"], "answer", uuid.uuid4().hex, old, 4.0)
    with opened.service.database.write() as connection:
        record(connection, action, item["version"], 1.0)
    assert rater.get(f"/items/{item['id']}")["answer"]["choice"] == by_area(rater, item)["dilated"]
    export = opened.person("Root", "admin").http.get("/api/export/mask.csv").text
    assert export.splitlines()[1].endswith(",mask,dilated")


@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        (["source"], "source"),
        (["source", "dilated"], None),  # exactly half
        (["dilated", "source", "dilated", "eroded"], None),  # exactly half of four
        (["dilated", "source", "dilated"], "dilated"),
        (["source", "dilated", "eroded"], None),
    ],
)
def test_a_mask_needs_more_than_half_of_the_votes(votes, winner):
    vote = majority([{"kind": "mask", "choice": name, "mask": None} for name in votes])
    assert (vote and vote.choice) == winner
    assert vote is None or vote.votes == votes.count(winner)


def test_ranking_is_blind_shuffled_and_kept_by_run(review, material):
    opened = review("rank", runs=("model-x", "model-y", "model-z"), raters=2)
    a, b = opened.person("Ada"), opened.person("Bob")

    def labels_by_run(person, item):
        """Told apart by their pixels: identity is the input itself, the oracle the reference."""
        image = lambda url: decode_png(person.http.get(url).content)
        pixels = {o["label"]: image(o["image"]) for o in item["outputs"]}
        source, reference = (image(item["images"][name]) for name in ("input", "reference"))
        labels = {
            "x": next(k for k, p in pixels.items() if np.array_equal(p, source)),
            "y": next(k for k, p in pixels.items() if np.array_equal(p, reference)),
        }
        (labels["z"],) = set(pixels) - set(labels.values())
        return labels

    orders = []
    for person in (a, b):
        shown = person.take("rank", 10)
        assert "model-" not in str(shown)
        assert "identity" not in str(shown)
        labels = [labels_by_run(person, item) for item in shown]
        orders.append([tuple(each[run] for run in "xyz") for each in labels])
        item, label = shown[0], labels[0]
        ranking = [[label["y"]], sorted([label["x"], label["z"]])]
        person.answer(item, rankings=dict.fromkeys(CRITERIA, ranking))
        assert person.get(f"/items/{item['id']}")["answer"]["rankings"]["quality"] == ranking
    assert all(len(set(order)) > 1 for order in orders)  # shuffled from item to item
    assert any(mine != theirs for mine, theirs in zip(*orders, strict=True))  # and from rater to rater
    chief = opened.person("Cy", "admin")
    lines = chief.http.get("/api/export/rank.csv").text.splitlines()
    assert lines[0] == "sample_id,rater,run,criterion,rank"
    body = [line.split(",") for line in lines[1:]]
    assert {(run, rank) for _, _, run, _, rank in body} == {
        ("model-y", "1"), ("model-x", "2.5"), ("model-z", "2.5"),
    }  # fmt: skip
    assert {rater for _, rater, *_ in body} == {"R01", "R02"}


def test_an_adjudicator_sees_rankings_in_their_own_labels(review):
    opened = review("rank", runs=("model-x", "model-y", "model-z"), sample=4, raters=2)
    a, judge = opened.person("Ada"), opened.person("Cy", "adjudicator")
    for item in a.take("rank", 4):
        pictures = {o["label"]: o["image"] for o in item["outputs"]}
        a.answer(item, rankings={c: [["C"], ["A", "B"]] for c in CRITERIA})
        seen = judge.get(f"/tasks/rank/consensus/{item['id']}")
        theirs = {o["label"]: o["image"] for o in seen["item"]["outputs"]}
        ((best,), tied) = seen["answers"][0]["answer"]["rankings"]["accuracy"]
        assert theirs[best] == pictures["C"]
        assert {theirs[label] for label in tied} == {pictures["A"], pictures["B"]}
        assert "labels" not in seen["answers"][0]["answer"]
        assert seen["answers"][0]["rater"] == "R01"
        answer = {"kind": "rank", "rankings": {c: [[best], tied] for c in CRITERIA}}
        body = {"key": uuid.uuid4().hex, "version": item["version"], "answer": answer}
        judge.post(f"/items/{item['id']}/consensus", 201, **body)
        settled = judge.get(f"/tasks/rank/consensus/{item['id']}")["consensus"]
        assert settled["answer"]["rankings"]["quality"] == [[best], tied]
    assert len(judge.get("/tasks/rank/consensus", only="settled")["items"]) == 4
    judge.post(f"/items/{item['id']}/consensus/undo", key=uuid.uuid4().hex)
    assert len(judge.get("/tasks/rank/consensus", only="settled")["items"]) == 3


def test_the_database_refuses_to_change_an_event(review):
    opened = review("inspect")
    rater = opened.person("Ada")
    (item,) = rater.take("inspect")
    rater.answer(item, decision="accept")
    for change in (events.update().values(seconds=1.0), events.delete(), audit.delete()):
        with pytest.raises(DatabaseError, match="append-only"), opened.service.database.write() as connection:
            connection.execute(change)


def test_incomplete_rankings_are_refused(review):
    rater = review("rank").person("Ada")
    (item,) = rater.take("rank")
    full = [["A"], ["B"]]
    for bad in ([["A"]], [["A"], ["A"]], [["A"], ["B"], ["C"]], [["A", "B"], []], []):
        rater.answer(item, 422, rankings={"accuracy": full, "preservation": full, "quality": bad})
    rater.answer(item, 422, rankings={"accuracy": full})
    rater.answer(item, rankings={"accuracy": full, "preservation": [["A", "B"]], "quality": full})


def test_a_new_run_asks_only_for_its_own_comparisons(review):
    first = review("rank", sample=6)
    rater = first.person("Ada")
    for item in rater.take("rank", 10):
        full = [["A"], ["B"]]
        rater.answer(item, rankings=dict.fromkeys(CRITERIA, full))
    assert rater.take("rank") == []
    second = review("rank", runs=("model-x", "model-y", "model-z"))
    rater = second.person("Ada")
    given = rater.take("rank", 10)
    assert len(given) == 6
    for item in given:
        assert len(item["outputs"]) == 2  # the new one and one that it is compared with
        rater.answer(item, rankings={c: [["A"], ["B"]] for c in CRITERIA})
    lines = second.person("Root", "admin").http.get("/api/export/rank.csv").text.splitlines()[1:]
    rows = [line.split(",") for line in lines]
    assert {rater for _, rater, *_ in rows} == {"R01", "R01/2"}
    assert {run for _, rater, run, *_ in rows if rater == "R01"} == {"model-x", "model-y"}
    later = {}
    for sample, rater_, run, *_ in rows:
        if rater_ == "R01/2":
            later.setdefault(sample, set()).add(run)
    assert all("model-z" in runs for runs in later.values())
    assert set.union(*later.values()) == {"model-x", "model-y", "model-z"}  # not always the same one
    assert len({tuple(row[:4]) for row in rows}) == len(rows)  # no rater says a thing twice
    third = review("rank", runs=("model-x", "model-y", "model-z"))
    assert third.service.tasks["rank"].items == 12  # nothing new: nothing added


def test_an_answer_to_another_version_or_kind_is_refused(review):
    rater = review("inspect", "mask").person("Ada")
    (item,) = rater.take("inspect")
    rater.answer({**item, "version": "0" * 32}, 409, decision="accept")
    rater.answer({**item, "kind": "mask"}, 422, choice="source")
    rater.answer(item, 422, decision="reject")
    rater.answer(item, 422, decision="accept", scores={"accuracy": 6})
    rater.answer(item, 422, decision="accept", scores={"beauty": 3})
    rater.answer(item, 422, decision="accept", comment="x" * 2001)
    rater.answer(item, 422, decision="accept", comment="a\0b")
    rater.answer(item, decision="accept", scores={"accuracy": 5})


def test_a_mask_of_a_large_image_is_read():
    """More pixels than an upload may have bytes; as grey and, from a browser's canvas, in colour."""
    mask = np.zeros((3000, 2900), np.uint8)
    mask[100:900, 200:1900] = 255
    for pixels in (mask, np.repeat(mask[..., None], 3, axis=2)):
        png = encode_png(pixels)
        assert np.array_equal(read_upload(png, mask.shape, {255: "disc"}), mask)
    with pytest.raises(ImageError, match="wrong size"):
        read_upload(png, (10, 10), {255: "disc"})


@pytest.mark.parametrize("failures", [1, 2])
def test_a_review_opens_although_one_sync_was_interrupted(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    left = [DatabaseFailureError("cannot open the review database")] * failures
    create = service_module.create_items

    def fail_first(*given: Any) -> Any:
        if left:
            raise left.pop()
        return create(*given)

    monkeypatch.setattr(service_module, "create_items", fail_first)
    places, db = [material / "dataset"], str(tmp_path / "review.sqlite")
    if failures == 2:
        with pytest.raises(DatabaseFailureError):
            service_module.open_review(places, db=db)
        return
    service = service_module.open_review(places, db=db)
    assert service.tasks["inspect"].items > 0
    service.database.close()
