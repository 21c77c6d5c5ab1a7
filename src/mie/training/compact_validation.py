"""Scores of the compact editor on packs: validation inside the loop, and evaluation of finished weights.

Both use held-out patients, the editor's own path and miedb's metrics. MieDB has no metric from pixels for
modification: there it is PSNR inside the area that changes, against the input itself, or, where that is a
white hole, against the hole filled with the mean of the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import cv2
import numpy as np
import torch
from torch import Tensor, nn

from mie.editors.base import Request
from mie.editors.compact.editor import edit_all
from mie.editors.compact.inference import Inference
from mie.editors.compact.kinds import PERSPECTIVE_OF, EditKind
from mie.images.overlay import paint
from mie.networks.compact import CompactNet
from mie.networks.text import EmbeddingCache
from mie.records import Mask, Pixels
from mie.scoring.benchmarks.miedb import BENCHMARK
from mie.scoring.benchmarks.miedb.score import PSNR_CAP, score_output
from mie.scoring.metrics import MetricError, background_psnr
from mie.scoring.reference import Reference
from mie.scoring.statistics.intervals import Interval, macro_interval, mean_interval
from mie.training.compact_data import Choices, CompactData
from mie.training.modification_data import mean_filled
from mie.training.pack import VALIDATION, Pack, Row, Wording, as_rgb

_BATCH: Final = 32
_SHOWN: Final = 24
_CELL: Final = 160
_DECIBEL: Final = 1 / 50  # of DICE: what a decibel is worth when checkpoints are compared
_SCORERS: Final = 8  # threads
_FACTS: Final = ("id", "perspective", "task", "target", "key", "source", "modality")
HOLE: Final = "hole"  # the task of a hole made for validation, in tissue whose truth is known
_HOLES: Final = ("inpainting", "simulation", HOLE)

Edit = Callable[[Sequence[Request]], list[Pixels]]


@dataclass(frozen=True, slots=True)
class Case:
    """A row as the editor gets it."""

    row: Row
    wording: Wording
    seen: bool  # the wording is one of those trained on
    image: Pixels
    target: Pixels
    area: Mask | None = None  # where only an area changes


class Validation:
    """Rows of held-out patients, each with one wording; every second one with a wording never trained on."""

    def __init__(
        self,
        rows: Sequence[tuple[Pack, Row]],
        count: int,
        encoder: EmbeddingCache,
        device: torch.device,
        seed: int,
        more: Sequence[Case] = (),
        *,
        half: bool = False,
    ) -> None:
        rng = np.random.default_rng(seed)
        chosen = sorted(rng.permutation(len(rows))[:count])
        self.cases = [make_case(*rows[i], seen=at % 2 == 0, rng=rng) for at, i in enumerate(chosen)]
        self.cases += more
        self.encoder, self.device, self.half = encoder, device, half

    def figures(self, model: nn.Module) -> dict[str, float | None]:
        """Return DICE and decibels gained over the input, as means over groups, and the cost of new wordings.

        `dice_macro` is the mean over targets of data sets, `dice_sets` over data sets.
        """
        outputs = self._outputs(model, self.cases)
        with ThreadPoolExecutor(_SCORERS) as pool:
            scores = list(pool.map(score_case, self.cases, outputs))
        targets: dict[tuple[str, str], list[float]] = defaultdict(list)
        sources: dict[str, list[float]] = defaultdict(list)
        wordings: dict[bool, list[float]] = defaultdict(list)
        gains: dict[str, list[float]] = defaultdict(list)
        changes: dict[str, list[float]] = defaultdict(list)
        outside: list[float] = []
        for case, score in zip(self.cases, scores, strict=True):
            row = case.row
            if "dice" in score:
                targets[row.source, "" if row.task == "holistic" else row.target].append(score["dice"])
                sources[row.source].append(score["dice"])
                wordings[case.seen].append(score["dice"])
            elif row.kind is EditKind.IMAGE and "gain_db" in score:
                gains[row.key or ""].append(score["gain_db"])
            elif "gain_db" in score:
                changes[row.task].append(score["gain_db"])
            if row.kind is EditKind.AREA and "b_psnr" in score:
                outside.append(score["b_psnr"])
        dice = _mean([_mean(values) for values in targets.values()])
        gain = _mean([_mean(values) for values in gains.values()])
        change = _mean([_mean(values) for values in changes.values()])
        decibels = [value * _DECIBEL for value in (gain, change) if value is not None]
        parts = decibels if dice is None else [dice, *decibels]
        more = {"change_gain_db": change, "change_b_psnr": _mean(outside)} if changes else {}
        return {
            "score": sum(parts) if parts else None,
            "dice_macro": dice,
            "dice_sets": _mean([_mean(values) for values in sources.values()]),
            "gain_db": gain,
            "dice_seen_wordings": _mean(wordings[True]),
            "dice_unseen_wordings": _mean(wordings[False]),
            **{f"dice/{source}": _mean(values) for source, values in sorted(sources.items())},
            **{f"gain_db/{key}": _mean(values) for key, values in sorted(gains.items())},
            **more,
            **{f"change_gain_db/{task}": _mean(values) for task, values in sorted(changes.items())},
        }

    def grid(self, model: nn.Module) -> Pixels | None:
        """Draw input | output | reference of cases from all over the fold, four to a line."""
        shown = self.cases[:: max(1, len(self.cases) // _SHOWN)][:_SHOWN]
        if not shown:
            return None
        rows = [
            np.hstack([_cell(image) for image in (case.image, output, case.target)])
            for case, output in zip(shown, self._outputs(model, shown), strict=True)
        ]
        rows += [np.zeros_like(rows[0])] * (-len(rows) % 4)
        return np.vstack([np.hstack(rows[k : k + 4]) for k in range(0, len(rows), 4)])

    def _outputs(self, model: nn.Module, cases: Sequence[Case]) -> list[Pixels]:
        inference = Inference(cast(CompactNet, model), self.encoder, self.device, self.half)
        outputs: list[Pixels] = []
        for start in range(0, len(cases), _BATCH):
            requests = [Request(case.image, case.wording.prompt) for case in cases[start : start + _BATCH]]
            outputs += [edited.image for edited in edit_all(inference, requests)]
        return outputs


def make_case(pack: Pack, row: Row, *, seen: bool, rng: np.random.Generator) -> Case:
    """Draw one wording: of those trained on if `seen`, else of the others, where there are any."""
    instruction = pack.instructions[row.instruction]
    seen = seen or not instruction.held_out
    wordings = instruction.wordings if seen else instruction.held_out
    wording = wordings[int(rng.integers(len(wordings)))]
    image = as_rgb(pack.images[row.input])
    if row.goal is not None:
        area = None if row.mask is None else pack.masks[row.mask] > 0
        return Case(row, wording, seen, image, as_rgb(pack.images[row.goal]), area)
    assert row.mask is not None  # noqa: S101 (a row has a goal or a mask)
    target = image
    for k, colour in enumerate(wording.colours, start=1):
        target = paint(target, pack.masks[row.mask] == k, colour)
    return Case(row, wording, seen, image, target)


def score_case(case: Case, output: Pixels) -> dict[str, float]:
    """Measure one output; what cannot be measured is left out.

    Of an overlay `dice`, `p_acc`, `b_psnr`. Of a whole image `psnr`, `ssim`, and `gain_db`, `gain_ssim` over
    the input. Of an area `psnr` inside it, `gain_db` over the input there, or, for a hole, over the mean of
    the rest; `b_psnr` outside.
    """
    return _SCORE[case.row.kind](case, output)


def _score_overlay(case: Case, output: Pixels) -> dict[str, float]:
    metrics = score_output(_reference(case), output, "paper")["metrics"]
    return {name: float(metrics[name]) for name in ("dice", "p_acc", "b_psnr") if name in metrics}


def _score_image(case: Case, output: Pixels) -> dict[str, float]:
    reference = _reference(case)
    metrics = score_output(reference, output, "paper")["metrics"]
    before = score_output(reference, case.image, "paper")["metrics"]
    score = {name: float(metrics[name]) for name in ("psnr", "ssim") if name in metrics}
    for name, gain in (("psnr", "gain_db"), ("ssim", "gain_ssim")):
        if name in metrics and name in before:
            score[gain] = float(metrics[name] - before[name])
    return score


def _reference(case: Case) -> Reference:
    row, colours = case.row, ",".join(case.wording.colours) or None
    return Reference.of(row.perspective, row.task, colours, case.image, case.target)


def _score_area(case: Case, output: Pixels) -> dict[str, float]:
    area = case.area
    if area is None:
        return {}
    before = mean_filled(case.image, area) if case.row.task in _HOLES else case.image
    inside, outside = _psnr(case.target, output, ~area), _psnr(case.target, output, area)
    start = _psnr(case.target, before, ~area)
    score = {} if outside is None else {"b_psnr": outside}
    if inside is not None and start is not None:
        score |= {"psnr": inside, "gain_db": inside - start}
    return score


_SCORE: Final = {
    EditKind.OVERLAY: _score_overlay,
    EditKind.IMAGE: _score_image,
    EditKind.AREA: _score_area,
}


def _psnr(target: Pixels, output: Pixels, left_out: Mask) -> float | None:
    """PSNR over the pixels that are not left out, at most 100 dB as in `paper`; None where there are none."""
    try:
        return min(float(background_psnr(target, output, left_out)), PSNR_CAP)
    except MetricError:
        return None


def _mean(values: Sequence[float | None]) -> float | None:
    return float(np.mean(values)) if values else None  # type: ignore[arg-type]


def _cell(image: Pixels) -> Pixels:
    return np.asarray(cv2.resize(image, (_CELL, _CELL), interpolation=cv2.INTER_AREA), np.uint8)


def hole_cases(packs: Sequence[Pack], count: int, seed: int) -> list[Case]:
    """Return `count` views of validation pictures with a hole made as in training; none without a lesion.

    The tissue under a hole is known, so filling can be validated where the packs have no such pairs.
    """
    perspective = PERSPECTIVE_OF[EditKind.AREA]
    data = CompactData(packs, VALIDATION, torch.device("cpu"), Choices(holes=1.0))
    if data.holes is None:
        return []
    chosen = data.choose(np.random.default_rng(seed), count, {perspective: 1.0}, 0.0)
    views = data.views(chosen, seed)
    rows = {row.source: row for pack in packs for row in pack.rows}
    cases = []
    for at, item in enumerate(chosen[EditKind.AREA]):
        row = rows[data.holes.pictures[item.place].source]
        row = replace(row, id=f"hole-{at}", perspective=perspective, task=HOLE, key=None)
        text = data.prompts.texts[item.prompt]
        area = views.area[at, 0].bool().numpy()
        cases.append(
            Case(row, Wording(text, text), True, _pixels(views.image[at]), _pixels(views.goal[at]), area)
        )
    return cases


def _pixels(image: Tensor) -> Pixels:
    return (255 * image).round().byte().permute(1, 2, 0).contiguous().numpy()


def compact_edit(weights: Path, *, device: str = "auto", flip: bool = False) -> Edit:
    """Return the editor of a weights file, for `evaluate`."""
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
    """Return one record for each row and wording: its facts, and `scores` (`score_case`).

    Each row is edited twice where possible: in a wording that was trained on, and, if `unseen`, in one that
    was not.
    """
    rng = np.random.default_rng(seed)
    cases = []
    for pack, row in rows:
        cases.append(make_case(pack, row, seen=True, rng=rng))
        if unseen and pack.instructions[row.instruction].held_out:
            cases.append(make_case(pack, row, seen=False, rng=rng))
    waiting: list[Future[dict[str, float]]] = []
    with ThreadPoolExecutor(_SCORERS) as pool:
        for start in range(0, len(cases), _BATCH):
            some = cases[start : start + _BATCH]
            outputs = edit([Request(case.image, case.wording.prompt) for case in some])
            # Scored while the network works on the next ones.
            waiting += [pool.submit(score_case, *one) for one in zip(some, outputs, strict=True)]
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
    """Return mean, 95% interval over patients, rows and patients of `metric` for each group `by`.

    `macro` is the mean over the groups. A row without the metric counts as `unscored`, never as a number.
    """
    scored = [record for record in records if metric in record["scores"]]
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for record in scored:
        groups[str(by(record))].append(record)
    means = {name: _mean_of(some, metric) for name, some in sorted(groups.items())}
    values = [record["scores"][metric] for record in scored]
    macro: dict[str, Any] = {"mean": None, "low": None, "high": None}
    if groups:
        names, patients = [str(by(r)) for r in scored], [r["patient"] for r in scored]
        scale, cap = _scale(metric)
        interval = macro_interval(values, names, patients, bounds=scale).capped(cap)
        macro = {"mean": float(np.mean([g["mean"] for g in means.values()])), **_bounds(interval)}
    return {
        "metric": metric,
        "groups": means,
        "macro": macro,
        "rows": len(scored),
        "unscored": len(records) - len(scored),
    }


def _mean_of(records: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    values = [record["scores"][metric] for record in records]
    patients = [record["patient"] for record in records]
    scale, cap = _scale(metric)
    bounds = _bounds(mean_interval(values, patients, bounds=scale).capped(cap))
    return {"mean": float(np.mean(values)), **bounds, "rows": len(values), "patients": len(set(patients))}


def _scale(metric: str) -> tuple[tuple[float, float] | None, float | None]:
    """Return the range and the cap of a metric of MieDB; a gain or a loss has neither."""
    if metric not in BENCHMARK.own_metrics:
        return None, None
    spec = BENCHMARK.metric(metric)
    return spec.scale, PSNR_CAP if spec.decibels else None


def _bounds(interval: Interval) -> dict[str, float | None]:
    """Too few patients say nothing about the spread: no interval."""
    if interval.reason:
        return {"low": None, "high": None}
    return {"low": interval.low, "high": interval.high}
