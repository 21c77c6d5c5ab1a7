"""Validation of the compact editor inside the loop: held-out patients, its own path, miedb's metrics.

MieDB has no metric from pixels for modification: there it is PSNR inside the area that changes, against the
input itself, or, where that is a white hole, against the hole filled with the mean of the rest.
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
from mie.images.overlay import paint
from mie.networks.compact import CompactNet
from mie.networks.text import EmbeddingCache
from mie.records import Mask, Pixels
from mie.scoring.benchmarks.miedb.score import PSNR_CAP, score_output
from mie.scoring.metrics import MetricError, background_psnr
from mie.scoring.reference import Reference
from mie.scoring.statistics.bootstrap import bootstrap_macro, bootstrap_mean
from mie.training.compact_data import Choices, CompactData
from mie.training.modification_data import mean_filled
from mie.training.pack import VALIDATION, Pack, Row, Wording, as_rgb

_BATCH: Final = 32
_SHOWN: Final = 24
_CELL: Final = 160
_DECIBEL: Final = 1 / 50  # of DICE: what a decibel is worth when checkpoints are compared


HOLE: Final = "hole"  # the task of a hole made for validation, in tissue whose truth is known
_HOLES: Final = ("inpainting", "simulation", HOLE)


@dataclass(frozen=True, slots=True)
class Case:
    """A row as it is put to the editor."""

    row: Row
    wording: Wording
    seen: bool  # the wording is one of those trained on
    image: Pixels
    target: Pixels
    area: Mask | None = None  # of a modification


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
        """DICE and decibels gained over the input, as means over groups, and what unseen wordings cost.

        `dice_macro` is the mean over targets of data sets, `dice_sets` over data sets.
        """
        made = self._outputs(model, self.cases)
        with ThreadPoolExecutor(8) as pool:
            scores = list(pool.map(score_case, self.cases, made))
        painted: dict[tuple[str, str], list[float]] = defaultdict(list)
        sources: dict[str, list[float]] = defaultdict(list)
        wordings: dict[bool, list[float]] = defaultdict(list)
        gains: dict[str, list[float]] = defaultdict(list)
        changes: dict[str, list[float]] = defaultdict(list)
        beside: list[float] = []
        for case, score in zip(self.cases, scores, strict=True):
            row = case.row
            if "dice" in score:
                painted[row.source, "" if row.task == "holistic" else row.target].append(score["dice"])
                sources[row.source].append(score["dice"])
                wordings[case.seen].append(score["dice"])
            elif row.perspective == "transformation" and "gain_db" in score:
                gains[row.key or ""].append(score["gain_db"])
            elif "gain_db" in score:
                changes[row.task].append(score["gain_db"])
            if row.perspective == "modification" and "b_psnr" in score:
                beside.append(score["b_psnr"])
        dice = _mean([_mean(values) for values in painted.values()])
        gain = _mean([_mean(values) for values in gains.values()])
        change = _mean([_mean(values) for values in changes.values()])
        decibels = [value * _DECIBEL for value in (gain, change) if value is not None]
        parts = decibels if dice is None else [dice, *decibels]
        more = {"change_gain_db": change, "change_b_psnr": _mean(beside)} if changes else {}
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
        """Input | output | reference of cases from all over the fold, four to a line."""
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
        made: list[Pixels] = []
        for start in range(0, len(cases), _BATCH):
            requests = [Request(case.image, case.wording.prompt) for case in cases[start : start + _BATCH]]
            made += [edited.image for edited in edit_all(inference, requests)]
        return made


def make_case(pack: Pack, row: Row, *, seen: bool, rng: np.random.Generator) -> Case:
    """One wording drawn: of those trained on if `seen`, else of the others, where there are any."""
    ask = pack.asks[row.ask]
    seen = seen or not ask.held_out
    ways = ask.wordings if seen else ask.held_out
    wording = ways[int(rng.integers(len(ways)))]
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
    """What can be measured of one output, by name.

    Perception: `dice`, `p_acc`, `b_psnr`. Transformation: `psnr`, `ssim`, and `gain_db`, `gain_ssim` over the
    input. Modification: `psnr` inside the area, `gain_db` over the input there, or, for a hole, over the mean
    of the rest; `b_psnr` outside.
    """
    row = case.row
    if row.perspective == "modification":
        return _score_change(case, output)
    reference = Reference.of(
        row.perspective, row.task, ",".join(case.wording.colours) or None, case.image, case.target
    )
    found = score_output(reference, output, "paper")["metrics"]
    if row.perspective == "perception":
        return {name: float(found[name]) for name in ("dice", "p_acc", "b_psnr") if name in found}
    before = score_output(reference, case.image, "paper")["metrics"]
    score = {name: float(found[name]) for name in ("psnr", "ssim") if name in found}
    if "psnr" in found and "psnr" in before:
        score["gain_db"] = float(found["psnr"] - before["psnr"])
    if "ssim" in found and "ssim" in before:
        score["gain_ssim"] = float(found["ssim"] - before["ssim"])
    return score


def _score_change(case: Case, output: Pixels) -> dict[str, float]:
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


def _psnr(target: Pixels, output: Pixels, left_out: Mask) -> float | None:
    """Over the pixels that are not left out; None where there are none. At most 100 dB, as in `paper`."""
    try:
        return min(float(background_psnr(target, output, left_out)), PSNR_CAP)
    except MetricError:
        return None


def _mean(values: Sequence[float | None]) -> float | None:
    return float(np.mean(values)) if values else None  # type: ignore[arg-type]


def _cell(image: Pixels) -> Pixels:
    return np.asarray(cv2.resize(image, (_CELL, _CELL), interpolation=cv2.INTER_AREA), np.uint8)


# Holes in healthy tissue of held-out patients, to validate filling where the packs have no modifications.


def hole_cases(packs: Sequence[Pack], count: int, seed: int) -> list[Case]:
    """`count` views of validation pictures with a hole made as in training; none where there is no lesion."""
    data = CompactData(packs, VALIDATION, torch.device("cpu"), Choices(holes=1.0))
    if data.fresh is None:
        return []
    chosen = data.choose(np.random.default_rng(seed), count, {"modification": 1.0}, 0.0)
    views = data.views(chosen, seed)
    rows = {row.source: row for pack in packs for row in pack.rows}
    cases = []
    for at, item in enumerate(chosen["changed"]):
        row = rows[data.fresh.shown[item.place].source]
        row = replace(row, id=f"hole-{at}", perspective="modification", task=HOLE, key=None)
        text = data.prompts.texts[item.prompt]
        area = views.area[at, 0].bool().numpy()
        cases.append(
            Case(row, Wording(text, text), True, _pixels(views.image[at]), _pixels(views.goal[at]), area)
        )
    return cases


def _pixels(image: Tensor) -> Pixels:
    return (255 * image).round().byte().permute(1, 2, 0).contiguous().numpy()


# A finished compact editor on an evaluation pack: every row by validation's metrics, with intervals.
#
# Each row is put to the editor twice where it can be: in a wording that was trained on, and in one that
# never
# was.

Edit = Callable[[Sequence[Request]], list[Pixels]]

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
    found = {name: _mean_of(some, metric) for name, some in sorted(groups.items())}
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


def _mean_of(records: Sequence[Mapping[str, Any]], metric: str) -> dict[str, Any]:
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
