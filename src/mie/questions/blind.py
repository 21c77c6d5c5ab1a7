"""Questions that a run got right without the images: `blind.json` beside `questions.json`.

The marks are no part of the set's digest: runs that were paid for stay valid, and the marks can be made anew
from other runs. Whoever reads the set sees the flag `blind` on what is marked, by a run or at the build.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mie.core.documents import write_document
from mie.core.files import digest
from mie.core.spec import parse_spec
from mie.errors import ConfigError, MieError
from mie.questions.answers import AnswerRun, Given
from mie.questions.baselines import BASELINES
from mie.questions.scoring.score import is_right
from mie.questions.store import BLIND_FILE, BLIND_VERSION, QuestionSet

_COLUMNS = ("id", "kind", "options", "answer", "tolerance", "unit")


def mark_blind(
    questions: QuestionSet | Path | str, runs: Sequence[AnswerRun | Path | str], *, votes: int = 1
) -> dict[str, Any]:
    """Mark the questions that `votes` of the runs got right without seeing an image; what `blind.json` says.

    A run of a text-only answerer counts with all its passes: a question must be right in every order of its
    options, so that luck marks few. Any other run counts with its pass `blind`. Earlier marks by runs are
    replaced, none are added by no runs.
    """
    found = questions if isinstance(questions, QuestionSet) else QuestionSet(questions)
    if not 1 <= votes <= max(1, len(runs)):
        raise ConfigError("not a number of runs that must agree", expected=f"1 to {len(runs)}", found=votes)
    marks: dict[str, list[str]] = defaultdict(list)
    entries: list[dict[str, Any]] = []
    columns = found.columns(_COLUMNS)
    rows = {
        values[0]: dict(zip(_COLUMNS, values, strict=True)) for values in zip(*columns.values(), strict=True)
    }
    for run in runs:
        opened = run if isinstance(run, AnswerRun) else AnswerRun.open(run)
        entry, right = _judged(opened, found, rows)
        if any(entry["run"] == other["run"] for other in entries):
            raise ConfigError("a run is named twice", where=opened.folder)
        entries.append(entry)
        for id in right:
            marks[id].append(entry["run"])
    body = {
        "schema_version": BLIND_VERSION,
        "questions": found.digest,
        "votes": votes,
        "runs": entries,
        "marks": {id: by for id in rows if len(by := marks.get(id, [])) >= votes},
    }
    path = found.folder / BLIND_FILE
    if runs:
        write_document(path, body)
    else:
        path.unlink(missing_ok=True)
    found.__dict__.pop("blind", None)  # read anew
    return body


def _judged(run: AnswerRun, questions: QuestionSet, rows: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What is on record of the run, and the ids of the questions that it got right in every blind pass."""
    known = run.info["questions"]
    if known["digest"] != questions.digest:
        raise MieError(
            "the run answers another question set",
            where=run.folder,
            expected=f"digest {questions.digest[:16]}",
            found=f"digest {known['digest'][:16]} ({known['name']})",
        )
    if not run.complete:
        raise MieError(
            "the run is not complete", where=run.folder, fix="run the same `mie vqa run` again: it resumes"
        )
    ways = blind_passes(run)
    given: dict[str, list[Given]] = defaultdict(list)
    models: Counter[str] = Counter()
    for one in run.answers():
        if one.way in ways and one.state != "skipped":
            given[one.id].append(one)
            models[one.model] += bool(one.model)
    right = [id for id, found in given.items() if all(is_right(rows[id], one) for one in found)]
    luck = sum(
        len(rows[id]["options"]) ** -len(found) for id, found in given.items() if rows[id]["kind"] == "closed"
    )
    entry = {
        "run": digest(run.folder / "answers.jsonl")[:16],
        "answerer": run.name,
        "models": sorted(model for model, times in models.items() if times),
        "passes": list(ways),
        "asked": len(given),
        "right": len(right),
        "by_luck": round(luck, 1),
    }
    return entry, right


def blind_passes(run: AnswerRun) -> tuple[str, ...]:
    """The passes of a run in which no image was shown; `MieError` where there is none."""
    passes = tuple(run.info["config"]["passes"])
    spec = str(run.info["answerer"]["spec"])
    if not run.info.get("people"):
        if parse_spec(spec, noun="answerer").name in BASELINES:  # `text-only` also withholds from a model
            return passes
        if "blind" in passes:
            return ("blind",)
    raise MieError(
        "the run saw the images",
        where=run.folder,
        expected="a text-only answerer, or a run with --blind",
        found=f"{spec}, {', '.join(passes)}",
        fix="answer the set with `-a text-only:MODEL --orders 2`, or with `--blind`",
    )
