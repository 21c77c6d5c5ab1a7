"""MedEBench: context preservation from pixels, editing accuracy and visual quality from a judge.

Variants. `paper` (default): CP is the mean SSIM over windows outside the region; a judge's reply must hold
both scores, once, in range. `as_released`: CP zeroes the region in both images and measures the whole;
replies are read as the public script reads them.
"""

from __future__ import annotations

from typing import Final

from mie.scoring.benchmarks import Benchmark, Board, Radar
from mie.scoring.metric import SHARE, Metric

_JUDGE: Final = {"judge"}
_PLAIN: Final = "the judge is told the plain instruction"


def _judged(name: str, label: str, meaning: str) -> Metric:
    return Metric(name, label, meaning, decimals=2, needs=_JUDGE, scale=SHARE)


BENCHMARK: Final = Benchmark(
    name="medebench",
    version=1,
    title="MedEBench",
    meaning="context preservation from pixels; editing accuracy and visual quality from a judge",
    metrics=(
        _judged("ea", "EA", "editing accuracy, by a judge that is told the change"),
        "cp",
        _judged("vq", "VQ", "visual quality, by the same judge"),
        _judged("ea_plain", "EA (instruction)", _PLAIN),
        _judged("vq_plain", "VQ (instruction)", _PLAIN),
        "psnr",
        "ssim",
    ),
    columns=("input", "target_image", "mask", "params", "prompt", "description"),
    measure="mie.scoring.benchmarks.medebench.score:measure",
    questions="mie.scoring.benchmarks.medebench.judge:QUESTIONS",
    groups=("organ",),
    partitions=("organ", "task", "modality", "source"),
    psnr_cap=100.0,
    tables="mie.scoring.benchmarks.medebench.score:tables",
    published="mie.scoring.benchmarks.medebench.score:PUBLISHED",
    boards=(
        Board("Overall, 0 to 1, first attempt", ("ea", "cp", "vq", "ea_plain", "vq_plain", "psnr", "ssim")),
    ),
    main=("ea", "cp", "vq"),
    radar=Radar("organ", {"ea": "Editing accuracy", "cp": "Context preservation", "vq": "Visual quality"}),
    importer="mie.scoring.benchmarks.medebench.importer:read",
)
