"""MedEBench's tables: organs and tasks with EA, CP and VQ, and the published overall rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mie.protocols.medebench.published import MEDEBENCH
from mie.protocols.tables import Table, by_group, published

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
