"""What the outputs of a whole volume say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.datasets.schema import params_of
from mie.errors import ImageError, MetricError
from mie.images.overlay import deblend, deblend_any
from mie.images.resize import resize_to
from mie.images.slice_consistency import image_consistency, mask_consistency
from mie.records import Mask, Pixels
from mie.scoring.attempts import Context, Entry, LineBody, Output, Row, line_of
from mie.scoring.benchmarks.volume import BENCHMARK
from mie.scoring.metrics.psnr import decibel
from mie.scoring.metrics.volume import surfaces, volume_dice, volume_psnr, volume_ssim
from mie.scoring.reference import Reference, changes_content, in_colour, paints, read_output, read_stored
from mie.scoring.scores import NO_OUTPUT

_PAINTED: Final = ("volume_dice", "hd95", "nsd", "slice_consistency")
_IMAGE: Final = ("volume_psnr", "volume_ssim", "slice_consistency")
_AREA: Final = ("volume_psnr", "volume_ssim", "region_psnr", "slice_consistency")


@dataclass(frozen=True)
class Truth:
    """A whole volume's own images, slice by slice."""

    references: Sequence[Reference]
    spacing: tuple[float, float, float]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Truth:
        """From the rows of a dataset, in the order of the slices."""
        facts = params_of(rows[0])["volume"]
        step, row, column = (float(mm) for mm in facts["spacing"])
        return cls([_reference(one) for one in rows], (step, row, column))

    @property
    def size(self) -> tuple[int, int]:
        return self.references[0].size

    @cached_property
    def region(self) -> Mask:
        """What the edit is about, `(S, H, W)`."""
        nothing = np.zeros(self.size, np.bool_)
        return np.stack([nothing if r.region is None else r.region for r in self.references])

    @cached_property
    def grey(self) -> NDArray[np.uint8]:
        """The target volume in grey levels."""
        return np.stack([_grey(in_colour(r.target)) for r in self.references])

    @property
    def shown_best(self) -> int:
        """The slice with most of the region; the middle one where there is none."""
        areas = self.region.sum(axis=(1, 2))
        return int(areas.argmax()) if areas.any() else len(areas) // 2


def _reference(row: Row) -> Reference:
    mask = None if row["mask"] is None else read_stored(row["mask"]["bytes"])
    image, target = (in_colour(read_stored(row[name]["bytes"])) for name in ("input", "target_image"))
    return Reference.of(row["perspective"], row["task"], row["colour"], image, target, mask)


def applies_to(perspective: str) -> tuple[str, ...]:
    """The metrics of a perspective's volumes."""
    if paints(perspective):
        return _PAINTED
    return _AREA if changes_content(perspective) else _IMAGE


def measure(row: Row, outputs: Sequence[Any], context: Context) -> LineBody:
    """The line of one volume. `row["rows"]` are its slices; `outputs` has the attempts at each of them."""
    rows: Sequence[Row] = row["rows"]
    facts = params_of(rows[0])["volume"]
    groups = {"volume": str(facts["id"]), "slices": str(facts["slices"])}
    applies = applies_to(rows[0]["perspective"])
    attempts: Sequence[Sequence[Output]] = list(zip(*outputs, strict=True))
    missing = int(facts["slices"]) - len(rows)
    if missing:
        reason = f"{missing} of the volume's {facts['slices']} slices are not in the run"
        bodies = [_unscored(of[0].k, reason) for of in attempts]
        return line_of(rows[len(rows) // 2], applies, bodies, **groups)
    try:
        truth = Truth.of(rows)
    except ImageError as error:
        reason = f"the volume's own images: {error.reason}"
        bodies = [_unscored(of[0].k, reason) for of in attempts]
        return line_of(rows[len(rows) // 2], applies, bodies, **groups)
    bodies = [_attempt(truth, of, applies, context) for of in attempts]
    return line_of(rows[truth.shown_best], applies, bodies, **groups)


def _unscored(k: int, reason: str) -> dict[str, Any]:
    return {"k": k, "metrics": {}, "unscored": {NO_OUTPUT: reason}}


def _attempt(
    truth: Truth, outputs: Sequence[Output], applies: Sequence[str], context: Context
) -> dict[str, Any]:
    k = outputs[0].k
    lost = [(at, output.reason) for at, output in enumerate(outputs) if output.path is None]
    if lost:
        first, reason = lost[0]
        said = f"{len(lost)} of {len(outputs)} slices have no output; slice {first}: {reason}"
        return _unscored(k, said)
    slices = []
    for at, output in enumerate(outputs):
        try:
            slices.append(read_output(Path(output.path or ""), context.variant))
        except ImageError as error:
            return _unscored(k, f"unreadable output of slice {at}: {error.reason}")
    return {"k": k, **score_volume(truth, slices, applies, context.psnr_cap)}


def score_volume(
    truth: Truth, outputs: Sequence[Pixels], applies: Sequence[str], psnr_cap: float | None = None
) -> dict[str, Any]:
    """`{"metrics": {name: value}, "unscored": {name: reason}}` of a volume's outputs, of any size."""
    entry = Entry(psnr_cap)
    resized = {output.shape[:2] for output in outputs} - {truth.size}
    if resized:
        entry.body["resized_from"] = list(resized.pop())
    fitted = [resize_to(output, truth.size) for output in outputs]
    compute = _painted(truth, fitted) if "volume_dice" in applies else _changed(truth, fitted)
    for name in applies:
        entry.measure([BENCHMARK.metric(name)], lambda name=name: [compute[name]()])  # type: ignore[misc]
    return entry.body


def _painted(truth: Truth, outputs: Sequence[Pixels]) -> dict[str, Any]:
    painted = np.stack([_paint(r, output) for r, output in zip(truth.references, outputs, strict=True)])
    apart = surfaces(painted, truth.region, truth.spacing)
    return {
        "volume_dice": lambda: volume_dice(painted, truth.region),
        "hd95": apart.percentile,
        "nsd": apart.dice,
        "slice_consistency": lambda: mask_consistency(painted, truth.region),
    }


def _paint(reference: Reference, output: Pixels) -> Mask:
    if reference.several:
        return deblend_any(reference.image, output)
    if not reference.painted_in:
        raise MetricError("the sample names no colour")
    return deblend(reference.image, output, reference.painted_in[0])


def _changed(truth: Truth, outputs: Sequence[Pixels]) -> dict[str, Any]:
    grey = np.stack([_grey(output) for output in outputs])
    region = truth.region

    def consistency() -> float:
        # Of a local edit only its surroundings: elsewhere nothing was to change.
        box = _box(region)
        return image_consistency(grey[box], truth.grey[box])

    def inside() -> float:
        if not region.any():
            raise MetricError("no region is marked")
        difference = grey[region].astype(np.int64) - truth.grey[region]
        return decibel(int((difference**2).sum()), int(region.sum()))

    return {
        "volume_psnr": lambda: volume_psnr(grey, truth.grey),
        "volume_ssim": lambda: volume_ssim(grey, truth.grey, truth.spacing),
        "region_psnr": inside,
        "slice_consistency": consistency,
    }


def _box(region: Mask) -> tuple[slice, ...]:
    if not region.any():
        return (slice(None),) * 3
    rows, columns = (np.flatnonzero(region.any(axis=axes)) for axes in ((0, 2), (0, 1)))
    return slice(None), slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _grey(image: Pixels) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)
