"""CT windows: the named ones, and the DICOM formulas (PS3.3 C.11.2.1.2 and C.11.2.1.3) that apply them.

Levels and widths are in Hounsfield units (air -1000, water 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.errors import ConfigError
from mie.images.intensity import check_finite
from mie.records import Pixels, Step
from mie.vocabulary import nearest_name

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
    near = nearest_name(name, WINDOWS)
    raise ConfigError(
        f"no CT window named {name!r}",
        expected=", ".join(WINDOWS),
        fix=f"did you mean {near!r}?" if near else None,
    )


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
    x = values.astype(np.float64)
    if function == "sigmoid":
        with np.errstate(over="ignore"):
            share = 1.0 / (1.0 + np.exp(-4.0 * (x - level) / width))
    elif function == "linear_exact":
        share = np.clip((x - level) / width + 0.5, 0.0, 1.0)
    elif width == 1:
        share = (x > level - 0.5).astype(np.float64)
    else:
        share = np.clip((x - (level - 0.5)) / (width - 1) + 0.5, 0.0, 1.0)
    return np.floor(share * 255.0 + 0.5).astype(np.uint8)
