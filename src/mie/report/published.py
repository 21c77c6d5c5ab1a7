"""The MieDB-100k benchmark as its authors published it: reference rows, never mixed with rows of ours.

The authors' own test set and their released script: B-PSNR and B-SSIM are what `--variant as_released`
computes, which is not the background measure that the paper's text describes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mie.protocols.published import MIEDB
from mie.report.measures import MEASURES, Measure

_RANK: Final = Measure("rank", "Pref-Rank", "mean rank given by people; 1 is best", decimals=1)
COLUMNS: Final = (
    *(MEASURES[key] for key in ("dice", "p_acc", "b_psnr", "b_ssim", "rubric")),
    _RANK,
    *(MEASURES[key] for key in ("psnr", "ssim")),
)
AS_RELEASED: Final = frozenset({"b_psnr", "b_ssim"})


@dataclass(frozen=True, slots=True)
class PublishedRow:
    model: str
    values: tuple[float, ...]  # in the order of COLUMNS


PUBLISHED: Final = tuple(
    PublishedRow(row.model, tuple(getattr(row, column.key) for column in COLUMNS))
    for row in sorted(MIEDB, key=lambda row: -row.dice)
)
