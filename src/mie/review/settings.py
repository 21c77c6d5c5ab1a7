"""How a kind of work is handed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mie.errors import ConfigError
from mie.review.material import INDEXED
from mie.vocabulary import nearest_name

_STRATA: Final = tuple(name for name in INDEXED if name not in ("id", "sha256", "group", "turn", "colour"))


@dataclass(frozen=True, slots=True)
class Settings:
    """How a task is handed out; fixed once its items exist."""

    raters: int = 1
    overlap: float = 1.0  # share of the items that `raters` people see; one person sees the others
    sample: int | None = None
    stratify: tuple[str, ...] = ()
    seed: int = 0
    proposals: str | None = None  # of masks: a digest of the regions that models proposed

    def __post_init__(self) -> None:
        for name in self.stratify:
            if name not in _STRATA:
                near = nearest_name(name, _STRATA)
                raise ConfigError(
                    f"no stratum named {name!r}",
                    expected=", ".join(_STRATA),
                    fix=f"did you mean {near!r}?" if near else None,
                )
        if self.raters < 1 or not 0 <= self.overlap <= 1 or (self.sample is not None and self.sample < 1):
            raise ConfigError(
                "the review's numbers do not make sense",
                expected="raters and sample of 1 or more, overlap from 0 to 1",
                found=f"raters {self.raters}, overlap {self.overlap}, sample {self.sample}",
            )
