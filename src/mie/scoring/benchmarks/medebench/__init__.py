"""MedEBench: context preservation from pixels, editing accuracy and visual quality from a judge; and the
metrics that it compares with people: PSNR, SSIM, LPIPS, CLIP similarities, ImageReward and FID.

Variants. `paper` (default): CP is the mean SSIM over windows outside the region; a judge's reply must hold
both scores, once, in range. `as_released`: CP zeroes the region in both images and measures the whole;
replies are read as the public script reads them.
"""

from __future__ import annotations

from typing import Final

from mie.scoring.benchmarks import Benchmark, Board, Column, Radar
from mie.scoring.metric import SHARE, Metric

_JUDGE: Final = {"judge"}
_PLAIN: Final = "the judge is told the plain instruction"
_NETWORK: Final = {"reference", "weights"}
_COSINE: Final = (-1.0, 1.0)


def _network(name: str, label: str, meaning: str, scale: tuple[float, float] | None = _COSINE) -> Metric:
    return Metric(name, label, meaning, needs=_NETWORK, scale=scale)


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
        _judged("cp_judge", "CP (judge)", "context preservation, by a judge that is told the change"),
        _judged("cp_judge_plain", "CP (judge, instruction)", _PLAIN),
        "psnr",
        "ssim",
        "lpips",
        _network("isim", "ISim", "CLIP similarity of output and target"),
        _network("talign", "TAlign", "CLIP similarity of output and change description"),
        _network("talign_plain", "TAlign (instruction)", "CLIP similarity of output and instruction"),
        _network("dalign", "DAlign", "CLIP similarity of the change made and the change description"),
        _network("dalign_plain", "DAlign (instruction)", "CLIP similarity of change and instruction"),
        _network("image_reward", "ImageReward", "how well it answers the change description", None),
        _network("image_reward_plain", "ImageReward (instruction)", "the same given the instruction", None),
    ),
    columns=("input", "target_image", "mask", "params", "prompt", "description"),
    setup="mie.scoring.benchmarks.medebench.networks:setup",
    measure="mie.scoring.benchmarks.medebench.score:measure",
    aggregate="mie.scoring.benchmarks.medebench.score:aggregate",
    questions="mie.scoring.benchmarks.medebench.judge:QUESTIONS",
    groups=("organ",),
    partitions=("organ", "task", "modality", "source"),
    psnr_cap=100.0,
    tables="mie.scoring.benchmarks.medebench.score:tables",
    published="mie.scoring.benchmarks.medebench.score:PUBLISHED",
    boards=(
        Board("Overall, 0 to 1, first attempt", ("ea", "cp", "vq", "ea_plain", "vq_plain", "psnr", "ssim")),
    ),
    model_columns=tuple(Column(name) for name in ("ea", "cp", "vq", "fid")),
    main=("ea", "cp", "vq"),
    radar=Radar("organ", {"ea": "Editing accuracy", "cp": "Context preservation", "vq": "Visual quality"}),
    importer="mie.scoring.benchmarks.medebench.importer:read",
)
