"""MedEBench's tables: organs and tasks with EA, CP and VQ, and the paper's overall rows.

CP there comes from the released script: compare it with the variant `as_released` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mie.scoring.benchmarks import Document, PublishedRows, Table, by_group, first_attempts, published
from mie.scoring.benchmarks.medebench import BENCHMARK


@dataclass(frozen=True, slots=True)
class Published:
    """EA, CP and VQ in 0 to 1, and FID."""

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
PUBLISHED: Final = PublishedRows(
    caption="MedEBench, measured by its authors",
    columns=tuple(BENCHMARK.metric(name) for name in ("ea", "cp", "vq", "fid")),
    rows=tuple((row.model, (row.ea, row.cp, row.vq, row.fid)) for row in MEDEBENCH),
    marked=frozenset({"cp"}),
    note="CP comes from the released script (variant as_released).",
    source="published by the authors of MedEBench, overall rows",
)
_COLUMNS: Final = ("ea", "cp", "vq", "ea_plain", "vq_plain")


def tables(document: Document) -> list[Table]:
    columns = first_attempts(BENCHMARK, document, _COLUMNS)
    rows = [(row.model, row.ea, row.cp, row.vq, row.fid) for row in MEDEBENCH]
    return [
        by_group(document, "organ", columns, title="by organ: mean (scored)"),
        by_group(document, "task", columns, title="by task: mean (scored)"),
        published("published, overall (CP as released)", ("model", "EA", "CP", "VQ", "FID"), rows),
    ]
