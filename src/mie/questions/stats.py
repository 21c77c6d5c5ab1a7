"""Numbers of a question set: what it holds, and how far a guess without the image gets."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from mie.questions.store import QuestionSet


def question_stats(questions: QuestionSet) -> dict[str, Any]:
    """Counts, funnel, tasks by modality, and the share that simple guesses get right. No image is read."""
    columns = questions.table(["kind", "task", "modality", "options", "answer", "letter", "flags", "split"])
    by_task: dict[str, Counter[str]] = defaultdict(Counter)
    for task, modality in zip(columns["task"], columns["modality"], strict=True):
        by_task[task][modality] += 1
    closed = [
        (options, answer, letter)
        for kind, options, answer, letter in zip(
            *(columns[name] for name in ("kind", "options", "answer", "letter")), strict=True
        )
        if kind == "closed"
    ]
    return {
        "name": questions.name,
        "digest": questions.digest,
        "counts": questions.info["counts"],
        "funnel": questions.info["funnel"],
        "task_by_modality": {task: dict(sorted(row.items())) for task, row in sorted(by_task.items())},
        "guessing": _guessing(closed),
        "blind": sum("blind" in (flags or ()) for flags in columns["flags"]),
        "blind_by_task": _blind_by_task(columns),
        "blind_evidence": questions.blind_evidence,
    }


def _blind_by_task(columns: dict[str, list[Any]]) -> dict[str, dict[str, float]]:
    """Of each task's closed test questions, how many are marked as answered without the image.

    Runs answer the test split; a set without one is counted whole.
    """
    names = ("task", "kind", "split", "flags")
    rows = [row for row in zip(*(columns[name] for name in names), strict=True) if row[1] == "closed"]
    chosen = [row for row in rows if row[2] == "test"] or rows
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for task, _, _, flags in chosen:
        counts[task][0] += 1
        counts[task][1] += "blind" in (flags or ())
    return {
        task: {"closed": closed, "blind": blind, "share": round(blind / closed, 4)}
        for task, (closed, blind) in sorted(counts.items())
    }


def _guessing(closed: list[tuple[list[str], str, str]]) -> dict[str, dict[str, float]]:
    """Guesses that look at the options alone, over closed questions, beside chance."""
    if not closed:
        return {}
    chance = sum(1 / len(options) for options, _, _ in closed) / len(closed)
    letters = Counter(letter for _, _, letter in closed)
    best = max(letters, key=lambda letter: (letters[letter], letter))
    distinct = [(o, a) for o, a, _ in closed if len({len(text) for text in o}) == len(o)]
    out = {
        f"always {best}": {
            "questions": len(closed),
            "right": round(letters[best] / len(closed), 4),
            "chance": round(
                sum(1 / len(o) for o, _, _ in closed if "ABCDEFGHIJ".index(best) < len(o)) / len(closed), 4
            ),
        }
    }
    for name, pick in (("longest option", max), ("shortest option", min)):
        if distinct:
            right = sum(pick(options, key=len) == answer for options, answer in distinct)
            out[name] = {
                "questions": len(distinct),
                "right": round(right / len(distinct), 4),
                "chance": round(sum(1 / len(o) for o, _ in distinct) / len(distinct), 4),
            }
    out["random option"] = {"questions": len(closed), "right": round(chance, 4), "chance": round(chance, 4)}
    return out
