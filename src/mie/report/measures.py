"""What the numbers are called and how a paper prints them: DICE .831, 28.1 dB; and the published rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from mie.scoring.benchmarks.miedb.published import CRITERIA, MIEDB


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric of a summary: its key there, its name on the page, and how its numbers look."""

    key: str
    label: str
    meaning: str
    unit: str = ""
    decimals: int = 3

    @property
    def titled(self) -> str:
        """The name with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def decibels(self) -> bool:
        return self.unit == "dB"

    def show(self, value: float | None) -> str:
        """`.831` or `28.1`; `∞` for infinity and `–` for no number.

        >>> MEASURES["dice"].show(0.8312), MEASURES["dice"].show(1), MEASURES["psnr"].show(28.06)
        ('.831', '1.000', '28.1')
        """
        if value is None or math.isnan(value):
            return "–"
        if math.isinf(value):
            return "∞" if value > 0 else "−∞"
        text = f"{value:.{self.decimals}f}"
        if self.decimals < 3:
            return text.replace("-", "−")
        text = text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text
        return text.replace("-", "−")


_KNOWN: Final = (
    Measure("dice", "DICE", "overlap of the painted region with the reference region"),
    Measure("p_acc", "P-ACC", "share of samples with DICE above .8"),
    Measure("b_psnr", "B-PSNR", "how well the background outside the region was kept", "dB", 1),
    Measure("b_ssim", "B-SSIM", "structural similarity of the background outside the region"),
    Measure("rubric", "Rubric", "eight criteria judged by a language model, 0 to 100", decimals=1),
    Measure("psnr", "PSNR", "closeness to the reference image", "dB", 1),
    Measure("ssim", "SSIM", "structural similarity to the reference image"),
    Measure("class_dice", "DICE, per class", "mean over the classes of a holistic sample"),
    Measure("dice_guarded", "DICE, guarded", "DICE where a pixel must also have moved towards the colour"),
    *(
        Measure(f"rubric_{number}", f"Rubric {number}: {name}", "mean grade, 1 to 5", decimals=2)
        for number, name in enumerate(CRITERIA, start=1)
    ),
)
MEASURES: Final = {measure.key: measure for measure in _KNOWN}
# The columns of the published table; everything else a summary holds goes into a second table.
MAIN: Final = ("dice", "p_acc", "b_psnr", "b_ssim", "rubric", "psnr", "ssim")


def measure(key: str) -> Measure:
    """The measure of a summary's key; a key we do not know is shown under its own name."""
    unit, decimals = ("dB", 1) if "psnr" in key else ("", 3)
    return MEASURES.get(key) or Measure(key, key.replace("_", " "), "", unit, decimals)


def in_order(keys: set[str]) -> list[str]:
    """Known measures in the order of the published table, then the others by name."""
    return [key for key in MEASURES if key in keys] + sorted(keys - set(MEASURES))


# The MieDB-100k benchmark as its authors published it, never mixed with rows of ours: the authors' own test
# set and their released script. B-PSNR and B-SSIM are what `--variant as_released` computes.
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
