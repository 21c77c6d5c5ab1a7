"""MieDB-100k: perception and transformation from pixels, modification by a judge.

Beside the rubric, which needs a judge, modification gets numbers from pixels that the paper does not have:
PSNR and SSIM inside and outside the area that changes, where the sample has its mask. They are the same in
both variants, but for exact matches and missing outputs.

Variants. `paper` (default): what the text promises. `as_released`: what the public script prints, quirks
included. They differ in B-PSNR and B-SSIM, in what a missing output does, and in exact matches (capped at
100 dB and counted, or infinite). Never mix them in one table.
"""

from __future__ import annotations

from typing import Final

from mie.scoring.benchmarks import Benchmark, Board
from mie.scoring.metric import GRADES, Metric

# The rubric's eight criteria, in the order of its score list.
CRITERIA: Final = (
    "edit goal",
    "morphology",
    "intensity",
    "blending",
    "background",
    "anatomy",
    "artifacts",
    "image quality",
)
_JUDGE: Final = {"judge"}
_RUBRIC: Final = (
    Metric(
        "rubric",
        "Rubric",
        "eight criteria judged by a language model, 0 to 100",
        decimals=1,
        needs=_JUDGE,
        scale=(0.0, 100.0),
    ),
    *(
        Metric(
            f"rubric_{number}",
            f"Rubric {number}: {name}",
            "mean grade, 1 to 5",
            decimals=2,
            needs=_JUDGE,
            scale=GRADES,
        )
        for number, name in enumerate(CRITERIA, start=1)
    ),
)

BENCHMARK: Final = Benchmark(
    name="miedb",
    version=1,
    title="MieDB",
    meaning="overlays and whole images from pixels, lesions by the rubric of a judge",
    metrics=(
        "dice",
        "dice_guarded",
        "class_dice",
        "p_acc",
        "b_psnr",
        "b_ssim",
        "psnr",
        "ssim",
        "changed_psnr",
        "changed_ssim",
        "unchanged_psnr",
        "unchanged_ssim",
        *_RUBRIC,
    ),
    columns=("input", "target_image", "mask", "colour"),
    measure="mie.scoring.benchmarks.miedb.score:measure",
    questions="mie.scoring.benchmarks.miedb.rubric:QUESTIONS",
    takes_added_metrics=True,
    missing_as_zero=True,
    psnr_cap=100.0,
    published="mie.scoring.benchmarks.miedb.published:PUBLISHED",
    boards=(
        Board(
            "Rubric (0 to 100) and its eight criteria (1 to 5), first attempt",
            tuple(metric.name for metric in _RUBRIC),
        ),
    ),
    main=("dice", "p_acc", "b_psnr", "b_ssim", "rubric", "psnr", "ssim"),
    leads=True,
    importer="mie.datasets.imports.miedb:read",
)
