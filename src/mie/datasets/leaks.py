"""What only shows across samples: duplicates, and patients or images on both sides of a split."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mie.images.hashes import near_pairs
from mie.perspectives.perspective import EditKind
from mie.perspectives.volumes import volume_id
from mie.records import Sample

# A sample that leaks is taken from the side where it costs least: training first, test never.
_RANK = {"train": 0, "val": 1, "test": 2}


@dataclass(frozen=True, slots=True)
class Traces:
    """What the samples of a dataset leave behind for comparison, one entry per sample, in dataset order."""

    ids: list[str]
    splits: list[str]
    sources: list[str]
    case_ids: list[str]
    patients: list[str | None]
    content: list[bytes]  # content_key of each sample
    hashes: NDArray[np.uint64]
    thumbs: NDArray[np.uint8]  # (N, 256)
    # Target images that show the patient anew, where perspectives are compared: sample, hash, thumbnail.
    goal_owners: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    goal_hashes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    goal_thumbs: NDArray[np.uint8] = field(default_factory=lambda: np.empty((0, 256), np.uint8))

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]], *, goals: bool) -> Traces:
        """From columns of samples; with `goals` also from `goal_hash` and `goal_thumb` (None: an overlay)."""
        owners = [at for at, hash_ in enumerate(columns["goal_hash"] if goals else ()) if hash_ is not None]
        return cls(
            ids=list(columns["id"]),
            splits=list(columns["split"]),
            sources=list(columns["source"]),
            case_ids=list(columns["case_id"]),
            patients=list(columns["patient_id"]),
            content=list(columns["content"]),
            hashes=np.array(columns["hash"], np.uint64),
            thumbs=np.frombuffer(b"".join(columns["thumb"]), np.uint8).reshape(-1, 256),
            goal_owners=np.array(owners, np.int64),
            goal_hashes=np.array([columns["goal_hash"][at] for at in owners], np.uint64),
            goal_thumbs=np.frombuffer(b"".join(columns["goal_thumb"][at] for at in owners), np.uint8).reshape(
                -1, 256
            ),
        )


def whole_conversations(
    dropped: set[int], groups: list[str | None], turns: list[int | None]
) -> dict[int, int]:
    """Samples that go because another turn of their conversation does -> that turn."""
    talks = [None if turn is None else group for group, turn in zip(groups, turns, strict=True)]
    return whole_groups(dropped, talks)


def whole_groups(dropped: set[int], groups: Sequence[str | None]) -> dict[int, int]:
    """Samples that go because another one of their group does -> that one; None: of no group."""
    broken = {groups[i]: i for i in sorted(dropped) if groups[i] is not None}
    return {
        i: broken[group]
        for i, group in enumerate(groups)
        if group is not None and group in broken and i not in dropped
    }


def intact_volumes(dropped: set[int], volumes: Sequence[str | None]) -> set[int]:
    """Samples of `dropped` that stay after all: slices of whole volumes of which less than half offend.

    The ends of two patients' volumes may show the same few pixels; a volume that leaks does in most slices.
    """
    sizes = Counter(volume for volume in volumes if volume is not None)
    offending = Counter(volumes[i] for i in dropped)
    return {
        i for i in dropped if (volume := volumes[i]) is not None and 2 * offending[volume] < sizes[volume]
    }


@dataclass(frozen=True, slots=True)
class Offence:
    """Sample `index` should not be there, because of sample `other`."""

    index: int
    other: int
    gate: str
    reason: str


class FirstTraces:
    """The turns of a conversation leave the trace of its first image: paint is no other patient."""

    def __init__(self) -> None:
        self._group: str | None = None
        self._trace: tuple[int, bytes] = (0, b"")

    def of(self, sample: Sample) -> tuple[int, bytes] | None:
        """The trace of a turn whose first turn came just before; None for any other sample."""
        follows = sample.turn is not None and sample.turn > 1 and sample.group == self._group
        return self._trace if follows and sample.group is not None else None

    def keep(self, sample: Sample | None, trace: tuple[int, bytes]) -> None:
        """Remember a turn's trace; nothing for a sample of no conversation."""
        self._group, self._trace = (None if sample is None else sample.group), trace


def turn_key(sample: Sample) -> bytes:
    """Turns are never duplicates of each other: an undo leads back to what was there before."""
    return hashlib.sha256(f"{sample.group}|{sample.turn}".encode()).digest()


def sample_key(sample: Sample, digests: Mapping[str, bytes | None], edit: EditKind) -> bytes:
    """`content_key`; of a slice of a whole volume with its place and target: empty slices may be alike."""
    key = content_key(digests, edit)
    if volume_id(sample) is None:
        return key
    place = f"|{sample.task}|{sample.target}|slice {sample.params['volume']['index']}"
    return hashlib.sha256(key + place.encode()).digest()


def content_key(digests: Mapping[str, bytes | None], edit: EditKind) -> bytes:
    """What makes two samples the same: the input's pixels and the region, in whatever colour.

    Without a region the target image decides: one CT slice may be asked for in five windows. An edit of an
    area has both: one white hole may be filled with healthy tissue or with a lesion.
    """
    goal = digests["mask"] or digests["target_image"] or b""
    if edit == "area":
        goal += digests["target_image"] or b""
    return hashlib.sha256((digests["input"] or b"") + b"|" + goal).digest()


def duplicates(traces: Traces) -> list[Offence]:
    """Samples whose input pixels and region were seen before, in an earlier or a better guarded split."""
    first: dict[bytes, int] = {}
    groups: dict[int, list[int]] = {}  # of two and more, by their first: most samples are alone
    for i, content in enumerate(traces.content):
        at = first.setdefault(content, i)
        if at != i:
            groups.setdefault(at, [at]).append(i)
    offences = []
    for _, group in sorted(groups.items()):
        keep = max(group, key=lambda i: (_RANK[traces.splits[i]], -i))
        for i in group:
            if i != keep:
                offences.append(
                    Offence(i, keep, "duplicate", f"same image and region as {_who(traces, keep)}")
                )
    return offences


def patient_leaks(traces: Traces) -> list[Offence]:
    """Samples whose patient (or, where unknown, whose case) also stands in a better guarded split."""
    numbers: dict[tuple[str, str], int] = {}
    count = len(traces.ids)
    subjects = np.fromiter((numbers.setdefault(_subject(traces, i), len(numbers)) for i in range(count)), int)
    ranks = np.fromiter((_RANK[split] for split in traces.splits), int)
    highest = np.zeros(len(numbers), int)
    np.maximum.at(highest, subjects, ranks)
    # The first sample of each subject in its best guarded split; the last assignment counts.
    best = np.flatnonzero(ranks == highest[subjects])[::-1]
    first = np.zeros(len(numbers), int)
    first[subjects[best]] = best
    offences = []
    for i in np.flatnonzero(ranks < highest[subjects]).tolist():
        kind, name = _subject(traces, i)
        other = int(first[subjects[i]])
        reason = f"{kind} {name} is also in {traces.splits[other]}: {_who(traces, other)}"
        offences.append(Offence(i, other, "leak", reason))
    return offences


def image_leaks(traces: Traces) -> list[Offence]:
    """Samples whose image nearly equals one in a better guarded split."""
    owners = np.concatenate([np.arange(len(traces.ids)), traces.goal_owners])
    hashes = np.concatenate([traces.hashes, traces.goal_hashes])
    ranks = np.fromiter((_RANK[split] for split in traces.splits), int)[owners]
    sides = {s: np.flatnonzero(ranks == rank) for s, rank in _RANK.items()}
    # A copy of each side's thumbnails, and none of all of them.
    thumbs = {s: _thumbnails(traces, rows) for s, rows in sides.items()}
    offences: dict[int, Offence] = {}
    for low, high in (("train", "test"), ("val", "test"), ("train", "val")):
        a, b = sides[low], sides[high]
        for i, j in near_pairs(hashes[a], thumbs[low], hashes[b], thumbs[high]):
            x, y = int(owners[a[i]]), int(owners[b[j]])
            reason = f"image nearly equals one in {high}: {_who(traces, y)}"
            offences.setdefault(x, Offence(x, y, "leak", reason))
    return [offences[i] for i in sorted(offences)]


def _thumbnails(traces: Traces, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Of samples, and behind them of target images."""
    count = len(traces.ids)
    return np.concatenate(
        [traces.thumbs[rows[rows < count]], traces.goal_thumbs[rows[rows >= count] - count]]
    )


def _subject(traces: Traces, i: int) -> tuple[str, str]:
    patient = traces.patients[i]
    if patient is not None:
        return "patient", patient
    return "case", f"{traces.sources[i]}/{traces.case_ids[i]}"


def _who(traces: Traces, i: int) -> str:
    return f"{traces.sources[i]}/{traces.case_ids[i]} ({traces.ids[i]})"
