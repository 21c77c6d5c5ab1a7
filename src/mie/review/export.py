"""What people said, as files: opinions with a number as CSV, everything as JSON lines. Raters by pseudonym.

The CSV is the human file of `mie agree`: `sample_id, rater, run, criterion` and `rank` (1 is best, tied runs
share their mean rank) or `score`. What is said about the dataset itself has the run `reference`. When a rater
ranks a sample again because a run was added, that ranking stands under `R01/2`: two rankings, not one.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select

from mie.errors import MieError
from mie.review.database import Database, answers, consensus, iso, items, runs, tasks, users
from mie.review.figures import mean_ranks
from mie.scoring.statistics.people import Rating

REFERENCE: Final = "reference"
CONSENSUS: Final = "consensus"  # stands where a rater's pseudonym does
_SCORES: Final = {"accept": 1, "reject": 0, "yes": 1, "no": 0}  # a flag and "not applicable" are no number


def opinions(database: Database, task_id: int) -> Iterator[dict[str, Any]]:
    """Each standing answer, then each consensus, in the order of the items."""
    with database.read() as connection:
        names = {row.id: row.name for row in connection.execute(select(runs))}
        kind = connection.scalar(select(tasks.c.kind).where(tasks.c.id == task_id))
    own = (items.c.position, items.c.sample_id, items.c.outputs, items.c.strata, items.c.version)
    told = (
        select(
            *own, users.c.pseudonym, answers.c.at, answers.c.seconds, answers.c.payload, answers.c.event_id
        )
        .join(answers, answers.c.item_id == items.c.id)
        .join(users, users.c.id == answers.c.user_id)
        .where(items.c.task_id == task_id)
        .order_by(items.c.position, users.c.id)
    )
    agreed = (
        select(*own, consensus.c.at, consensus.c.payload, consensus.c.event_id)
        .join(consensus, consensus.c.item_id == items.c.id)
        .where(items.c.task_id == task_id)
        .order_by(items.c.position)
    )
    with database.read() as connection:
        for query in (told, agreed):
            for row in connection.execute(query.execution_options(yield_per=1000)).mappings():
                yield _opinion(dict(row), str(kind), names)


def _opinion(row: Mapping[str, Any], kind: str, names: Mapping[int, str]) -> dict[str, Any]:
    # What a mask item shows beside its image are regions, not runs.
    numbers = dict.fromkeys(run for run, _, _ in row["outputs"]) if kind != "mask" else {}
    shown = [names[run] for run in numbers]
    answer = {key: value for key, value in row["payload"].items() if key not in ("kind", "labels")}
    if kind == "rank":
        answer["rankings"] = {
            criterion: [[names[run] for run in group] for group in groups]
            for criterion, groups in answer["rankings"].items()
        }
    return {
        "kind": kind,
        "sample_id": row["sample_id"],
        "rater": row.get("pseudonym", CONSENSUS),
        "runs": shown or [REFERENCE],
        "answer": answer,
        "at": iso(row["at"]),
        "seconds": row.get("seconds"),
        "event": row["event_id"],
        "item_version": row["version"],
        "strata": json.loads(row["strata"]),
    }


def json_lines(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for opinion in found:
        yield json.dumps(opinion, ensure_ascii=False) + "\n"


def ratings_of(place: str) -> list[Rating]:
    """Every opinion with a number that a review's database holds, of all kinds of work, as `mie agree` reads
    them from the CSV files.
    """
    if "://" not in place and not Path(place).is_file():
        raise MieError("no review here", where=place, expected="the file that `mie review` keeps")
    database = Database(place)
    try:
        with database.read() as connection:
            kinds = {row.kind: row.id for row in connection.execute(select(tasks))}
        found = [rating for kind in sorted(kinds) for rating in _rated(opinions(database, kinds[kind]))]
    finally:
        database.close()
    if not found:
        raise MieError("nobody has said anything yet", where=Database.shown(place))
    return found


def ratings_in(path: Path) -> list[Rating]:
    """The same from an export as JSON lines."""
    try:
        with path.open(encoding="utf-8") as file:
            return list(_rated(json.loads(line) for line in file))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = "JSON lines that `mie review --export` wrote"
        raise MieError(
            "not an export of a review", where=path, expected=expected, found=repr(error)
        ) from None


def _rated(found: Iterable[Mapping[str, Any]]) -> Iterator[Rating]:
    for kind, sample, rater, run, criterion, value in _numbers(found):
        if kind != "mask":  # its choice is a word
            rank, score = (float(value), None) if kind == "rank" else (None, float(value))
            yield Rating(sample, rater, run, rank, score, criterion)


def csv_lines(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    header = False
    for kind, *row in _numbers(found):
        if not header:
            yield _csv("sample_id", "rater", "run", "criterion", _column(kind))
            header = True
        yield _csv(*row)
    if not header:
        yield _csv("sample_id", "rater", "run", "criterion", "score")


def _numbers(found: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str, str, Any]]:
    """(kind, sample, rater, run, criterion, rank or score). A consensus is nobody's independent opinion."""
    times = Counter[tuple[str, str]]()
    for opinion in found:
        rater = opinion["rater"]
        if rater == CONSENSUS:
            continue
        if opinion["kind"] == "rank":
            times[opinion["sample_id"], rater] += 1
            n = times[opinion["sample_id"], rater]
            rater += f"/{n}" if n > 1 else ""
        for run, criterion, value in rows_of(opinion):
            yield opinion["kind"], opinion["sample_id"], rater, run, criterion, value


def rows_of(opinion: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(run, criterion, rank or score) of each number in an opinion; a mask's choice is a word."""
    answer, run = opinion["answer"], opinion["runs"][0]
    match opinion["kind"]:
        case "rank":
            for criterion, groups in answer["rankings"].items():
                for name, rank in mean_ranks(groups).items():
                    yield name, criterion, f"{rank:g}"
        case "inspect":
            if answer["decision"] in _SCORES:
                yield run, "accept", _SCORES[answer["decision"]]
            for criterion, score in answer["scores"].items():
                yield run, criterion, score
        case "questions":
            for question, reply in answer["answers"].items():
                if reply in _SCORES:
                    yield run, question, _SCORES[reply]
        case _:
            yield run, "mask", answer["choice"]


def _column(kind: str) -> str:
    return {"rank": "rank", "mask": "choice"}.get(kind, "score")


def _csv(*cells: object) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
