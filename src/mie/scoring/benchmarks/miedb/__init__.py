"""MieDB-100k: perception and transformation from pixels, modification by a judge.

Beside the rubric, which needs a judge, modification gets numbers from pixels that the paper does not have:
PSNR and SSIM inside and outside the area that changes, where the sample has its mask. They are the same in
both variants, but for exact matches and missing outputs.

Variants. `paper` (default): what the text promises. `as_released`: what the public script prints, quirks
included. They differ in B-PSNR and B-SSIM, in what a missing output does, and in exact matches (capped at
100 dB and counted, or infinite). Never mix them in one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mie.scoring.benchmarks import Benchmark, Board, Column, PublishedRows, Success
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
    published="mie.scoring.benchmarks.miedb:PUBLISHED",
    boards=(
        Board(
            "Rubric (0 to 100) and its eight criteria (1 to 5), first attempt",
            tuple(metric.name for metric in _RUBRIC),
        ),
    ),
    model_columns=(
        *(Column(name, ("perspective", "perception")) for name in ("dice", "p_acc", "b_psnr", "b_ssim")),
        *(Column(name, ("perspective", "modification")) for name in ("rubric", "rank")),
        *(Column(name, ("perspective", "transformation")) for name in ("psnr", "ssim")),
    ),
    # A rubric of 75 is a mean grade of 4 in 5.
    joint=(
        Success("perception", "dice", 0.8, above=True),
        Success("modification", "rubric", 75.0, tasks=("removal",)),
    ),
    main=("dice", "p_acc", "b_psnr", "b_ssim", "rubric", "psnr", "ssim"),
    leads=True,
    importer="mie.datasets.imports.miedb:read",
    summary_metrics=(
        Metric(
            "rank",
            "Pref-Rank",
            "mean rank given by people; 1 is best",
            decimals=1,
            higher_is_better=False,
        ),
    ),
)

# The numbers of the paper. They come from the released script: compare them with that variant alone. B-PSNR
# above all is another quantity there (a do-nothing model has about 20 dB, against infinity in `paper`).
VARIANT: Final = "as_released"


@dataclass(frozen=True, slots=True)
class Published:
    """One row of the main table: DICE, P-ACC, SSIM in 0..1, PSNR in dB, rubric in 0..100, a mean rank."""

    model: str
    dice: float
    p_acc: float
    b_psnr: float
    b_ssim: float
    rubric: float
    rank: float
    psnr: float
    ssim: float


@dataclass(frozen=True, slots=True)
class Ablation:
    """OmniGen2 trained on some of the perspectives."""

    trained_on: tuple[str, ...]
    dice: float
    p_acc: float
    rubric: float
    psnr: float
    ssim: float


MIEDB: Final = (
    Published("SDXL-turbo", 0.002, 0.000, 16.6, 0.467, 8.4, 7.7, 15.9, 0.397),
    Published("Bagel", 0.263, 0.069, 13.9, 0.620, 34.4, 6.2, 12.7, 0.442),
    Published("OmniGen2", 0.248, 0.065, 11.9, 0.541, 29.1, 7.1, 8.3, 0.280),
    Published("Step1X-Edit", 0.332, 0.126, 15.5, 0.727, 35.6, 4.5, 16.6, 0.539),
    Published("Qwen-Image-Edit", 0.387, 0.153, 15.4, 0.722, 32.2, 5.5, 18.9, 0.606),
    Published("FLUX.1-Kontext-dev", 0.341, 0.126, 15.4, 0.701, 37.8, 6.2, 17.9, 0.543),
    Published("OmniGen2-MIE", 0.831, 0.737, 28.1, 0.917, 65.9, 1.4, 22.6, 0.685),
    Published("GPT-Image-1", 0.467, 0.221, 16.3, 0.510, 42.8, 4.8, 14.4, 0.451),
    Published("Nano Banana Pro", 0.426, 0.202, 12.8, 0.413, 63.4, 2.0, 20.0, 0.610),
    Published("Imagen4", 0.142, 0.000, 8.9, 0.210, 19.7, 7.4, 7.9, 0.174),
)

MIEDB_ABLATION: Final = (
    Ablation((), 0.248, 0.065, 29.1, 8.3, 0.280),
    Ablation(("perception",), 0.833, 0.740, 37.8, 19.7, 0.631),
    Ablation(("modification",), 0.001, 0.000, 57.5, 19.8, 0.631),
    Ablation(("transformation",), 0.034, 0.000, 15.0, 23.7, 0.702),
    Ablation(("perception", "modification", "transformation"), 0.831, 0.737, 65.9, 22.6, 0.685),
)

_COLUMNS: Final = (
    *(BENCHMARK.metric(name) for name in ("dice", "p_acc", "b_psnr", "b_ssim", "rubric")),
    BENCHMARK.metric("rank"),
    *(BENCHMARK.metric(name) for name in ("psnr", "ssim")),
)
PUBLISHED: Final = PublishedRows(
    caption="MieDB-100k, measured by its authors on their own test set",
    columns=_COLUMNS,
    rows=tuple(
        (row.model, tuple(getattr(row, column.name) for column in _COLUMNS))
        for row in sorted(MIEDB, key=lambda row: -row.dice)
    ),
    variant=VARIANT,
    marked=frozenset({"b_psnr", "b_ssim"}),
    note="B-PSNR and B-SSIM come from the released script (variant as_released), which paints two image rows "
    "instead of removing the region; they do not compare with paper. Published rows were measured by their "
    "authors on another test set.",
    source="published by the authors of MieDB-100k, own test set; B-PSNR, B-SSIM by the released script",
)
