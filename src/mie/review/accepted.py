"""Who accepted which sample, for a benchmark that people must agree on."""

from __future__ import annotations

from sqlalchemy import select

from mie.datasets.choose import CONSENSUS, Decision
from mie.datasets.dataset import Dataset
from mie.errors import ConfigError
from mie.review.apply import check_owner
from mie.review.database import Database, tasks
from mie.review.export import CONSENSUS as AGREED
from mie.review.export import opinions


def read_decisions(place: str, dataset: Dataset) -> list[Decision]:
    """Every current inspection of the dataset's samples; a flag does not accept.

    `MieError` where the review is of another dataset: its samples may have changed since.
    """
    database = Database.open_existing(place)
    try:
        with database.read() as connection:
            check_owner(connection, dataset)
            task = connection.scalar(select(tasks.c.id).where(tasks.c.kind == "inspect"))
        if task is None:
            raise ConfigError(
                "the review holds no inspections", where=place, fix="review with `mie review --kind inspect`"
            )
        return [
            Decision(
                str(opinion["sample_id"]),
                CONSENSUS if opinion["rater"] == AGREED else str(opinion["rater"]),
                opinion["answer"]["decision"] == "accept",
            )
            for opinion in opinions(database, int(task))
        ]
    finally:
        database.close()
