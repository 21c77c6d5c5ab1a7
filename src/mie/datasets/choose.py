"""`mie choose`: a benchmark drawn from a dataset, by quota and stratum, with images as different as possible.

A stratum is what samples share in some columns: by default perspective, task, modality and target. Each gets
its part of the quota. Inside a stratum the inputs' thumbnails are clustered (k-means from farthest-first
seeds), as many clusters as samples are wanted, and each cluster gives the sample nearest to its centre, of a
patient that was not chosen before where there is one. Samples are taken in the order of a hash of their ids,
so the choice does not depend on the order of the dataset.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.core.allocation import allocate, allocate_equally
from mie.core.documents import DatasetInfo
from mie.core.hashing import stable_hash
from mie.core.registry import unknown_name
from mie.core.yaml_files import read_mapping
from mie.datasets.dataset import Dataset
from mie.datasets.engine import run_tasks
from mie.datasets.schema import read_rows
from mie.datasets.write import write_dataset
from mie.errors import ConfigError, MieError
from mie.images.hashes import perceptual
from mie.images.png import decode_png
from mie.records import Rejection

STRATA: Final = ("perspective", "task", "modality", "target")
COLUMNS: Final = (*STRATA, "anatomy", "source", "split")
ALLOCATIONS: Final = ("equal", "proportional")
# Published benchmarks by the number of their samples.
PRESETS: Final[Mapping[str, int]] = {"miedb": 3485}
_ROUNDS: Final = 12  # of k-means; centres seldom move after ten
_FEATURES: Final = 256  # grey values of a 16 x 16 thumbnail


@dataclass(frozen=True, slots=True)
class Quota:
    """How many samples in all, or by the values of one column: `{"perspective": {"perception": 2000}}`."""

    total: int | None = None
    column: str | None = None
    by_value: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | int | Mapping[str, Any]) -> Quota:
        """A number, a preset's name, a YAML file, or a mapping of one column."""
        if isinstance(text, int) or (isinstance(text, str) and text.strip().isdigit()):
            return cls._checked(total=int(text))
        if isinstance(text, str):
            if text in PRESETS:
                return cls(total=PRESETS[text])
            if not text.endswith((".yaml", ".yml")):
                raise unknown_name("quota", text, PRESETS, fix="give a number, a preset or a YAML file")
            text = read_mapping(Path(text), "quota", expected="{perspective: {perception: 2000, ...}}")
        if len(text) != 1:
            raise ConfigError("a quota is by one column", expected=", ".join(COLUMNS), found=list(text))
        ((column, counts),) = text.items()
        if column == "total":
            return cls._checked(total=counts)
        if column not in COLUMNS:
            raise unknown_name("column of a quota", column, COLUMNS)
        if not isinstance(counts, Mapping) or not counts:
            raise ConfigError(
                "a quota says how many of each value",
                where=column,
                expected="{value: number, ...}",
                found=counts,
            )
        for value, number in counts.items():
            cls._checked(total=number, where=f"{column}: {value}")
        return cls(None, column, {str(value): int(number) for value, number in counts.items()})

    @classmethod
    def _checked(cls, total: Any, where: str | None = None) -> Quota:
        if isinstance(total, bool) or not isinstance(total, int) or total < 1:
            raise ConfigError("a quota is a number of at least 1", where=where, found=total)
        return cls(total=total)

    def as_json(self) -> dict[str, Any]:
        return {"total": self.total} if self.column is None else {self.column: dict(self.by_value)}


@dataclass(frozen=True, slots=True)
class Candidates:
    """What the choice is made from, one entry per sample."""

    ids: Sequence[str]
    subjects: Sequence[str]  # the patient, or the case where the patient is unknown
    columns: Mapping[str, Sequence[Any]]
    features: NDArray[np.float32]  # (N, 256), unit length


@dataclass(frozen=True, slots=True)
class Stratum:
    """What its samples share, how many there are, were asked for and were chosen."""

    name: Mapping[str, Any]
    samples: int
    chosen: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The samples that were chosen, by their place among the candidates, and where the quota fell short."""

    places: tuple[int, ...]
    strata: tuple[Stratum, ...]
    short: Mapping[str, int]  # value of the quota's column (or "total") -> how many are missing


def read_candidates(
    dataset: Dataset,
    split: str | None = None,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Candidates:
    """Every sample of a dataset, or of one split, with the features of its input."""
    shards = dataset.shards(split)
    if not shards:
        raise MieError(
            "there is nothing to choose from",
            where=dataset.folder,
            expected=f"samples in the split {split}" if split else "samples",
            fix="choose from another split with --split, or from all with --split all",
        )
    parts: dict[int, dict[str, Any]] = {}
    progress(0, len(shards))
    for number, part in run_tasks(_traced, list(enumerate(shards)), workers=workers):
        parts[number] = part
        progress(len(parts), len(shards))
    ordered = [parts[number] for number in range(len(shards))]
    columns = {name: [v for part in ordered for v in part[name]] for name in COLUMNS}
    thumbs = np.frombuffer(b"".join(part["thumbs"] for part in ordered), np.uint8).reshape(-1, _FEATURES)
    return Candidates(
        ids=[i for part in ordered for i in part["id"]],
        subjects=[s for part in ordered for s in part["subject"]],
        columns=columns,
        features=unit(thumbs),
    )


def _traced(task: tuple[int, Path]) -> tuple[int, dict[str, Any]]:
    number, path = task
    part: dict[str, Any] = {name: [] for name in ("id", "subject", *COLUMNS)}
    thumbs = []
    for row in read_rows(path, ["id", "case_id", "patient_id", "input", *COLUMNS]):
        part["id"].append(row["id"])
        part["subject"].append(row["patient_id"] or f"{row['source']}//{row['case_id']}")
        for name in COLUMNS:
            part[name].append(row[name])
        thumbs.append(perceptual(decode_png(row["input"]["bytes"]))[1])
    return number, {**part, "thumbs": b"".join(thumbs)}


def unit(thumbs: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Thumbnails without their mean, at unit length: two images are as far apart as their patterns differ."""
    centred = thumbs.astype(np.float32)
    centred -= centred.mean(axis=1, keepdims=True)
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-6)


def choose(
    candidates: Candidates,
    quota: Quota,
    *,
    strata: Sequence[str] = STRATA,
    allocation: str = "equal",
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Choice:
    """Choose samples by quota, stratum and cluster; the same for the same candidates, in any order."""
    for name in strata:
        if name not in COLUMNS:
            raise unknown_name("stratum", name, COLUMNS)
    if allocation not in ALLOCATIONS:
        raise unknown_name("allocation", allocation, ALLOCATIONS)
    if quota.column is not None and quota.column not in strata:
        strata = (quota.column, *strata)  # a stratum then has one value of the quota's column
    groups: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    columns = [candidates.columns[name] for name in strata]
    order = sorted(range(len(candidates.ids)), key=lambda at: stable_hash("choose", seed, candidates.ids[at]))
    for at in order:
        groups[tuple(column[at] for column in columns)].append(at)
    wanted, short = _shares(candidates, groups, quota, allocation)
    chosen: list[int] = []
    subjects: set[str] = set()
    report = []
    for done, values in enumerate(sorted(groups, key=str)):
        progress(done, len(groups))
        places = _diverse(candidates, groups[values], wanted[values], subjects)
        subjects.update(candidates.subjects[at] for at in places)
        chosen += places
        report.append(Stratum(dict(zip(strata, values, strict=True)), len(groups[values]), len(places)))
    progress(len(groups), len(groups))
    return Choice(tuple(sorted(chosen)), tuple(report), short)


def _shares(
    candidates: Candidates, groups: Mapping[tuple[Any, ...], list[int]], quota: Quota, allocation: str
) -> tuple[dict[tuple[Any, ...], int], dict[str, int]]:
    """How many of each stratum, and how many the dataset lacks for the quota."""
    share = allocate_equally if allocation == "equal" else allocate
    names = sorted(groups, key=str)
    if quota.column is None:
        total = quota.total or 0
        there = sum(map(len, groups.values()))
        short = {"total": total - there} if total > there else {}
        return share({name: len(groups[name]) for name in names}, total), short
    values = candidates.columns[quota.column]
    wanted = dict.fromkeys(names, 0)
    short = {}
    for value, total in quota.by_value.items():
        own = {name: len(groups[name]) for name in names if str(values[groups[name][0]]) == value}
        if sum(own.values()) < total:
            short[value] = total - sum(own.values())
        wanted.update(share(own, total) if own else {})
    return wanted, short


def _diverse(candidates: Candidates, places: Sequence[int], count: int, taken: set[str]) -> list[int]:
    """`count` of the places, one of each cluster, of patients that were not taken where there are some."""
    if count >= len(places):
        return list(places)
    if not count:
        return []
    features = candidates.features[list(places)]
    labels, distances = clusters(features, count)
    chosen: list[int] = []
    used = set(taken)
    for label in range(count):
        members = np.flatnonzero(labels == label)
        ranked = members[np.argsort(distances[members], kind="stable")]
        fresh = [at for at in ranked if candidates.subjects[places[at]] not in used]
        if len(ranked):
            at = int(fresh[0] if fresh else ranked[0])
            chosen.append(at)
            used.add(candidates.subjects[places[at]])
    # Equal images leave clusters without a member: the remaining places, in their order, fill them.
    rest = (at for at in range(len(places)) if at not in set(chosen))
    while len(chosen) < count:
        chosen.append(next(rest))
    return [places[at] for at in chosen]


def clusters(features: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The cluster of each row, and its squared distance from the cluster's centre (k-means)."""
    centres = features[_farthest_first(features, count)].copy()
    labels = np.zeros(len(features), np.int64)
    for _round in range(_ROUNDS):
        before = labels
        labels, _ = _nearest(features, centres)
        if np.array_equal(labels, before):
            break
        sizes = np.bincount(labels, minlength=count)
        filled = np.flatnonzero(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[filled])[:-1]])
        grouped = features[np.argsort(labels, kind="stable")]
        centres[filled] = np.add.reduceat(grouped, starts, axis=0) / sizes[filled, None]
    return _nearest(features, centres)


def _farthest_first(features: NDArray[np.float32], count: int) -> list[int]:
    """Seeds: the row nearest to the mean, then always the row that is farthest from all seeds."""
    first = int(np.argmin(((features - features.mean(axis=0)) ** 2).sum(axis=1)))
    seeds = [first]
    distances = ((features - features[first]) ** 2).sum(axis=1)
    while len(seeds) < count:
        seeds.append(int(np.argmax(distances)))
        np.minimum(distances, ((features - features[seeds[-1]]) ** 2).sum(axis=1), out=distances)
    return seeds


def _nearest(
    features: NDArray[np.float32], centres: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    labels = np.empty(len(features), np.int64)
    distances = np.empty(len(features), np.float32)
    norms = (centres**2).sum(axis=1)
    for start in range(0, len(features), 4096):
        block = features[start : start + 4096]
        squared = norms - 2 * block @ centres.T + (block**2).sum(axis=1, keepdims=True)
        labels[start : start + 4096] = squared.argmin(axis=1)
        distances[start : start + 4096] = np.maximum(squared.min(axis=1), 0)
    return labels, distances


def write_chosen(
    dataset: Dataset,
    ids: Sequence[str],
    folder: Path,
    *,
    chosen: Mapping[str, Any],
    name: str | None = None,
    rejections: Sequence[Rejection] = (),
) -> DatasetInfo:
    """Write the samples with these ids as a dataset of their own; `chosen` says how they were chosen."""
    wanted = set(ids)
    digest = hashlib.sha256("\n".join(sorted(wanted)).encode()).hexdigest()
    provenance = {
        "parent": {"name": dataset.name, "digest": dataset.digest, "samples": len(dataset)},
        **chosen,
        "ids_sha256": digest,
    }

    def rows() -> Iterator[Mapping[str, Any] | Rejection]:
        yield from rejections
        yield from (row for row in dataset.rows() if row["id"] in wanted)

    info = dataset.info
    return write_dataset(
        rows(),
        folder,
        name=name or f"{dataset.name}-benchmark",
        description=str(info["description"]),
        recipe={**(info.get("recipe") or {}), "chosen": provenance},
        licenses=info["licenses"],
        deidentified=bool(info["deidentified"]),
    )


CONSENSUS: Final = "consensus"  # the rater of a decision that settles a disagreement


@dataclass(frozen=True, slots=True)
class Decision:
    """What one person, or the adjudicators together, said about one sample."""

    sample_id: str
    rater: str
    accepted: bool


def accepted_by(decisions: Sequence[Decision], least: int) -> tuple[dict[str, list[str]], dict[str, str]]:
    """(sample -> who accepted it; sample -> why it is not accepted).

    At least so many people must have accepted it, and nobody rejected it. A consensus settles the latter.
    """
    votes: dict[str, dict[str, bool]] = defaultdict(dict)
    for decision in decisions:
        votes[decision.sample_id][decision.rater] = decision.accepted
    accepted: dict[str, list[str]] = {}
    refused: dict[str, str] = {}
    for sample, said in votes.items():
        agreed = said.pop(CONSENSUS, None)
        counts = Counter(said.values())
        if agreed is False or (agreed is None and counts[False]):
            refused[sample] = (
                "rejected by consensus" if agreed is False else f"rejected by {counts[False]} of {len(said)}"
            )
        elif counts[True] < least and agreed is None:
            refused[sample] = f"accepted by {counts[True]}, {least} are needed"
        else:
            raters = sorted(rater for rater, yes in said.items() if yes)
            accepted[sample] = [*raters, *([CONSENSUS] if agreed else [])]
    return accepted, refused
