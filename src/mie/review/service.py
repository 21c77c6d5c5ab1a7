"""What a rater does, without HTTP: take items, look at one, answer, undo."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Row, func, insert, select
from sqlalchemy.exc import IntegrityError

from mie.errors import ImageError
from mie.images.png import encode_png, png_size
from mie.review.api import ASKED, CRITERIA, KINDS, QUESTION_REASONS, QUESTIONS, REASONS, ApiError
from mie.review.assignments import display_seed, find_assignment, next_items
from mie.review.auth import Session
from mie.review.database import Database, DatabaseFailureError, answers, iso, items, masks, tasks
from mie.review.events import Action, answers_to, record
from mie.review.figures import ProgressCounter
from mie.review.masks import RegionProposals, read_upload
from mie.review.material import ItemImages, Material
from mie.review.plan import create_items
from mie.review.question_material import QuestionMaterial, check_reply, is_question_set
from mie.review.views import ItemViews, from_labels, image_url, mask_classes, to_labels

MAX_UPLOADS: Final = 200  # per item, so that nobody can fill the disk through the page


@dataclass(frozen=True, slots=True)
class Task:
    id: int
    kind: str
    seed: int
    raters: int
    items: int


def open_review(
    folders: Sequence[Path],
    *,
    kinds: Sequence[str] = (),
    db: str | None = None,
    proposals: Path | None = None,
    **settings: Any,
) -> ReviewService:
    """Open a dataset and runs for review, creating the items that do not exist yet.

    Without `kinds`: inspection, and ranking if there are at least two runs. `proposals` is a folder that
    `mie propose` wrote; `settings` are the fields of `mie.review.plan.Settings`.
    """
    material: Material | QuestionMaterial
    if any(is_question_set(folder) for folder in folders):
        material = QuestionMaterial.open(folders)
        kinds = kinds or ["answer"]
    else:
        material = Material.open(folders)
    regions = None if proposals is None else RegionProposals(proposals)
    place = db or default_database(material)
    kinds = kinds or ["inspect", *(["rank"] if len(material.runs) > 1 else [])]

    def opened() -> ReviewService:
        database = Database(place)
        return ReviewService(database, material, create_items(database, material, kinds, settings, regions))

    try:
        return opened()
    except DatabaseFailureError:
        # SQLite fails where a sync is interrupted, and does not repeat it. Nothing was saved: it is safe to.
        return opened()


def default_database(material: Material | QuestionMaterial) -> Path:
    folder = material.dataset.folder.resolve()
    return folder.with_name(f"{folder.name}-review") / "review.sqlite"


class ReviewService:
    """An open review; one for the whole server."""

    def __init__(
        self, database: Database, material: Material | QuestionMaterial, counts: Mapping[str, int]
    ) -> None:
        self.database = database
        self.material = material
        self.images = ItemImages(database, material)
        self.views = ItemViews(material, self.images)
        self.progress = ProgressCounter(database)
        with database.read() as connection:
            rows = {row.kind: row for row in connection.execute(select(tasks))}
        self.tasks = {
            kind: Task(rows[kind].id, kind, rows[kind].settings["seed"], rows[kind].settings["raters"], n)
            for kind, n in counts.items()
        }
        self._task_by_id = {task.id: task for task in self.tasks.values()}

    def task(self, kind: str) -> Task:
        if kind not in self.tasks:
            raise ApiError(404, "unknown", f"this review has no task {kind!r}")
        return self.tasks[kind]

    def describe_task(self, kind: str, session: Session) -> dict[str, Any]:
        """Return the task and this person's progress in it."""
        task = self.task(kind)
        return {
            "kind": kind,
            "title": KINDS[kind],
            "items": task.items,
            "raters_per_item": task.raters,
            "progress": self.progress.of(task.id, session.user_id),
            "reasons": list({"inspect": REASONS, "question": QUESTION_REASONS}.get(kind, ())),
            "criteria": list(CRITERIA) if kind in ("inspect", "rank") else [],
            "questions": [{"id": i, "text": t} for i, t in ASKED.get(kind, {}).items()],
        }

    def describe_material(self) -> dict[str, Any]:
        """Return what the review is about."""
        found = self.material.dataset
        noun = self.material.noun
        return {"name": found.name, "samples": len(found), "noun": noun, "digest": found.digest}

    # ---- Items ----

    def next(self, kind: str, session: Session, count: int) -> dict[str, Any]:
        """Return the items that this person should do next."""
        task = self.task(kind)
        # A lease that is lost in a power cut is simply given again: not worth waiting for the disk.
        with self.database.write(durable=False) as connection:
            numbers = next_items(connection, task.id, task.seed, session.user_id, count, time.time())
        leased = [self.item(number, session) for number in numbers]
        return {"items": leased, "progress": self.progress.of(task.id, session.user_id)}

    def item(self, item_id: int, session: Session) -> dict[str, Any]:
        with self.database.read() as connection:
            item, seed = self._find_item(connection, item_id, session)
            answer = connection.scalar(
                select(answers.c.payload).where(
                    answers.c.item_id == item_id, answers.c.user_id == session.user_id
                )
            )
        return self.views.describe(self._kind(item), item, seed, answer)

    def image(self, item_id: int, name: str, side: int | None, session: Session) -> bytes:
        with self.database.read() as connection:
            item, _ = self._find_item(connection, item_id, session)
        return self.images.png(self._kind(item), item, name, side)

    def history(self, kind: str, session: Session, before: int | None, limit: int) -> dict[str, Any]:
        """List this person's own answers, newest first."""
        task = self.task(kind)
        query = (
            select(answers.c.item_id, answers.c.event_id, answers.c.at, answers.c.verdict)
            .where(answers.c.user_id == session.user_id, answers.c.task_id == task.id)
            .order_by(answers.c.event_id.desc())
            .limit(limit)
        )
        if before is not None:
            query = query.where(answers.c.event_id < before)
        with self.database.read() as connection:
            rows = connection.execute(query).all()
        entries = [
            {
                "item": row.item_id,
                "event": row.event_id,
                "at": iso(row.at),
                # The verdict on a mask is its own name, which raters must not see.
                "summary": "chosen" if kind == "mask" else row.verdict,
            }
            for row in rows
        ]
        return {"items": entries, "before": rows[-1].event_id if len(rows) == limit else None}

    # ---- Answers ----

    def answer(
        self,
        session: Session,
        item_id: int,
        key: str,
        version: str,
        seconds: float,
        answer: Mapping[str, Any],
    ) -> tuple[int, bool, dict[str, Any]]:
        """Store an answer; return its event's id, whether it is new, and the person's progress."""
        task_id, payload = self._payload(session, item_id, answer)
        action = Action(session.user_id, item_id, "answer", key, payload, seconds)
        return *self._record(action, version), self.progress.of(task_id, session.user_id)

    def undo(self, session: Session, item_id: int, key: str) -> dict[str, Any]:
        with self.database.read() as connection:
            self._find_item(connection, item_id, session)
        event, _ = self._record(Action(session.user_id, item_id, "undo", key, {}), None)
        item = self.item(item_id, session)
        progress = self.progress.of(self.task(item["kind"]).id, session.user_id)
        return {"event": event, "item": item_id, "answer": item["answer"], "progress": progress}

    def set_consensus(
        self, session: Session, item_id: int, key: str, version: str | None, answer: Mapping[str, Any] | None
    ) -> tuple[int, bool]:
        """Store an adjudicator's decision on an item; without an answer, undo the last decision."""
        payload = {} if answer is None else self._payload(session, item_id, answer)[1]
        action = "consensus undo" if answer is None else "consensus"
        return self._record(Action(session.user_id, item_id, action, key, payload), version)

    def all_answers(self, kind: str, item_id: int, session: Session) -> dict[str, Any]:
        """Return an item with everybody's answers, in the labels that this adjudicator sees."""
        with self.database.read() as connection:
            item, seed = self._find_item(connection, item_id, session)
            if item.task_id != self.task(kind).id:
                raise ApiError(404, "unknown", "there is no such item")
            given, consensus = answers_to(connection, item_id)
        choices = self.views.choices(kind, item, seed)
        for entry in given:
            entry["mask_image"] = self.views.mask_url(item, entry["answer"])
        for entry in [*given, *([consensus] if consensus else [])]:
            entry["answer"] = to_labels(entry["answer"], choices)
        return {
            "item": self.views.describe(kind, item, seed, None),
            "answers": given,
            "consensus": consensus,
        }

    def upload_mask(self, session: Session, item_id: int, data: bytes) -> dict[str, str]:
        """Store a repaired mask as 8-bit grey PNG of the item's own size and classes."""
        with self.database.read() as connection:
            item, _ = self._find_item(connection, item_id, session)
        if self._kind(item) != "mask":
            raise ApiError(422, "invalid", "this item has no mask to repair")
        row = self.material.row(item.places[0], ["input", "colour", "params", "target"])
        classes = {c["value"]: c["name"] for c in mask_classes(row)}
        try:
            mask = read_upload(data, png_size(row["input"]["bytes"]), classes)
        except ImageError as error:
            raise ApiError(422, "invalid", error.reason) from None
        png = encode_png(mask)
        name = hashlib.sha256(png).hexdigest()
        body = {"sha256": name, "item_id": item_id, "png": png, "at": time.time()}
        with self.database.write() as connection:
            same = select(masks.c.at).where(masks.c.sha256 == name, masks.c.item_id == item_id)
            if connection.scalar(same) is None:
                of_item = select(func.count()).where(masks.c.item_id == item_id)
                if (connection.scalar(of_item) or 0) >= MAX_UPLOADS:
                    raise ApiError(409, "conflict", "this item has too many repaired masks already")
                connection.execute(insert(masks), body)
        return {"mask": name, "image": image_url(item, f"upload-{name}")}

    def _kind(self, item: Row[Any]) -> str:
        return self._task_by_id[item.task_id].kind

    def _find_item(self, connection: Connection, item_id: int, session: Session) -> tuple[Row[Any], int]:
        """Return the item and the seed of its labels; a person who may not see it learns nothing about it."""
        item = connection.execute(select(items).where(items.c.id == item_id)).one_or_none()
        if item is None or item.task_id not in self._task_by_id:
            raise ApiError(404, "unknown", "there is no such item")
        assignment = find_assignment(connection, item_id, session.user_id)
        if assignment is None and not session.has_role("adjudicator"):
            raise ApiError(404, "unknown", "there is no such item")
        seed = display_seed(self._task_by_id[item.task_id].seed, session.user_id, item_id)
        return item, seed if assignment is None else assignment.seed

    def _payload(
        self, session: Session, item_id: int, answer: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """Return the item's task and the answer as it is stored, after checking that it fits the item."""
        # Before the write starts: what is checked here never changes, and writers wait for each other.
        with self.database.read() as connection:
            item, seed = self._find_item(connection, item_id, session)
            kind = self._kind(item)
            if answer["kind"] != kind:
                raise ApiError(422, "invalid", f"this item is of kind {kind}")
            choices = self.views.choices(kind, item, seed)
            if kind == "rank":
                _check_rankings(answer["rankings"], sorted(choices))
            elif kind == "answer":
                question = self.views.describe(kind, item, seed, None)["question"]
                if trouble := check_reply(question, answer["reply"]):
                    raise ApiError(422, "invalid", trouble)
            elif kind == "questions" and set(answer["answers"]) != set(QUESTIONS):
                raise ApiError(422, "invalid", f"answer all of {', '.join(QUESTIONS)}")
            elif kind == "mask" and answer["choice"] == "repaired":
                upload = select(masks.c.at).where(
                    masks.c.sha256 == answer["mask"], masks.c.item_id == item.id
                )
                if connection.scalar(upload) is None:
                    raise ApiError(422, "invalid", "this mask was not uploaded")
            elif kind == "mask" and answer["choice"] not in ("none", *choices):
                raise ApiError(422, "invalid", f"there is no mask {answer['choice']}")
        return item.task_id, from_labels(answer, choices)

    def _record(self, action: Action, version: str | None) -> tuple[int, bool]:
        try:
            with self.database.write() as connection:
                return record(connection, action, version, time.time())
        except IntegrityError:  # the same key for two items at the same moment
            raise ApiError(409, "conflict", "this key was used for another answer") from None


def _check_rankings(rankings: Mapping[str, Sequence[Sequence[str]]], labels: list[str]) -> None:
    for criterion, groups in rankings.items():
        if sorted(label for group in groups for label in group) != labels:
            raise ApiError(422, "invalid", f"{criterion} must rank {', '.join(labels)}, each once")
