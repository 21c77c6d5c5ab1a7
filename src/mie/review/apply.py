"""Reviewed datasets: a new version without rejected samples, repainted where people chose another mask.

A consensus decides. Without one, a sample is dropped if more people rejected than accepted it, and gets
another mask if more than half of its raters chose the same. Otherwise it stays as it is, and is counted.
Grading has zero tolerance: a sample that was to be graded stays only if all who graded it found no fault.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, select

from mie.core.documents import DatasetInfo
from mie.core.hashing import canonical, stable_hash
from mie.datasets.choose import CONSENSUS, Decision
from mie.datasets.dataset import Dataset
from mie.datasets.rejected import read_rejected
from mie.datasets.volumes import volume_slices
from mie.datasets.write import write_dataset
from mie.errors import ConfigError, MieError
from mie.images.hashes import checksum
from mie.images.overlay import paint
from mie.images.png import decode_png
from mie.perspectives.perception.samples import proof_gate
from mie.records import Pixels, Rejection, Sample
from mie.review.api import faults
from mie.review.database import Database, events, meta, tasks
from mie.review.events import final_answers, items_of, settled_items
from mie.review.export import CONSENSUS as AGREED
from mie.review.export import opinions
from mie.review.masks import majority, propose_masks, stored_mask
from mie.vocabulary import OPACITY

MAX_EXAMPLES: Final = 3


@dataclass(slots=True)
class Decisions:
    """By sample id: the reason for dropping it, or its new mask as (name, PNG if it is stored)."""

    rejected: dict[str, str] = field(default_factory=dict)
    repaired: dict[str, tuple[str, bytes | None]] = field(default_factory=dict)
    divided: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Change:
    """The samples that one outcome applies to."""

    n: int = 0
    by_split: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)  # ids in the dataset that was reviewed

    def add(self, sample: Sample) -> None:
        self.n += 1
        self.by_split[sample.split] = self.by_split.get(sample.split, 0) + 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(sample.id)


@dataclass(frozen=True, slots=True)
class Applied:
    """A reviewed dataset, its `dataset.json`, and what became of the samples.

    `changes` has the outcomes "kept" (unchanged), "rejected", "repainted" and "failed" (repainted, but the
    region could not be recovered from the image).
    """

    folder: Path
    info: DatasetInfo
    changes: dict[str, Change]

    @property
    def counts(self) -> dict[str, int]:
        """The decisions: rejected, repaired, divided."""
        return dict(self.info["recipe"]["reviews"]["counts"])


def apply_reviews(place: str, dataset_folder: Path, output: Path) -> Applied:
    """Write the reviewed version of a dataset to a new folder; the old dataset is not changed."""
    dataset = Dataset(dataset_folder)
    database = Database.open_existing(place)
    try:
        with database.read() as connection:
            check_owner(connection, dataset)
            found = decisions(connection)
            provenance = _provenance(connection, dataset, found)
    finally:
        database.close()
    _reject_whole_volumes(dataset, found)
    changes = {name: Change() for name in ("kept", "rejected", "repainted", "failed")}
    info = write_dataset(
        _samples(dataset, found, changes),
        output,
        name=dataset.name,
        description=str(dataset.info["description"]),
        recipe={**(dataset.info.get("recipe") or {}), "reviews": provenance},
        licenses=dataset.info["licenses"],
        deidentified=bool(dataset.info["deidentified"]),
    )
    return Applied(output, info, changes)


def _reject_whole_volumes(dataset: Dataset, found: Decisions) -> None:
    """A volume is looked at as a whole: with one slice go all."""
    for slices in volume_slices(dataset).values() if found.rejected else ():
        reason = next((found.rejected[one.id] for one in slices if one.id in found.rejected), None)
        for one in slices if reason is not None else ():
            found.rejected[one.id] = str(reason)


def check_owner(connection: Connection, dataset: Dataset) -> None:
    """Raise unless the review is of this very dataset."""
    digest = connection.scalar(select(meta.c.value).where(meta.c.key == "dataset"))
    if digest != dataset.digest:
        raise MieError(
            "the review belongs to another dataset",
            where=dataset.folder,
            expected=f"digest {str(digest)[:16]}",
            found=f"digest {dataset.digest[:16]}",
        )


def decisions(connection: Connection) -> Decisions:
    """Return what the inspections and mask choices decide."""
    found = Decisions()
    for (_, sample_id), payloads in final_answers(connection, "inspect").items():
        _decide_inspection(found, sample_id, payloads)
    for (item_id, sample_id), payloads in final_answers(connection, "mask").items():
        _decide_mask(connection, found, item_id, sample_id, payloads)
    graded = final_answers(connection, "grade")
    settled = settled_items(connection, "grade")
    for item_id, sample_id, wanted in items_of(connection, "grade"):
        payloads = graded.get((item_id, sample_id), [])
        if item_id not in settled and len(payloads) < wanted:
            found.rejected[sample_id] = f"graded by {len(payloads)} of {wanted}: not passed yet"
        elif outcomes := [faults(payload) for payload in payloads]:
            _decide_grades(found, sample_id, outcomes)
    return found


def _decide_grades(found: Decisions, sample_id: str, outcomes: Sequence[Sequence[str]]) -> None:
    if not any(outcomes):
        return
    named = ", ".join(sorted({name for outcome in outcomes for name in outcome}))
    if all(outcomes):
        found.rejected[sample_id] = f"faults found by {len(outcomes)} of {len(outcomes)}: {named}"
    else:
        n = sum(map(bool, outcomes))
        found.rejected[sample_id] = f"faults found by {n} of {len(outcomes)}, not arbitrated: {named}"
        found.divided.add(sample_id)


def _decide_inspection(found: Decisions, sample_id: str, payloads: Sequence[Mapping[str, Any]]) -> None:
    counts = Counter(p["decision"] for p in payloads)
    if counts["reject"] > counts["accept"]:
        reasons = sorted({str(p["reason"]) for p in payloads if p["decision"] == "reject"})
        found.rejected[sample_id] = f"rejected by {counts['reject']} of {len(payloads)}: {'; '.join(reasons)}"
    elif counts["reject"] == counts["accept"]:  # also if there are only flags
        found.divided.add(sample_id)


def _decide_mask(
    connection: Connection,
    found: Decisions,
    item_id: int,
    sample_id: str,
    payloads: Sequence[Mapping[str, Any]],
) -> None:
    vote = majority(payloads)
    if vote is None:
        found.divided.add(sample_id)
    elif vote.choice == "none":
        reason = f"{vote.votes} of {len(payloads)} found no mask right"
        found.rejected.setdefault(sample_id, reason)
    elif vote.choice != "source":
        found.repaired[sample_id] = vote.choice, stored_mask(connection, item_id, vote)


def _samples(
    dataset: Dataset, found: Decisions, changes: Mapping[str, Change]
) -> Iterator[Sample | Rejection]:
    yield from read_rejected(dataset.folder / "rejected.parquet")
    for sample in dataset.samples():
        if sample.id in found.rejected:
            changes["rejected"].add(sample)
            reason, numbers = found.rejected[sample.id], {"id": sample.id}
            yield Rejection(sample.source, sample.case_id, "review", reason, sample.target, numbers)
        elif sample.id in found.repaired:
            repainted = repaint(sample, *found.repaired[sample.id])
            failure = proof_gate(repainted)
            changes["failed" if failure else "repainted"].add(sample)
            yield failure or repainted
        else:
            changes["kept"].add(sample)
            yield sample


def repaint(sample: Sample, name: str, png: bytes | None) -> Sample:
    """Return the sample with another mask and a new id, painted again if its region is coloured."""
    if png is not None:
        mask = decode_png(png)
    elif sample.mask is not None:
        mask = propose_masks(sample.mask, sample.input)[name]
    else:
        raise MieError("no mask can be derived for a sample without one", found=sample.id)
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


def read_decisions(place: str, dataset: Dataset) -> list[Decision]:
    """Every current inspection of the dataset's samples; a flag does not accept.

    `MieError` where the review is of another dataset: its samples may have changed since.
    """
    database = Database.open_existing(place)
    try:
        with database.read() as connection:
            check_owner(connection, dataset)
            task = connection.scalar(select(tasks.c.id).where(tasks.c.kind == "inspect"))
        if task is None:
            raise ConfigError(
                "the review holds no inspections", where=place, fix="review with `mie review --kind inspect`"
            )
        return [
            Decision(
                str(opinion["sample_id"]),
                CONSENSUS if opinion["rater"] == AGREED else str(opinion["rater"]),
                opinion["answer"]["decision"] == "accept",
            )
            for opinion in opinions(database, int(task))
        ]
    finally:
        database.close()
