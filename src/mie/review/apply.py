"""What people decided, applied: a new version of the dataset without what they rejected, repainted where they
chose another mask.

A consensus decides. Without one it takes more rejections than acceptances to lose a sample, and more than
half of the raters to change a mask; where they are divided, the sample stays as it is and is counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sqlalchemy import Connection, select

from mie.core.documents import DatasetInfo
from mie.core.hashing import canonical, stable_hash
from mie.datasets.dataset import Dataset
from mie.datasets.shards import read_rejected
from mie.datasets.write import write_dataset
from mie.errors import MieError
from mie.images.hashes import checksum
from mie.images.overlay import paint
from mie.images.png import decode_png
from mie.perspectives.perception.samples import proof_gate
from mie.records import Pixels, Refusal, Sample
from mie.review.database import Database, events, meta
from mie.review.masks import kept_png, majority, said
from mie.review.proposals import proposals
from mie.vocabulary import OPACITY

Payloads: TypeAlias = Sequence[Mapping[str, Any]]  # answers to one item


@dataclass(slots=True)
class Decisions:
    """By sample id: why it goes, or the mask that it gets: its name, and its PNG if it is stored."""

    rejected: dict[str, str] = field(default_factory=dict)
    repaired: dict[str, tuple[str, bytes | None]] = field(default_factory=dict)
    divided: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Applied:
    folder: Path
    info: DatasetInfo

    @property
    def counts(self) -> dict[str, int]:
        """rejected, repaired, divided."""
        return dict(self.info["recipe"]["reviews"]["counts"])


def apply_reviews(place: str, dataset_folder: Path, output: Path) -> Applied:
    """Write the reviewed version of a dataset to a new folder; the old one stays as it is."""
    dataset = Dataset(dataset_folder)
    if "://" not in place and not Path(place).is_file():
        raise MieError("no review here", where=place, expected="the file that `mie review` keeps")
    database = Database(place)
    try:
        with database.read() as connection:
            _check_owner(connection, dataset)
            found = decisions(connection)
            past = _provenance(connection, dataset, found)
    finally:
        database.close()
    info = write_dataset(
        _samples(dataset, found),
        output,
        name=dataset.name,
        description=str(dataset.info["description"]),
        recipe={**(dataset.info.get("recipe") or {}), "reviews": past},
        licenses=dataset.info["licenses"],
        deidentified=bool(dataset.info["deidentified"]),
    )
    return Applied(output, info)


def _check_owner(connection: Connection, dataset: Dataset) -> None:
    digest = connection.scalar(select(meta.c.value).where(meta.c.key == "dataset"))
    if digest != dataset.digest:
        raise MieError(
            "the review is of another dataset",
            where=dataset.folder,
            expected=f"digest {str(digest)[:16]}",
            found=f"digest {dataset.digest[:16]}",
        )


def decisions(connection: Connection) -> Decisions:
    """What inspections and masks come to."""
    found = Decisions()
    for kind, decide in (("inspect", _inspected), ("mask", _masked)):
        for (item_id, sample_id), payloads in said(connection, kind).items():
            decide(connection, found, item_id, sample_id, payloads)
    return found


def _inspected(
    _connection: Connection,
    found: Decisions,
    _item: int,
    sample_id: str,
    payloads: Sequence[Mapping[str, Any]],
) -> None:
    counts = Counter(p["decision"] for p in payloads)
    if counts["reject"] > counts["accept"]:
        reasons = sorted({str(p["reason"]) for p in payloads if p["decision"] == "reject"})
        found.rejected[sample_id] = f"rejected by {counts['reject']} of {len(payloads)}: {'; '.join(reasons)}"
    elif counts["reject"] == counts["accept"]:  # also when all that was said is a flag
        found.divided.add(sample_id)


def _masked(
    connection: Connection,
    found: Decisions,
    item_id: int,
    sample_id: str,
    payloads: Sequence[Mapping[str, Any]],
) -> None:
    chosen = majority(payloads)
    if chosen is None:
        found.divided.add(sample_id)
    elif chosen.choice == "none":
        found.rejected.setdefault(sample_id, f"no mask is right, say {chosen.votes} of {len(payloads)}")
    elif chosen.choice != "source":
        found.repaired[sample_id] = chosen.choice, kept_png(connection, item_id, chosen)


def _samples(dataset: Dataset, found: Decisions) -> Iterator[Sample | Refusal]:
    yield from read_rejected(dataset.folder / "rejected.parquet")
    for sample in dataset.samples():
        if sample.id in found.rejected:
            reason = found.rejected[sample.id]
            numbers = {"id": sample.id}
            yield Refusal(sample.source, sample.case_id, "review", reason, sample.target, numbers)
        elif sample.id in found.repaired:
            repaired = repaint(sample, *found.repaired[sample.id])
            yield proof_gate(repaired) or repaired
        else:
            yield sample


def repaint(sample: Sample, name: str, png: bytes | None) -> Sample:
    """The sample with another mask, painted anew where it is a perception sample. It is a new sample."""
    if png is not None:
        mask = decode_png(png)
    elif sample.mask is not None:
        mask = proposals(sample.mask, sample.input)[name]
    else:
        raise MieError("a sample without a region has no derived mask", found=sample.id)
    target: Pixels = sample.input if sample.colour else sample.target_image
    colours = sample.colour.split(",") if sample.colour else []
    opacity = float(sample.params.get("opacity", OPACITY))
    for k, colour in enumerate(colours, start=1):
        target = paint(target, np.asarray(mask == round(255 * k / len(colours))), colour, opacity)
    return replace(
        sample,
        id=f"{stable_hash('review', sample.id, checksum(mask)):016x}",
        target_image=target,
        mask=mask,
        params={**sample.params, "review": {"mask": name}},
        parents=(sample.id,),
    )


def _provenance(connection: Connection, dataset: Dataset, found: Decisions) -> dict[str, Any]:
    digest, n = hashlib.sha256(), 0
    columns = (events.c.id, events.c.user_id, events.c.item_version, events.c.action, events.c.payload)
    for row in connection.execute(select(*columns).order_by(events.c.id)):
        digest.update(canonical(list(row)).encode() + b"\n")
        n += 1
    return {
        "parent": {"name": dataset.name, "digest": dataset.digest},
        "events": n,
        "events_sha256": digest.hexdigest(),
        "counts": {
            "rejected": len(found.rejected),
            "repaired": len(found.repaired.keys() - found.rejected.keys()),
            "divided": len(found.divided - found.rejected.keys()),
        },
    }
