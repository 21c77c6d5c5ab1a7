"""A finished compact editor on an evaluation pack: every row by validation's metrics, with intervals.

Each row is put to the editor twice where it can be: in a wording that was trained on, and in one that never
was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.analysis.bootstrap import bootstrap_macro, bootstrap_mean
from mie.editors.base import Request
from mie.editors.compact.editing import edit_all
from mie.editors.compact.inference import Inference
from mie.records import Pixels
from mie.training.compact_validation import make_case, score_case
from mie.training.pack import Pack, Row

Edit = Callable[[Sequence[Request]], list[Pixels]]
_BATCH: Final = 32
_SCORERS: Final = 8
_FACTS: Final = ("id", "perspective", "task", "target", "key", "source", "modality")


def compact_edit(weights: Path, *, device: str = "auto", flip: bool = False) -> Edit:
    """The editor of a weights file, for `evaluate`."""
    inference = Inference.load(weights, device)
    return lambda requests: [edited.image for edited in edit_all(inference, requests, flip=flip)]


def evaluate(
    rows: Sequence[tuple[Pack, Row]],
    edit: Edit,
    *,
    unseen: bool = True,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[dict[str, Any]]:
    """One record for each row and wording: its facts, and `scores` (`score_case`).

    Not `unseen`: only wordings that were trained on.
    """
    rng = np.random.default_rng(seed)
    cases = []
    for pack, row in rows:
        cases.append(make_case(pack, row, seen=True, rng=rng))
        if unseen and pack.asks[row.ask].held_out:
            cases.append(make_case(pack, row, seen=False, rng=rng))
    waiting: list[Future[dict[str, float]]] = []
    with ThreadPoolExecutor(_SCORERS) as pool:
        for start in range(0, len(cases), _BATCH):
            some = cases[start : start + _BATCH]
            made = edit([Request(case.image, case.wording.prompt) for case in some])
            # Scored beside the network's work on the next ones.
            waiting += [pool.submit(score_case, *one) for one in zip(some, made, strict=True)]
            progress(start + len(some), len(cases))
        scores = [job.result() for job in waiting]
    return [
        {
            **{name: getattr(case.row, name) for name in _FACTS},
            "patient": case.row.patient_id or f"{case.row.source}//{case.row.id}",
            "seen": case.seen,
            "scores": score,
        }
        for case, score in zip(cases, scores, strict=True)
    ]


def summary(
    records: Sequence[Mapping[str, Any]], metric: str, *, by: Callable[[Mapping[str, Any]], Any]
) -> dict[str, Any]:
    """Mean, 95% interval (whole patients drawn), rows and patients of `metric`, for each group by `by`.

    `macro` is the mean over the groups. A row without the metric is counted in `unscored`, never as a number.
    """
    scored = [record for record in records if metric in record["scores"]]
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in scored:
        groups[str(by(record))].append(record)
    found = {name: _mean(some, metric) for name, some in sorted(groups.items())}
    values = [record["scores"][metric] for record in scored]
    macro: dict[str, Any] = {"mean": None, "low": None, "high": None}
    if groups:
        names, patients = [str(by(r)) for r in scored], [r["patient"] for r in scored]
        low, high = bootstrap_macro(values, names, patients)
        macro = {"mean": float(np.mean([g["mean"] for g in found.values()])), **_bounds(low, high)}
    return {
        "metric": metric,
        "groups": found,
        "macro": macro,
        "rows": len(scored),
        "unscored": len(records) - len(scored),
    }


def _mean(records: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    values = [record["scores"][metric] for record in records]
    patients = [record["patient"] for record in records]
    bounds = _bounds(*bootstrap_mean(values, patients))
    return {"mean": float(np.mean(values)), **bounds, "rows": len(values), "patients": len(set(patients))}


def _bounds(low: float, high: float) -> dict[str, float | None]:
    """One patient alone says nothing about the spread: no interval."""
    return (
        {"low": float(low), "high": float(high)}
        if np.isfinite([low, high]).all()
        else {"low": None, "high": None}
    )
