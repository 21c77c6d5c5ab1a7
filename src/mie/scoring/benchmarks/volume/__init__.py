"""Volume: whole volumes scored in three dimensions, with the spacing of their voxels.

One line for each volume, not for each slice. A volume of which a slice has no output is unscored.
"""

from __future__ import annotations

from typing import Final

from mie.scoring.benchmarks import Benchmark, Board
from mie.scoring.metric import DECIBELS, SHARE, Metric

_PAINTED: Final = ("volume_dice", "hd95", "nsd", "slice_consistency")
_IMAGES: Final = ("volume_psnr", "volume_ssim", "region_psnr", "slice_consistency")
BENCHMARK: Final = Benchmark(
    name="volume",
    version=1,
    title="Volume",
    meaning="whole volumes: overlap, surfaces in mm, likeness in 3-D, flicker from slice to slice",
    variants=("paper",),
    unit="volume",
    metrics=(
        Metric("volume_dice", "3-D DICE", "of the painted region, over all voxels", scale=SHARE),
        Metric(
            "hd95",
            "HD95",
            "95th percentile of the distances between the surfaces; lower is better",
            "mm",
            1,
            higher_is_better=False,
            scale=(0.0, float("inf")),
        ),
        Metric("nsd", "NSD 2 mm", "share of both surfaces within 2 mm of the other", scale=SHARE),
        Metric(
            "slice_consistency",
            "Slice consistency",
            "changes from slice to slice as much as the reference does; 1 is best",
            scale=SHARE,
        ),
        Metric("volume_psnr", "3-D PSNR", "closeness to the reference volume", "dB", 1, scale=DECIBELS),
        Metric("volume_ssim", "3-D SSIM", "likeness to the reference volume", scale=(-1.0, 1.0)),
        Metric("region_psnr", "Region PSNR", "inside the region that was changed", "dB", 1, scale=DECIBELS),
    ),
    columns=("input", "target_image", "mask", "colour", "params"),
    measure="mie.scoring.benchmarks.volume.score:measure",
    groups=("volume", "slices"),
    psnr_cap=100.0,
    boards=(Board("Painted volumes", _PAINTED), Board("Changed volumes", _IMAGES)),
    main=("volume_dice", "volume_psnr"),
    section="mie.report.volumes:volumes_section",
)
