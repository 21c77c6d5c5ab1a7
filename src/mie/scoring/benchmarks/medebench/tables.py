"""The overall row of each model in the MedEBench paper: EA, CP, VQ in 0 to 1, and FID.

CP comes from the released script: compare it with the variant `as_released` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mie.scoring.benchmarks import Table, by_group, published


@dataclass(frozen=True, slots=True)
class Published:
    model: str
    ea: float
    cp: float
    vq: float
    fid: float


MEDEBENCH: Final = (
    Published("imagic", 0.38, 0.55, 0.48, 88.54),
    Published("instruct-pix2pix", 0.50, 0.86, 0.62, 46.50),
    Published("instruct-diffusion", 0.54, 0.67, 0.63, 65.56),
    Published("paint-by-inpaint", 0.37, 0.59, 0.38, 109.61),
    Published("icedit", 0.60, 0.79, 0.72, 46.76),
    Published("seedx", 0.31, 0.78, 0.54, 51.04),
    Published("gemini-2-flash", 0.68, 0.82, 0.72, 43.74),
)


# MedEBench's tables: organs and tasks with EA, CP and VQ, and the published overall rows.

COLUMNS = {
    "ea@1": "EA",
    "cp@1": "CP",
    "vq@1": "VQ",
    "ea_plain@1": "EA (instruction)",
    "vq_plain@1": "VQ (instruction)",
}


def tables(document: Mapping[str, Any]) -> list[Table]:
    names = {key: name for key, name in COLUMNS.items() if key in document["groups"][0]["metrics"]}
    rows = [(row.model, row.ea, row.cp, row.vq, row.fid) for row in MEDEBENCH]
    return [
        by_group(document, "organ", names, title="by organ: mean (scored)"),
        by_group(document, "task", names, title="by task: mean (scored)"),
        published("published, overall (CP as released)", ("model", "EA", "CP", "VQ", "FID"), rows),
    ]
