"""The MieDB-100k benchmark as its authors published it: reference rows, never mixed with rows of ours.

The authors' own test set and their released script: B-PSNR and B-SSIM are what `--variant as_released`
computes, which is not the background measure that the paper's text describes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mie.report.measures import MEASURES, Measure

_RUBRIC: Final = Measure(
    "rubric", "Rubric", "eight criteria judged by a language model, 0 to 100", decimals=1
)
_RANK: Final = Measure("pref_rank", "Pref-Rank", "mean rank given by people; 1 is best", decimals=1)
COLUMNS: Final = (
    *(MEASURES[key] for key in ("dice", "p_acc", "b_psnr", "b_ssim")),
    _RUBRIC,
    _RANK,
    *(MEASURES[key] for key in ("psnr", "ssim")),
)
AS_RELEASED: Final = frozenset({"b_psnr", "b_ssim"})


@dataclass(frozen=True, slots=True)
class PublishedRow:
    model: str
    values: tuple[float, ...]  # in the order of COLUMNS


PUBLISHED: Final = (
    PublishedRow("OmniGen2-MIE", (0.831, 0.737, 28.1, 0.917, 65.9, 1.4, 22.6, 0.685)),
    PublishedRow("GPT-Image-1", (0.467, 0.221, 16.3, 0.510, 42.8, 4.8, 14.4, 0.451)),
    PublishedRow("Nano Banana Pro", (0.426, 0.202, 12.8, 0.413, 63.4, 2.0, 20.0, 0.610)),
    PublishedRow("Qwen-Image-Edit", (0.387, 0.153, 15.4, 0.722, 32.2, 5.5, 18.9, 0.606)),
    PublishedRow("FLUX.1-Kontext-dev", (0.341, 0.126, 15.4, 0.701, 37.8, 6.2, 17.9, 0.543)),
    PublishedRow("Step1X-Edit", (0.332, 0.126, 15.5, 0.727, 35.6, 4.5, 16.6, 0.539)),
    PublishedRow("Bagel", (0.263, 0.069, 13.9, 0.620, 34.4, 6.2, 12.7, 0.442)),
    PublishedRow("OmniGen2", (0.248, 0.065, 11.9, 0.541, 29.1, 7.1, 8.3, 0.280)),
    PublishedRow("Imagen4", (0.142, 0.000, 8.9, 0.210, 19.7, 7.4, 7.9, 0.174)),
    PublishedRow("SDXL-turbo", (0.002, 0.000, 16.6, 0.467, 8.4, 7.7, 15.9, 0.397)),
)
