"""Which mask people chose: by vote, as PNG, as files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from mie.core.files import atomic_write
from mie.core.hashing import file_stem
from mie.errors import MieError
from mie.review.database import answers, consensus, items, masks, tasks
from mie.review.work import Desk


@dataclass(frozen=True, slots=True)
class Chosen:
    choice: str
    upload: str | None  # of a repaired mask its SHA-256
    votes: int


def said(connection: Connection, kind: str) -> dict[tuple[int, str], list[Mapping[str, Any]]]:
    """(item, sample) -> what stands: every rater's answer, or an adjudicator's alone where there is one."""
    told: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for table in (answers, consensus):
        rows = connection.execute(
            select(items.c.id, items.c.sample_id, table.c.payload)
            .join(tasks, tasks.c.id == items.c.task_id)
            .join(table, table.c.item_id == items.c.id)
            .where(tasks.c.kind == kind)
            .order_by(table.c.event_id)
        )
        if table is answers:
            for row in rows:
                told.setdefault((row.id, row.sample_id), []).append(row.payload)
        else:
            told |= {(row.id, row.sample_id): [row.payload] for row in rows}
    return told


def majority(payloads: Sequence[Mapping[str, Any]]) -> Chosen | None:
    """What more than half chose; None where they are divided."""
    (choice, upload), votes = Counter((p["choice"], p["mask"]) for p in payloads).most_common(1)[0]
    return Chosen(choice, upload, votes) if 2 * votes > len(payloads) else None


def kept_png(connection: Connection, item_id: int, chosen: Chosen) -> bytes | None:
    """A repaired mask or a model's region, which the database holds; None for what a mask is derived from."""
    sha256 = chosen.upload
    if chosen.choice.startswith("region-"):
        outputs = connection.execute(select(items.c.outputs).where(items.c.id == item_id)).scalar_one()
        sha256 = {name: sha for name, _, sha in outputs}[chosen.choice]
    if sha256 is None:
        return None
    query = select(masks.c.png).where(masks.c.sha256 == sha256, masks.c.item_id == item_id)
    return bytes(connection.execute(query).scalar_one())


def write_masks(desk: Desk, folder: Path) -> int:
    """The chosen masks as `<id>.png`, class k of n with the value round(255 k / n), and `masks.jsonl` about
    every item that was answered; how many masks there are.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MieError("the folder of the masks is not new", where=folder, expected="a new or empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    lines, written = [], 0
    with desk.database.read() as connection:
        told = said(connection, "mask")
    for (item_id, sample_id), payloads in told.items():
        chosen = majority(payloads)
        file = None
        if chosen is not None and chosen.choice != "none":
            with desk.database.read() as connection:
                item = connection.execute(select(items).where(items.c.id == item_id)).one()
            name = f"upload-{chosen.upload}" if chosen.upload else f"proposal-{chosen.choice}"
            file = f"{file_stem(sample_id)}.png"
            atomic_write(folder / file, desk.pictures.png("mask", item, name, None))
            written += 1
        choice = None if chosen is None else chosen.choice
        votes = None if chosen is None else chosen.votes
        body = {
            "sample_id": sample_id,
            "choice": choice,
            "votes": votes,
            "raters": len(payloads),
            "file": file,
        }
        lines.append(json.dumps(body, ensure_ascii=False) + "\n")
    atomic_write(folder / "masks.jsonl", "".join(lines))
    return written
