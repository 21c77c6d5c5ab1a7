"""What people said about questions: their answers as a run, and a set in which the accepted ones count."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select

from mie.core.documents import write_document
from mie.core.environment import versions
from mie.core.files import atomic_write, folder_lock, refuse_foreign
from mie.errors import ConfigError, MieError
from mie.questions.answers import KIND, RUN_FILES, SCHEMA_VERSION, AnswerRun, Given
from mie.questions.store import QuestionSet, question_of, row_of
from mie.questions.write import stated_of, write_questions
from mie.records import Rejection
from mie.review.database import Database, meta, tasks
from mie.review.export import CONSENSUS, opinions

CANNOT_TELL: Final = "the physician cannot tell"


def people_answers(
    place: str, questions: Path | str, folder: Path | str, *, name: str = "physicians"
) -> AnswerRun:
    """Write what people answered in a review as a run, to be scored and reported beside models.

    Each person is a pass of the run, under their pseudonym. Safe to repeat while the review goes on.
    """
    part = QuestionSet(questions)
    folder = Path(folder)
    given: dict[str, dict[str, Given]] = defaultdict(dict)
    for opinion in _opinions(place, part, "answer"):
        if opinion["rater"] == CONSENSUS:
            continue
        reply = str(opinion["answer"]["reply"])
        state, reason = ("done", "") if reply else ("refused", CANNOT_TELL)
        given[opinion["sample_id"]][opinion["rater"]] = Given(
            opinion["sample_id"], opinion["rater"], state, reply, reason, seconds=opinion["seconds"]
        )
    if not given:
        raise MieError("nobody has answered a question yet", where=Database.display_name(place))
    raters = sorted({rater for found in given.values() for rater in found})
    refuse_foreign(folder, "answers of people", lambda path: path.name in RUN_FILES)
    with folder_lock(folder):
        lines = [given[id][rater].line() for id in part.ids() if id in given for rater in sorted(given[id])]
        atomic_write(folder / "answers.jsonl", "".join(lines))
        info: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "status": "complete",
            "questions": {
                "name": part.name,
                "digest": part.digest,
                "path": str(part.folder.absolute()),
                "relative_path": os.path.relpath(part.folder.absolute(), folder.absolute()),
            },
            "answerer": {"name": f"{name} ({len(raters)})", "spec": "review"},
            "config": {"form": None, "passes": raters, "limit": None, "where": None, "prompt": None},
            "people": {"raters": raters},
            "counts": {rater: sum(rater in found for found in given.values()) for rater in raters},
            "versions": versions(),
        }
        write_document(folder / "run.json", info)
    return AnswerRun(folder, info)


def accept_questions(place: str, questions: Path | str, output: Path | str) -> dict[str, Any]:
    """Write a set in which the questions that people accepted count, and the rejected ones are left out.

    A consensus decides. Without one, a question is accepted if everybody who checked it accepts it, and
    rejected if more people reject than accept it. Any other stays as it is: unreviewed, so it does not count.
    """
    part = QuestionSet(questions)
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    agreed: dict[str, str] = {}
    for opinion in _opinions(place, part, "question"):
        decision = opinion["answer"]["decision"]
        if opinion["rater"] == CONSENSUS:
            agreed[opinion["sample_id"]] = decision
        else:
            votes[opinion["sample_id"]][decision] += 1
    verdicts = {id: _verdict(found) for id, found in votes.items()} | agreed
    if not verdicts:
        raise MieError("nobody has checked a question yet", where=Database.display_name(place))

    def rows() -> Iterator[dict[str, Any] | Rejection]:
        for row in part.rows():
            verdict = verdicts.get(row["id"])
            if verdict == "reject":
                yield Rejection(
                    row["source"], row["case_id"], "review", f"question {row['id']}: people rejected it"
                )
            elif verdict == "accept" and "reviewed" not in row["flags"]:
                yield _accepted(row)
            else:
                yield row

    counts = Counter(verdicts.get(id, "unreviewed") for id in part.ids())
    reviewed = {"of": part.digest, "counts": dict(sorted(counts.items()))}
    return write_questions(
        rows(),
        output,
        name=part.name,
        description=str(part.info.get("description", "")),
        recipe={**part.info["recipe"], "reviewed": reviewed},
        licenses=part.info["licenses"],
        deidentified=stated_of(part.info),
        funnel=[
            *part.info["funnel"],
            {"step": "accepted by people", "questions": len(part) - counts["reject"], "note": ""},
        ],
    )


def _accepted(row: dict[str, Any]) -> dict[str, Any]:
    question = question_of(row)
    return row_of(replace(question, flags=(*question.flags, "reviewed")))


def _verdict(votes: Counter[str]) -> str:
    if not votes["reject"]:
        return "accept"
    return "reject" if votes["reject"] > votes["accept"] else "divided"


def _opinions(place: str, part: QuestionSet, kind: str) -> list[dict[str, Any]]:
    database = Database.open_existing(place)
    try:
        with database.read() as connection:
            owner = connection.scalar(select(meta.c.value).where(meta.c.key == "dataset"))
            task = connection.scalar(select(tasks.c.id).where(tasks.c.kind == kind))
        if owner != part.digest:
            raise MieError(
                "this review is of another question set",
                where=Database.display_name(place),
                expected=f"digest {part.digest[:16]}",
                found=f"digest {str(owner)[:16]}",
                fix="give the set that was reviewed",
            )
        if task is None:
            raise ConfigError(
                f"the review has no work of the kind {kind!r}",
                where=Database.display_name(place),
                fix=f"review with `mie review {part.folder} --kind {kind}`",
            )
        return list(opinions(database, int(task)))
    finally:
        database.close()
