"""How far one person has come: cheap enough to go out with every answer."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select
from sqlalchemy.exc import IntegrityError

from mie.errors import ImageError
from mie.images.png import encode_png, png_size
from mie.review.accounts import Session, Sessions
from mie.review.assignments import assignment_of, display_seed, next_items
from mie.review.database import Database, answers, assignments, iso, items, masks, tasks
from mie.review.errors import Refused
from mie.review.events import Act, record
from mie.review.kinds import CRITERIA, KINDS, QUESTIONS, REASONS
from mie.review.material import Material
from mie.review.pictures import Pictures
from mie.review.proposals import read_upload
from mie.review.views import Views, labelled, mask_classes, stored

_RECENT: Final = 50  # answers that the speed is taken from
_FRESH: Final = 5.0  # seconds for which a count of open items is good enough


class Progress:
    """Counts what is left rarely, because it looks at every open item; the person's own acts at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counted: dict[tuple[int, int], tuple[float, int, int, float | None]] = {}

    def of(self, task_id: int, user_id: int) -> dict[str, Any]:
        with self._database.read() as connection:
            mine = (answers.c.user_id == user_id, answers.c.task_id == task_id)
            done = int(connection.scalar(select(func.count()).where(*mine)) or 0)
            when, then, left, speed = self._counted.get((task_id, user_id), (-_FRESH, 0, 0, None))
            if time.monotonic() - when >= _FRESH or speed is None:
                left, then, speed = (
                    count_remaining(connection, task_id, user_id),
                    done,
                    _speed(connection, mine),
                )
                self._counted[task_id, user_id] = time.monotonic(), then, left, speed
        remaining = max(0, left - (done - then))
        return {
            "done": done,
            "remaining": remaining,
            "total": done + remaining,
            "seconds_per_item": None if speed is None else round(speed, 2),
            "seconds_left": None if speed is None else round(speed * remaining),
        }


def _speed(connection: Connection, mine: Sequence[ColumnElement[bool]]) -> float | None:
    """Seconds per answer, lately. The median: one lunch break says nothing about speed."""
    recent = connection.scalars(
        select(answers.c.seconds).where(*mine).order_by(answers.c.event_id.desc()).limit(_RECENT)
    )
    known = [seconds for seconds in recent if seconds is not None]
    return statistics.median(known) if known else None


def count_remaining(connection: Connection, task_id: int, user_id: int) -> int:
    """What this person holds unanswered, and what is open and new to them."""
    mine = assignments.c.user_id == user_id, assignments.c.task_id == task_id
    held = select(func.count()).where(*mine, assignments.c.state == "leased")
    free = select(func.count()).select_from(items).where(items.c.task_id == task_id, items.c.open > 0)
    seen = (
        select(func.count())
        .select_from(assignments)
        .join(items, items.c.id == assignments.c.item_id)
        .where(*mine, assignments.c.state != "lapsed", items.c.open > 0)
    )
    counts = [int(connection.scalar(query) or 0) for query in (held, free, seen)]
    return counts[0] + counts[1] - counts[2]


# What a rater does, without HTTP: take items, look at one, answer, take back.

MOST_UPLOADS: Final = 200  # of one item: a disk is not filled through a page


@dataclass(frozen=True, slots=True)
class Task:
    id: int
    kind: str
    seed: int
    raters: int
    items: int


class Desk:
    """Everything the routes need; one for the whole server."""

    def __init__(self, database: Database, material: Material, counts: Mapping[str, int]) -> None:
        self.database = database
        self.material = material
        self.pictures = Pictures(database, material)
        self.views = Views(material, self.pictures)
        self.progress = Progress(database)
        self.sessions = Sessions(database)
        with database.read() as connection:
            rows = {row.kind: row for row in connection.execute(select(tasks))}
        self.tasks = {
            kind: Task(rows[kind].id, kind, rows[kind].settings["seed"], rows[kind].settings["raters"], n)
            for kind, n in counts.items()
        }
        self._kind_of = {task.id: task for task in self.tasks.values()}

    def task(self, kind: str) -> Task:
        if kind not in self.tasks:
            raise Refused(404, "unknown", f"this review has no task {kind!r}")
        return self.tasks[kind]

    def about(self, kind: str, session: Session) -> dict[str, Any]:
        """The task, and how far this person has come with it."""
        task = self.task(kind)
        return {
            "kind": kind,
            "title": KINDS[kind],
            "items": task.items,
            "raters_per_item": task.raters,
            "progress": self.progress.of(task.id, session.user_id),
            "reasons": list(REASONS) if kind == "inspect" else [],
            "criteria": list(CRITERIA) if kind in ("inspect", "rank") else [],
            "questions": [{"id": i, "text": t} for i, t in QUESTIONS.items()] if kind == "questions" else [],
        }

    def next(self, kind: str, session: Session, count: int) -> dict[str, Any]:
        task = self.task(kind)
        # A lease that is lost with the machine's power is given anew: not worth waiting for the disk.
        with self.database.write(durable=False) as connection:
            numbers = next_items(connection, task.id, task.seed, session.user_id, count, time.time())
        given = [self.item(number, session) for number in numbers]
        return {"items": given, "progress": self.progress.of(task.id, session.user_id)}

    def item(self, item_id: int, session: Session) -> dict[str, Any]:
        with self.database.read() as connection:
            item, seed = self.look(connection, item_id, session)
            answer = connection.scalar(
                select(answers.c.payload).where(
                    answers.c.item_id == item_id, answers.c.user_id == session.user_id
                )
            )
        return self.views.item(self._kind_of[item.task_id].kind, item, seed, answer)

    def look(self, connection: Connection, item_id: int, session: Session) -> tuple[Row[Any], int]:
        """The item and the seed of its labels, if this person may see it; else it does not exist."""
        item = connection.execute(select(items).where(items.c.id == item_id)).one_or_none()
        if item is None or item.task_id not in self._kind_of:
            raise Refused(404, "unknown", "there is no such item")
        assignment = assignment_of(connection, item_id, session.user_id)
        if assignment is None and not session.may("adjudicator"):
            raise Refused(404, "unknown", "there is no such item")
        seed = display_seed(self._kind_of[item.task_id].seed, session.user_id, item_id)
        return item, seed if assignment is None else assignment.seed

    def version(self, item_id: int, session: Session) -> str:
        with self.database.read() as connection:
            return str(self.look(connection, item_id, session)[0].version)

    def picture(self, item_id: int, name: str, side: int | None, session: Session) -> bytes:
        with self.database.read() as connection:
            item, _ = self.look(connection, item_id, session)
        return self.pictures.png(self._kind_of[item.task_id].kind, item, name, side)

    def answer(
        self,
        session: Session,
        item_id: int,
        key: str,
        version: str,
        seconds: float,
        answer: Mapping[str, Any],
    ) -> tuple[int, bool, dict[str, Any]]:
        """The event's id, whether it is new, and the person's progress."""
        task_id, payload = self._payload(session, item_id, answer)
        act = Act(session.user_id, item_id, "answer", key, payload, seconds)
        return *self._record(act, version), self.progress.of(task_id, session.user_id)

    def undo(self, session: Session, item_id: int, key: str) -> dict[str, Any]:
        with self.database.read() as connection:
            self.look(connection, item_id, session)
        event, _ = self._record(Act(session.user_id, item_id, "undo", key, {}), None)
        item = self.item(item_id, session)
        progress = self.progress.of(self.task(item["kind"]).id, session.user_id)
        return {"event": event, "item": item_id, "answer": item["answer"], "progress": progress}

    def settle(
        self, session: Session, item_id: int, key: str, version: str | None, answer: Mapping[str, Any] | None
    ) -> tuple[int, bool]:
        """An adjudicator's word on an item; without an answer: the last word is taken back."""
        payload = {} if answer is None else self._payload(session, item_id, answer)[1]
        action = "consensus undo" if answer is None else "consensus"
        return self._record(Act(session.user_id, item_id, action, key, payload), version)

    def _payload(
        self, session: Session, item_id: int, answer: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """The item's task, and the answer as it is kept."""
        # Looked at before the write begins: what is checked here never changes, and writers wait for writers.
        with self.database.read() as connection:
            item, seed = self.look(connection, item_id, session)
            return item.task_id, self._checked(connection, item, seed, answer)

    def _record(self, act: Act, version: str | None) -> tuple[int, bool]:
        try:
            with self.database.write() as connection:
                return record(connection, act, version, time.time())
        except IntegrityError:  # the same key for two items at the same moment
            raise Refused(409, "conflict", "this key was used for another answer") from None

    def upload(self, session: Session, item_id: int, data: bytes) -> dict[str, str]:
        """Keep a repaired mask, as it will be used: 8-bit grey, the item's own size and classes."""
        with self.database.read() as connection:
            item, _ = self.look(connection, item_id, session)
        if self._kind_of[item.task_id].kind != "mask":
            raise Refused(422, "invalid", "only masks can be repaired")
        row = self.material.row(item.places[0], ["input", "colour", "params", "target"])
        classes = {c["value"]: c["name"] for c in mask_classes(row)}
        try:
            mask = read_upload(data, png_size(row["input"]["bytes"]), classes)
        except ImageError as error:
            raise Refused(422, "invalid", error.reason) from None
        png = encode_png(mask)
        name = hashlib.sha256(png).hexdigest()
        body = {"sha256": name, "item_id": item_id, "png": png, "at": time.time()}
        with self.database.write() as connection:
            there = select(masks.c.at).where(masks.c.sha256 == name, masks.c.item_id == item_id)
            if connection.scalar(there) is None:
                of_item = select(func.count()).where(masks.c.item_id == item_id)
                if (connection.scalar(of_item) or 0) >= MOST_UPLOADS:
                    raise Refused(409, "conflict", "this item has too many repaired masks already")
                connection.execute(insert(masks), body)
        url = f"/api/items/{item_id}/images/upload-{name}?v={item.version[:12]}"
        return {"mask": name, "image": url}

    def history(self, kind: str, session: Session, before: int | None, limit: int) -> dict[str, Any]:
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
        listed = [
            {"item": row.item_id, "event": row.event_id, "at": iso(row.at), "summary": row.verdict}
            for row in rows
        ]
        return {"items": listed, "before": rows[-1].event_id if len(rows) == limit else None}

    def _checked(
        self, connection: Connection, item: Row[Any], seed: int, answer: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The answer as it is kept, if it fits the item."""
        kind = self._kind_of[item.task_id].kind
        if answer["kind"] != kind:
            raise Refused(422, "invalid", f"this item is of kind {kind}")
        if kind == "rank":
            labels = sorted(labelled(item, seed))
            for criterion, groups in answer["rankings"].items():
                if sorted(label for group in groups for label in group) != labels:
                    raise Refused(422, "invalid", f"{criterion} must rank {', '.join(labels)}, each once")
        elif kind == "questions" and set(answer["answers"]) != set(QUESTIONS):
            raise Refused(422, "invalid", f"answer all of {', '.join(QUESTIONS)}")
        elif kind == "mask":
            self._check_choice(connection, item, answer)
        return stored(answer, item, seed)

    def _check_choice(self, connection: Connection, item: Row[Any], answer: Mapping[str, Any]) -> None:
        if answer["choice"] == "repaired":
            there = select(masks.c.at).where(masks.c.sha256 == answer["mask"], masks.c.item_id == item.id)
            if connection.scalar(there) is None:
                raise Refused(422, "invalid", "this mask was not uploaded")
        elif answer["choice"] not in ("none", *self.pictures.proposal_names(item)):
            raise Refused(422, "invalid", f"{answer['choice']} was not proposed")
