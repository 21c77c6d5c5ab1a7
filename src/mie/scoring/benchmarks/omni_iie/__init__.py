"""Omni IIE Bench: pixels and networks at 768 x 768, questions by a judge, one Overall.

LPIPS and CLIP need published weights (`mie weights get lpips-vgg clip`). Without them, and without a judge,
Overall has no number. One process by default: the networks use all cores, or the GPU.
"""

from __future__ import annotations

from typing import Final

from mie.scoring.benchmarks import Benchmark, Board, Column
from mie.scoring.metric import SHARE, Metric

_AREAS: Final = {
    "all": ("", "whole image"),
    "fg": (" FG", "inside the region"),
    "bg": (" BG", "outside the region"),
}
LPIPS: Final = tuple(f"lpips_{area}" for area in _AREAS)
CLIP: Final = tuple(f"clip_{area}" for area in _AREAS)
_NETWORK: Final = {"reference", "weights"}


_BOARD: Final = ("overall", *LPIPS, *CLIP, "qa", "ssim", "psnr")
BENCHMARK: Final = Benchmark(
    name="omni-iie",
    version=2,
    title="Omni IIE",
    meaning="LPIPS, CLIP, SSIM and verifying questions as one Overall; scale gap and conversations",
    metrics=(
        Metric("overall", "Overall", "LPIPS, CLIP, QA and SSIM together"),
        *(
            Metric(
                f"lpips_{area}",
                f"LPIPS{label}",
                f"{where}; lower is better",
                higher_is_better=False,
                needs=_NETWORK,
            )
            for area, (label, where) in _AREAS.items()
        ),
        *(
            Metric(f"clip_{area}", f"CLIP{label}", where, needs=_NETWORK)
            for area, (label, where) in _AREAS.items()
        ),
        Metric(
            "qa",
            "QA",
            "share of outputs with every question answered right",
            needs={"judge"},
            scale=SHARE,
            binary=True,
        ),
        "ssim",
        "psnr",
    ),
    columns=("input", "target_image", "mask", "params", "prompt", "group", "turn"),
    setup="mie.scoring.benchmarks.omni_iie.score:setup",
    measure="mie.scoring.benchmarks.omni_iie.score:measure",
    questions="mie.scoring.benchmarks.omni_iie.qa:QUESTIONS",
    aggregate="mie.scoring.benchmarks.omni_iie.score:aggregate",
    groups=("track", "level", "kind", "turn", "context"),
    partitions=("track", "level", "turn", "perspective", "modality", "source"),
    psnr_cap=100.0,
    pool=False,
    tables="mie.scoring.benchmarks.omni_iie.score:tables",
    published="mie.scoring.benchmarks.omni_iie.score:PUBLISHED",
    boards=(
        Board("Single-turn track, first attempt", _BOARD, group=("track", "single")),
        Board("Multi-turn track, first attempt", _BOARD, group=("track", "multi")),
        Board(
            "Scale gap and slope over turns, in Overall",
            ("scale_gap", "turn_slope"),
            entries=True,
            best=False,
        ),
    ),
    model_columns=(
        Column("overall", ("track", "single"), "single-turn"),
        Column("overall", ("track", "multi"), "multi-turn"),
    ),
    main=("overall",),
    curves=("overall", "qa", "ssim"),
    importer="mie.scoring.benchmarks.omni_iie.importer:read",
    summary_metrics=(
        Metric("scale_gap", "Scale gap", "Overall of low minus high scale, on complete pairs"),
        Metric("turn_slope", "Slope a turn", "of Overall, mean over conversations", decimals=4),
    ),
)
