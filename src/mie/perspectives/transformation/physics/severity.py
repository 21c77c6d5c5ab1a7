"""How every effect checks its severity and draws one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeAlias

import numpy as np

from mie.core.registry import suggestion
from mie.errors import ConfigError

# Field -> (lowest, highest), both included; two integers for a count.
Ranges: TypeAlias = Mapping[str, tuple[float, float]]


def check_ranges(effect: Any, ranges: Ranges) -> None:
    """Refuse an effect whose fields lie outside `ranges` (NaN lies outside everything)."""
    for name, (low, high) in ranges.items():
        value = getattr(effect, name)
        if not low <= value <= high or (isinstance(low, int) and value != int(value)):
            raise ConfigError(
                f"{type(effect).__name__}: {name} is out of range",
                expected=f"{'a whole number, ' if isinstance(low, int) else ''}{low} to {high}",
                found=value,
            )


def check_choice(effect: Any, name: str, known: tuple[Any, ...]) -> None:
    value = getattr(effect, name)
    if value not in known:
        raise ConfigError(
            f"{type(effect).__name__}: {name} is not known",
            expected=", ".join(map(str, known)),
            found=value,
            fix=suggestion(str(value), map(str, known)),
        )


def draw_ranges(rng: np.random.Generator, ranges: Ranges) -> dict[str, float | int]:
    """One number for each field, uniform in its range.

    Draw all of them and overwrite the fixed ones afterwards, so that fixing one field leaves the others as
    they were.
    """
    return {
        name: int(rng.integers(low, int(high) + 1))
        if isinstance(low, int)
        else round(rng.uniform(low, high), 4)
        for name, (low, high) in ranges.items()
    }


def check_fields(effect: type[Any], fixed: Mapping[str, Any]) -> None:
    """Refuse names in `fixed` that are no field of the effect."""
    known = [f.name for f in fields(effect)]
    for name in fixed:
        if name not in known:
            raise ConfigError(
                f"{effect.__name__} has no {name}",
                expected=", ".join(known),
                found=name,
                fix=suggestion(name, known),
            )


def as_params(effect: Any) -> dict[str, Any]:
    """The effect's name and fields, JSON-able."""
    return {"effect": type(effect).__name__, **asdict(effect)}
