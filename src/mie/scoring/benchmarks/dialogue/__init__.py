"""Dialogue: conversations whose true image is known after every turn, scored without a judge.

A turn passes if every overlay of its state is there (DICE above .8, in its colour), no other one is left
(leak below .1), and the background is as it should be (above 30 dB). Conversations have a survival curve.
"""

from __future__ import annotations

from typing import Final

from mie.scoring.benchmarks import Benchmark, Board
from mie.scoring.metric import DECIBELS, SHARE, Metric

_TURN: Final = ("passed", "overlay_dice", "colour", "leak", "b_psnr", "return_psnr", "base")
BENCHMARK: Final = Benchmark(
    name="dialogue",
    version=1,
    title="Dialogue",
    meaning="turns of conversations with a known truth: what passes, survival, recovery after undo",
    variants=("paper",),
    metrics=(
        Metric("passed", "Turns passed", "every check of the turn holds", scale=SHARE, binary=True),
        Metric("overlay_dice", "DICE", "of each overlay in its colour, mean over overlays", scale=SHARE),
        Metric("colour", "Colour", "share of overlays in the right colour", scale=SHARE),
        Metric(
            "leak",
            "Leak",
            "share of a target that is painted and should not be; lower is better",
            higher_is_better=False,
            scale=SHARE,
        ),
        Metric("b_psnr", "B-PSNR", "outside all targets, against the truth", "dB", 1, scale=DECIBELS),
        Metric(
            "return_psnr", "Return PSNR", "after an undo, against the earlier image", "dB", 1, scale=DECIBELS
        ),
        Metric(
            "base",
            "Image changed",
            "restored, windowed or removed: nearer to the truth than to what was there",
            scale=SHARE,
            binary=True,
        ),
    ),
    columns=("input", "target_image", "mask", "params", "group", "turn"),
    measure="mie.scoring.benchmarks.dialogue.score:measure",
    aggregate="mie.scoring.benchmarks.dialogue.score:aggregate",
    groups=("operator", "phrasing", "kind", "switch", "turn", "dialogue", "context", "level"),
    partitions=("task", "operator", "phrasing", "switch", "level", "turn", "modality", "source"),
    psnr_cap=100.0,
    tables="mie.scoring.benchmarks.dialogue.score:tables",
    boards=(
        Board("Turns, first attempt", _TURN),
        Board("Turns passed by family", spread=("passed", "task")),
        Board("Turns passed by operation", spread=("passed", "operator")),
        Board("Turns passed by switch of kind", spread=("passed", "switch")),
        Board(
            "Conversations",
            ("whole", "half_life", "turn_slope", "recovery", "scale_gap"),
            entries=True,
            best=False,
        ),
    ),
    main=("passed",),
    curves=("passed",),
    section="mie.report.conversations:conversations_section",
    summary_metrics=(
        Metric("whole", "Whole", "share of conversations with every turn passed", scale=SHARE),
        Metric("half_life", "Half-life", "turns after which half of all have failed", decimals=0),
        Metric("turn_slope", "Slope a turn", "of turns passed, mean over conversations", decimals=4),
        Metric("recovery", "Recovery", "undo turns passed although an earlier turn had failed", scale=SHARE),
        Metric("scale_gap", "Scale gap", "turns passed, low minus high scale, on complete pairs"),
    ),
)
