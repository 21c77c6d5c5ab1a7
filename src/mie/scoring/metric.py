"""What is known about a metric: its name, how a paper prints it, which way is better, what it needs.

Tables, plots, reports and statistics read it from here. The functions stand in `mie.scoring.metrics`, each
with its spec beside it. Another package adds a metric with an entry point of the group `mie.metrics`: its
name, and the `module:attribute` of a `Metric`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from mie.core.registry import Registry, found_in, unknown_name
from mie.errors import MetricError, MieError

if TYPE_CHECKING:
    from mie.records import Pixels

# What a metric may need of a sample. All but the last two are arguments of its function, by these names.
NEEDS: Final[Mapping[str, str]] = {
    "input": "the input image, (H, W, 3) uint8",
    "reference": "the target image, (H, W, 3) uint8",
    "region": "the pixels that the edit is about, (H, W) bool",
    "colours": "the colours that count as paint, a tuple of names",
    "classes": "the regions of several classes, colour to (H, W) bool",
    "judge": "the answers of a language model",
    "weights": "a network with published weights",
}
_NO_ARGUMENTS: Final = frozenset({"judge", "weights"})

SHARE: Final = (0.0, 1.0)  # the scale of a share, and of most similarities
GRADES: Final = (1.0, 5.0)
DECIBELS: Final = (0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that an output gets.

    Args:
        name: The key in score files and summaries: "dice".
        label: What tables and plots call it: "DICE".
        meaning: What it says, in one line.
        unit: "dB", or nothing.
        decimals: How many a paper prints.
        higher_is_better: False for distances.
        needs: What of a sample it is computed from, keys of `NEEDS`.
        function: Takes the output at the input's size, `(H, W, 3) uint8`, and what it needs by name; returns
            a number, or raises `MetricError` with the reason why there is none. None where a benchmark has
            its own way to the number, such as a judge.
        scale: The lowest and the highest value.
        binary: Each sample has 0 or 1, so that the mean is a share and a histogram says nothing.

    """

    name: str
    label: str
    meaning: str = ""
    unit: str = ""
    decimals: int = 3
    higher_is_better: bool = True
    needs: Set[str] = frozenset()
    function: Callable[..., float] | None = None
    scale: tuple[float, float] | None = None
    binary: bool = False

    def __post_init__(self) -> None:
        for need in self.needs:
            if need not in NEEDS:
                raise unknown_name("need of a metric", need, NEEDS, where=f"metric {self.name!r}")
        object.__setattr__(self, "needs", frozenset(self.needs))

    @property
    def title(self) -> str:
        """The label with its unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def decibels(self) -> bool:
        return self.unit == "dB"

    @property
    def judged(self) -> bool:
        """A language model gives it."""
        return "judge" in self.needs

    @property
    def arguments(self) -> frozenset[str]:
        """What its function takes besides the output."""
        return frozenset(self.needs) - _NO_ARGUMENTS

    def show(self, value: float | str | None) -> str:
        """Return `.831` or `28.1`, as a paper prints it; `∞` for infinity and `–` for no number.

        >>> dice, psnr = Metric("dice", "DICE"), Metric("psnr", "PSNR", unit="dB", decimals=1)
        >>> dice.show(0.8312), dice.show(1), psnr.show(28.06), psnr.show("inf"), dice.show(None)
        ('.831', '1.000', '28.1', '∞', '–')
        """
        number = math.nan if value is None else float(value)  # "inf" and "nan" are text in documents
        if math.isnan(number):
            return "–"
        if math.isinf(number):
            return "∞" if number > 0 else "−∞"
        text = f"{number:.{self.decimals}f}"
        if self.decimals >= 3 and text.startswith(("0.", "-0.")):
            text = text.replace("0.", ".", 1)
        return text.replace("-", "−")

    def compute(self, output: Pixels, facts: Mapping[str, Any]) -> float:
        """Return the number of `output`, or raise `MetricError`; `facts` hold what is known of the sample."""
        if self.function is None:
            raise MetricError(f"{self.name} has no function of its own")
        for need in sorted(self.arguments):
            if facts.get(need) is None:
                raise MetricError(f"{self.name} needs {NEEDS[need].partition(',')[0]}")
        try:
            value = float(self.function(output, **{need: facts[need] for need in self.arguments}))
        except MetricError:
            raise
        except Exception as error:
            raise MieError(
                f"the metric {self.name!r} failed",
                where=getattr(self.function, "__module__", None),
                found=f"{type(error).__name__}: {error}",
                fix="mend its function, or raise MetricError where it has no value",
            ) from error
        if math.isnan(value):
            raise MetricError(f"{self.name} is not a number here")
        return value

    def record(self) -> dict[str, Any]:
        """The spec for a JSON document, so that numbers can be shown where the metric is not installed."""
        return {
            "label": self.label,
            "meaning": self.meaning,
            "unit": self.unit,
            "decimals": self.decimals,
            "higher_is_better": self.higher_is_better,
            "scale": None if self.scale is None else [str(end) for end in self.scale],
            "binary": self.binary,
        }

    @classmethod
    def from_record(cls, name: str, record: Mapping[str, Any]) -> Metric:
        """The metric that `record` wrote down."""
        scale = record.get("scale")
        return cls(
            name,
            str(record.get("label", name)),
            str(record.get("meaning", "")),
            str(record.get("unit", "")),
            int(record.get("decimals", 3)),
            bool(record.get("higher_is_better", True)),
            scale=None if scale is None else (float(scale[0]), float(scale[1])),
            binary=bool(record.get("binary", False)),
        )


def _check(thing: Any) -> str | None:
    return None if isinstance(thing, Metric) else "a mie.scoring.metrics.Metric"


METRICS: Final[Registry[Metric]] = Registry(
    "metric",
    {
        "dice": "mie.scoring.metrics.dice:DICE",
        "dice_guarded": "mie.scoring.metrics.dice:DICE_GUARDED",
        "class_dice": "mie.scoring.metrics.dice:CLASS_DICE",
        "p_acc": "mie.scoring.metrics.dice:P_ACC",
        "b_psnr": "mie.scoring.metrics.background:B_PSNR",
        "b_ssim": "mie.scoring.metrics.background:B_SSIM",
        "changed_psnr": "mie.scoring.metrics.background:CHANGED_PSNR",
        "changed_ssim": "mie.scoring.metrics.background:CHANGED_SSIM",
        "unchanged_psnr": "mie.scoring.metrics.background:UNCHANGED_PSNR",
        "unchanged_ssim": "mie.scoring.metrics.background:UNCHANGED_SSIM",
        "psnr": "mie.scoring.metrics.psnr:PSNR",
        "ssim": "mie.scoring.metrics.ssim:SSIM",
        "cp": "mie.scoring.metrics.background:CP",
        "lpips": "mie.scoring.metrics.perceptual:LPIPS",
        "clip": "mie.scoring.metrics.perceptual:CLIP",
        "fid": "mie.scoring.metrics.perceptual:FID",
        "kid": "mie.scoring.metrics.perceptual:KID",
        **found_in("mie.scoring.metrics", "METRIC"),
    },
    group="mie.metrics",
    check=_check,
)
# A file with a METRIC counts as added: it joins the benchmarks that take added metrics.
_OURS: Final = frozenset(METRICS.targets) - frozenset(found_in("mie.scoring.metrics", "METRIC"))


def added_metrics() -> list[str]:
    """The names that installed packages, the running script or files of their own brought."""
    return [name for name in METRICS.names() if name not in _OURS]


def find_metric(name: str) -> Metric:
    """The metric of that name; one that nobody knows is shown under its own name.

    Where its name begins or ends with a known one (`lpips_fg`, `their_psnr`) it has that one's unit, decimals
    and direction.
    """
    if name in METRICS:
        return METRICS[name]
    known = next(
        (part for part in (name.partition("_")[0], name.rpartition("_")[2]) if part in METRICS), None
    )
    label = name.replace("_", " ")
    if known is None:
        return Metric(name, label)
    return replace(METRICS[known], name=name, label=label, meaning="", function=None)
