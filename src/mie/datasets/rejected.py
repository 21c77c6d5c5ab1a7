"""`rejected.parquet`: everything that did not become a sample, and the reasons that matter most."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from mie.core.files import atomic_path
from mie.core.hashing import canonical
from mie.datasets.schema import REJECTED_SCHEMA, read_table, table
from mie.errors import MieError
from mie.records import Rejection

FILE_NAME: Final = "rejected.parquet"
# Gates that mean a file could not be used, as against a sample that was not worth keeping.
BAD_FILE_GATES: Final = ("source", "image", "error")
# Numbers, identifiers and paths: what differs between two rejections for one reason.
_PARTICULAR: Final = re.compile(r"\S*[\d/]\S*")


def write_rejected(path: Path, rejections: Iterable[Rejection]) -> int:
    """Write every rejection with its gate, reason and numbers; returns how many there are."""
    found = list(rejections)
    # A dataset of one perspective has no column for it, as ever.
    schema = REJECTED_SCHEMA
    if any(r.perspective is not None for r in found):
        schema = schema.append(pa.field("perspective", pa.string()))
    rows = [
        {
            "source": r.source,
            "where": r.where,
            "target": r.target,
            "gate": r.gate,
            "reason": r.reason,
            "numbers": canonical(r.numbers),
            "perspective": r.perspective,
        }
        for r in found
    ]
    with atomic_path(path) as temporary:
        pq.write_table(table(rows, schema), temporary, compression="zstd")
    return len(rows)


def read_rejected(path: Path) -> list[Rejection]:
    """What `write_rejected` wrote, in the same order."""
    return [
        Rejection(
            source=row["source"],
            where=row["where"],
            gate=row["gate"],
            reason=row["reason"],
            target=row["target"],
            numbers=json.loads(row["numbers"]),
            perspective=row.get("perspective"),
        )
        for row in read_table(path).to_pylist()
    ]


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason that several rejections share, with the first of them as an example."""

    count: int
    example: Rejection

    def __str__(self) -> str:
        first = self.example
        return f"{self.count} × {first.gate}: {first.reason} (for example {first.source}/{first.where})"


def frequent_reasons(rejections: Iterable[Rejection], most: int = 3) -> list[Reason]:
    """The most frequent reasons. Two are one if gate and first clause agree but for numbers and names."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], Rejection] = {}
    for rejection in rejections:
        clause = re.split(r"[;:]\s", rejection.reason, maxsplit=1)[0]
        key = rejection.gate, _PARTICULAR.sub("#", clause)
        counts[key] += 1
        examples.setdefault(key, rejection)
    return [Reason(n, examples[key]) for key, n in counts.most_common(most)]


def nothing_kept(folder: Path, rejections: Iterable[Rejection], fix: str) -> MieError:
    """The error for a dataset that would hold no sample."""
    reasons = frequent_reasons(rejections)
    indent = "\n" + " " * 12
    return MieError(
        "no sample was kept",
        where=folder,
        found=indent.join(map(str, reasons)) if reasons else "no record at all",
        fix=f"{fix}; {FILE_NAME} lists every rejection" if reasons else fix,
    )
