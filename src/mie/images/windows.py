"""From 16-bit, signed or float intensities to 8 bits: CT windows, percentiles, and a record of the range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.core.registry import unknown_name
from mie.errors import ConfigError, ImageError
from mie.records import Pixels, Step

# Pixels converted at a time: a volume never exists a second time as float64.
_BLOCK: Final = 1 << 20
# The soft-tissue window most abdominal CT data sets are read with, in Hounsfield units.
_SOFT_TISSUE: Final = (-160.0, 240.0)
_PERCENTILES: Final = (0.5, 99.5)


def to_8bit(
    values: NDArray[Any],
    *,
    low: float | None = None,
    high: float | None = None,
    percentiles: tuple[float, float] | None = None,
    where: object = None,
) -> tuple[NDArray[np.uint8], Step | None]:
    """Map `low`..`high` to 0..255 and clip: `round(clip((v - low) / (high - low), 0, 1) * 255)`, half up.

    `values` is any integer or float array of any shape. The range is the given one, else the given
    percentiles (0..100) of the array, else its minimum and maximum. The step records it. uint8 values
    without a given range or percentiles come back as they are, with None for the step.
    """
    if values.dtype == np.uint8 and low is None and high is None and percentiles is None:
        return values, None
    step = find_window(values, low=low, high=high, percentiles=percentiles, where=where)
    return apply_window(values, step), step


def find_window(
    values: NDArray[Any],
    *,
    low: float | None = None,
    high: float | None = None,
    percentiles: tuple[float, float] | None = None,
    where: object = None,
) -> dict[str, Any]:
    """The "window" step that `to_8bit` would use for `values`, without applying it.

    Percentiles that fall on one value (a slice that is nearly all air) fall back to min..max. When
    that is one value too, the step says `"constant": True`.
    """
    if values.dtype.kind not in "iuf":
        raise ImageError(
            "pixels are not real numbers", where=where, expected="integers or floats", found=f"{values.dtype}"
        )
    if values.size == 0:
        raise ImageError("picture has no pixels", where=where, found=f"shape {values.shape}")
    check_finite(values, where)
    if low is not None or high is not None:
        if low is None or high is None or percentiles is not None or not low < high:
            raise ConfigError(
                "intensity range does not make sense",
                where=where,
                expected="low below high, both given, without percentiles",
                found=f"low={low}, high={high}, percentiles={percentiles}",
            )
        return {"step": "window", "low": low, "high": high, "from": "given"}
    if percentiles is not None:
        if not 0 <= percentiles[0] < percentiles[1] <= 100:
            raise ConfigError(
                "percentiles do not make sense",
                where=where,
                found=percentiles,
                expected="two numbers, 0 <= first < second <= 100",
            )
        first, second = (float(p) for p in percentiles_of(values, percentiles))
        if first < second:
            return {
                "step": "window",
                "low": first,
                "high": second,
                "from": "percentiles",
                "percentiles": list(percentiles),
            }
    smallest, largest = values.min().item(), values.max().item()
    step = {"step": "window", "low": smallest, "high": largest, "from": "min-max"}
    return step if smallest < largest else step | {"constant": True}


def volume_window(values: NDArray[Any], *, hounsfield: bool, where: object = None) -> dict[str, Any]:
    """One grey window for a whole volume, so that its slices can be compared.

    Soft tissue for Hounsfield units; else percentiles of what is not exactly 0, because most of an MRI volume
    can be zeros around the head, which would drag the percentiles down.
    """
    if hounsfield:
        window = find_window(values, low=_SOFT_TISSUE[0], high=_SOFT_TISSUE[1], where=where)
        return {**window, "from": "soft tissue"}
    tissue = scratch.chosen(values, lambda block: block != 0)
    return find_window(tissue if tissue.size else values, percentiles=_PERCENTILES, where=where)


def percentiles_of(values: NDArray[Any], which: float | Sequence[float]) -> NDArray[Any]:
    """`np.percentile`, to the bit, of values that need not fit in memory."""
    return np.asarray(np.percentile(scratch.chosen(values, None), which, overwrite_input=True))


def apply_window(values: NDArray[Any], step: Step) -> NDArray[np.uint8]:
    """`values` through a "window" step that has `low` and `high`; all 0 where the two are one value."""
    out = np.zeros(values.shape, np.uint8)
    if not step["low"] < step["high"]:
        return out
    if values.dtype.kind in "iu" and values.dtype.itemsize <= 2:
        # At most 65,536 different values: work each out once, exactly, and look it up.
        bounds = np.iinfo(values.dtype)
        table = _scale(np.arange(int(bounds.min), int(bounds.max) + 1), step)
        for source, target in in_blocks(values, out):
            target[...] = table[source.astype(np.int32) - int(bounds.min)]
        return out
    for source, target in in_blocks(values, out):
        target[...] = _scale(source, step)
    return out


def _scale(values: NDArray[Any], step: Step) -> NDArray[np.uint8]:
    share = (values.astype(np.float64) - step["low"]) / (float(step["high"]) - float(step["low"]))
    return np.floor(np.clip(share, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)


def in_blocks(values: NDArray[Any], out: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Matching views of both arrays, cut along the first axis into pieces of about `_BLOCK` pixels."""
    if values.ndim == 0:
        return [(values, out)]
    rows = max(1, _BLOCK // max(1, values[0].size))
    return [(values[i : i + rows], out[i : i + rows]) for i in range(0, len(values), rows)]


def check_finite(values: NDArray[Any], where: object) -> None:
    if values.dtype.kind != "f":
        return
    # One NaN or infinity makes the sum one too, and a sum needs no array of booleans beside a volume.
    with np.errstate(invalid="ignore", over="ignore"):
        total = values.sum(dtype=np.float64)
    if np.isfinite(total):
        return
    nan, infinite = (
        sum(int(wrong(values[at]).sum()) for at in scratch.blocks(values)) for wrong in (np.isnan, np.isinf)
    )
    if nan or infinite:
        raise ImageError(
            "picture has pixels that are not numbers",
            where=where,
            expected="finite values",
            found=f"{nan} NaN and {infinite} infinite of {values.size} pixels",
            fix="replace them in the source file",
        )


# CT windows: the named ones, and the DICOM formulas (PS3.3 C.11.2.1.2 and C.11.2.1.3) that apply them.
#
# Levels and widths are in Hounsfield units (air -1000, water 0).

# Air is -1000 HU. CT without anything near it has been rescaled or cut, and holds no Hounsfield units.
_AIR: Final = -500.0
FUNCTIONS: Final = ("linear", "linear_exact", "sigmoid")


@dataclass(frozen=True, slots=True)
class CtWindow:
    """A window as it stands on a console: name, level (centre) and width in Hounsfield units."""

    name: str
    level: float
    width: float

    @property
    def low(self) -> float:
        return self.level - self.width / 2

    @property
    def high(self) -> float:
        return self.level + self.width / 2

    def step(self, function: str = "linear") -> Step:
        return {
            "step": "window",
            "name": self.name,
            "centre": self.level,
            "width": self.width,
            "function": function,
        }


# The presets of most consoles and textbooks.
WINDOWS: Final = {
    w.name: w
    for w in (
        CtWindow("lung", -600, 1500),
        CtWindow("mediastinum", 50, 350),
        CtWindow("bone", 400, 1800),
        CtWindow("brain", 40, 80),
        CtWindow("abdomen", 50, 400),
        CtWindow("liver", 30, 150),
        CtWindow("stroke", 40, 40),
    )
}
# From air to dense bone: what a picture shows that hides nothing.
FULL_RANGE: Final = CtWindow("full range", 500, 3000)


def find_ct_window(name: str) -> CtWindow:
    if name in WINDOWS:
        return WINDOWS[name]
    raise unknown_name("CT window", name, WINDOWS)


def holds_air(values: NDArray[Any]) -> bool:
    """Whether CT values can be Hounsfield units: there is air in or around every patient."""
    return bool(values.size and values.min() <= _AIR)


def through_ct_window(
    values: NDArray[Any], level: float, width: float, function: str = "linear", *, where: object = None
) -> Pixels:
    """`(H, W)` Hounsfield units to uint8 0..255, rounded half up.

    linear:        ((x - (c - 0.5)) / (w - 1) + 0.5) * 255, clipped; w >= 1 (w = 1 is a threshold at c - 0.5)
    linear_exact:  ((x - c) / w + 0.5) * 255, clipped; w > 0
    sigmoid:       255 / (1 + exp(-4 (x - c) / w)); w > 0
    """
    if function not in FUNCTIONS:
        raise ConfigError("unknown window function", expected=", ".join(FUNCTIONS), found=function)
    least = 1.0 if function == "linear" else 0.0
    if not np.isfinite([level, width]).all() or width < least or width <= 0:
        raise ConfigError(
            "window does not make sense",
            where=where,
            expected=f"a finite level and a width of {'1 or more' if least else 'more than 0'}",
            found=f"level {level}, width {width}",
        )
    check_finite(values, where)
    pixels = np.empty(values.shape, np.uint8)
    for source, target in in_blocks(values, pixels):
        share = _ct_share(source.astype(np.float64), level, width, function)
        target[...] = np.floor(share * 255.0 + 0.5).astype(np.uint8)
    return pixels


def _ct_share(x: NDArray[np.float64], level: float, width: float, function: str) -> NDArray[np.float64]:
    if function == "sigmoid":
        with np.errstate(over="ignore"):
            return np.asarray(1.0 / (1.0 + np.exp(-4.0 * (x - level) / width)))
    if function == "linear_exact":
        return np.clip((x - level) / width + 0.5, 0.0, 1.0)
    if width == 1:
        return (x > level - 0.5).astype(np.float64)
    return np.clip((x - (level - 0.5)) / (width - 1) + 0.5, 0.0, 1.0)
