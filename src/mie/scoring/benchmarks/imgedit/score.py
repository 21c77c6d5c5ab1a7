"""The ImgEdit-Bench protocol over a run. Every number comes from a judge.

`imgedit@1` over everything is the mean over kinds of edit (macro); `micro` beside it is that over samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.judges import JudgeOptions
from mie.scoring.benchmarks.imgedit.judge import CRITERIA, JUDGING, METRICS
from mie.scoring.benchmarks.imgedit.turns import edit_type, questions_of, suite_of
from mie.scoring.chunks import Output
from mie.scoring.score import Context, Line, Method, Row, each_output, line_of, score_by
from mie.scoring.statistics import ScoreTable
from mie.scoring.statistics.intervals import macro_interval

NAME: Final = "imgedit"
VERSION: Final = 1


def score_run(
    run_folder: Path | str,
    *,
    variant: str = "paper",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    judge: JudgeOptions | None = None,
) -> dict[str, Any]:
    """Score every output of a run by ImgEdit-Bench; see `scoring.score_by`. Without a judge: nothing."""
    return score_by(METHOD, run_folder, variant=variant, workers=workers, progress=progress, judge=judge)


def _measure(row: Row, outputs: Sequence[Output], context: Context) -> Line:
    suite = suite_of(row)
    kind = edit_type(row) if suite == "basic" else suite
    groups = {"suite": suite, "edit_type": kind, "turn": "" if row["turn"] is None else f"{row['turn']:02d}"}
    if not context.judged:
        return line_of(row, (), [], **groups)
    # Nothing is measured here, but an output that cannot be read is no output.
    attempts = each_output(
        outputs, context.variant, lambda: None, lambda _, made: {"metrics": {}, "unscored": {}}
    )
    return line_of(row, _applies(row, suite, context.variant), attempts, **groups)


def _applies(row: Row, suite: str, variant: str) -> tuple[str, ...]:
    if suite == "multiturn":
        return questions_of(row)
    if suite == "uge":
        return ("uge",)
    return ("imgedit",) if variant == "as_released" else ("imgedit", *CRITERIA)


def _finish(document: dict[str, Any], table: ScoreTable, scores: Path) -> None:
    """The macro average in place of the mean over samples. The released script rounds each kind's mean."""
    released = table.header["variant"] == "as_released"
    for item in document["groups"]:
        for key, entry in item["metrics"].items():
            if released and list(item["group"]) == ["edit_type"]:
                entry["mean"] = round(entry["mean"], 2)
            if item["group"] or not key.startswith("imgedit@"):
                continue
            chosen = table.select("imgedit", int(key.partition("@")[2]))
            rows = np.flatnonzero(chosen.scored)
            kinds = table.groups["edit_type"][rows].astype(str)
            values = chosen.values[rows]
            means = [float(values[kinds == kind].mean()) for kind in np.unique(kinds)]
            means = [round(mean, 2) for mean in means] if released else means
            entry["micro"] = entry["mean"]
            entry["mean"] = math.fsum(means) / len(means) if means else math.nan
            entry["types"] = len(means)
            entry.pop("no_interval", None)
            entry.update(macro_interval(values, kinds, table.clusters[rows], bounds=(1, 5)).entry)


METHOD: Final = Method(
    name=NAME,
    version=VERSION,
    columns=("params", "turn"),
    metrics=METRICS,
    judged=METRICS,
    measure=_measure,
    judging=JUDGING,
    groups=("suite", "edit_type", "turn"),
    partitions=("suite", "edit_type", "turn", "modality", "source"),
    finish=_finish,
)
