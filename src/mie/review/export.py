"""Answers as files: opinions with a number as CSV, everything as JSON lines, chosen masks as PNG.

The CSV is the human file of `mie agree`: `sample_id, rater, run, criterion` and `rank` (1 is best, tied runs
share their mean rank) or `score`. Raters appear under pseudonyms. Opinions about the dataset itself have the
run `reference`. If a rater ranks a sample again because a run was added, that ranking has the rater `R01/2`.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from mie.core.csv_cells import safe_row
from mie.core.files import atomic_write
from mie.core.hashing import file_stem
from mie.errors import ConfigError, MieError
from mie.review.database import Database, answers, consensus, iso, items, runs, tasks, users
from mie.review.events import final_answers
from mie.review.figures import mean_ranks
from mie.review.masks import majority
from mie.scoring.statistics.people import Rating

if TYPE_CHECKING:
    from mie.review.service import ReviewService

REFERENCE: Final = "reference"
CONSENSUS: Final = "consensus"  # in place of a rater's pseudonym
_SCORES: Final = {"accept": 1, "reject": 0, "yes": 1, "no": 0}  # a flag and "not applicable" are no number


def opinions(database: Database, task_id: int) -> Iterator[dict[str, Any]]:
    """Yield each current answer, then each consensus, in the order of the items."""
    with database.read() as connection:
        names = {row.id: row.name for row in connection.execute(select(runs))}
        kind = connection.scalar(select(tasks.c.kind).where(tasks.c.id == task_id))
    own = (items.c.position, items.c.sample_id, items.c.outputs, items.c.strata, items.c.version)
    ratings = (
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
        for query in (ratings, agreed):
            for row in connection.execute(query.execution_options(yield_per=1000)).mappings():
                yield _opinion(dict(row), str(kind), names)


def _opinion(row: Mapping[str, Any], kind: str, names: Mapping[int, str]) -> dict[str, Any]:
    # A mask item shows proposed regions, not runs.
    numbers = dict.fromkeys(run for run, _, _ in row["outputs"]) if kind != "mask" else {}
    run_names = [names[run] for run in numbers]
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
        "runs": run_names or [REFERENCE],
        "answer": answer,
        "at": iso(row["at"]),
        "seconds": row.get("seconds"),
        "event": row["event_id"],
        "item_version": row["version"],
        "strata": json.loads(row["strata"]),
    }


def json_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for opinion in rows:
        yield json.dumps(opinion, ensure_ascii=False) + "\n"


def csv_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    header = False
    for kind, *row in _numbers(rows):
        if not header:
            yield _csv("sample_id", "rater", "run", "criterion", _column(kind))
            header = True
        yield _csv(*row)
    if not header:
        yield _csv("sample_id", "rater", "run", "criterion", "score")


def export_file(service: ReviewService, path: Path) -> int:
    """Write the opinions of the review's one task to a .csv or .jsonl file, or the chosen masks to a folder.

    Returns the number of opinions or masks.
    """
    formats = {".csv": csv_lines, ".jsonl": json_lines}
    if list(service.tasks) == ["mask"] and not path.suffix:
        return write_masks(service, path)
    if len(service.tasks) != 1 or path.suffix not in formats:
        raise ConfigError(
            "an export covers one kind of work",
            expected="one --kind, and a file that ends in .csv or .jsonl; for masks also a folder",
            found=f"{', '.join(service.tasks)} into {path.name}",
        )
    (task,) = service.tasks.values()
    rows = list(opinions(service.database, task.id))
    atomic_write(path, "".join(formats[path.suffix](rows)))
    return len(rows)


def write_masks(service: ReviewService, folder: Path) -> int:
    """Write the chosen masks as `<id>.png` and one line about every answered item to `masks.jsonl`.

    Class k of n has the value round(255 k / n). Returns the number of masks.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MieError(
            "the folder for the masks is not empty", where=folder, expected="a new or empty folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    lines, written = [], 0
    with service.database.read() as connection:
        final = final_answers(connection, "mask")
    for (item_id, sample_id), payloads in final.items():
        vote = majority(payloads)
        file = None
        if vote is not None and vote.choice != "none":
            with service.database.read() as connection:
                item = connection.execute(select(items).where(items.c.id == item_id)).one()
            images = service.images
            png = images.upload(item_id, vote.upload) if vote.upload else images.proposal(item, vote.choice)
            file = f"{file_stem(sample_id)}.png"
            atomic_write(folder / file, png)
            written += 1
        body = {
            "sample_id": sample_id,
            "choice": None if vote is None else vote.choice,
            "votes": None if vote is None else vote.votes,
            "raters": len(payloads),
            "file": file,
        }
        lines.append(json.dumps(body, ensure_ascii=False) + "\n")
    atomic_write(folder / "masks.jsonl", "".join(lines))
    return written


def ratings_of(place: str) -> list[Rating]:
    """Return every opinion with a number in a review's database, as `mie agree` reads them from CSV files."""
    database = Database.open_existing(place)
    try:
        with database.read() as connection:
            kinds = {row.kind: row.id for row in connection.execute(select(tasks))}
        ratings = [rating for kind in sorted(kinds) for rating in _ratings(opinions(database, kinds[kind]))]
    finally:
        database.close()
    if not ratings:
        raise MieError("the review has no answers yet", where=Database.display_name(place))
    return ratings


def ratings_in(path: Path) -> list[Rating]:
    """Return the same from an export as JSON lines."""
    try:
        with path.open(encoding="utf-8") as file:
            return list(_ratings(json.loads(line) for line in file))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        expected = "JSON lines that `mie review --export` wrote"
        raise MieError(
            "not an export of a review", where=path, expected=expected, found=repr(error)
        ) from None


def _ratings(rows: Iterable[Mapping[str, Any]]) -> Iterator[Rating]:
    for kind, sample, rater, run, criterion, value in _numbers(rows):
        if kind != "mask":  # the choice of a mask is a word
            rank, score = (float(value), None) if kind == "rank" else (None, float(value))
            yield Rating(sample, rater, run, rank, score, criterion)


def _numbers(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str, str, Any]]:
    """Yield (kind, sample, rater, run, criterion, value); a consensus is not an independent opinion."""
    rankings = Counter[tuple[str, str]]()
    for opinion in rows:
        rater = opinion["rater"]
        if rater == CONSENSUS:
            continue
        if opinion["kind"] == "rank":
            rankings[opinion["sample_id"], rater] += 1
            n = rankings[opinion["sample_id"], rater]
            rater += f"/{n}" if n > 1 else ""
        for run, criterion, value in _values(opinion):
            yield opinion["kind"], opinion["sample_id"], rater, run, criterion, value


def _values(opinion: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (run, criterion, rank or score) of an opinion; for a mask its name."""
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
        case "grade":
            for dimension, grade in answer["grades"].items():
                yield run, dimension, grade
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
    csv.writer(line, lineterminator="\n").writerow(safe_row(cells))
    return line.getvalue()
