"""What only shows across samples: duplicates, and patients or images on both sides of a split."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mie.images.hashes import near_pairs
from mie.perspectives.perspective import EditKind

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


@dataclass(frozen=True, slots=True)
class Offence:
    """Sample `index` should not be there, because of sample `other`."""

    index: int
    other: int
    gate: str
    reason: str


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
    groups: dict[bytes, list[int]] = defaultdict(list)
    for i, content in enumerate(traces.content):
        groups[content].append(i)
    offences = []
    for group in groups.values():
        if len(group) < 2:
            continue
        keep = max(group, key=lambda i: (_RANK[traces.splits[i]], -i))
        for i in group:
            if i != keep:
                offences.append(
                    Offence(i, keep, "duplicate", f"same image and region as {_who(traces, keep)}")
                )
    return offences


def patient_leaks(traces: Traces) -> list[Offence]:
    """Samples whose patient (or, where unknown, whose case) also stands in a better guarded split."""
    first: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    keys = [_subject(traces, i) for i in range(len(traces.ids))]
    for i, key in enumerate(keys):
        first[key].setdefault(traces.splits[i], i)
    offences = []
    for i, key in enumerate(keys):
        above = [j for split, j in first[key].items() if _RANK[split] > _RANK[traces.splits[i]]]
        if above:
            other = max(above, key=lambda j: _RANK[traces.splits[j]])
            reason = f"{key[0]} {key[1]} is also in {traces.splits[other]}: {_who(traces, other)}"
            offences.append(Offence(i, other, "leak", reason))
    return offences


def image_leaks(traces: Traces) -> list[Offence]:
    """Samples whose image nearly equals one in a better guarded split."""
    by_split = {s: np.array([i for i, t in enumerate(traces.splits) if t == s], np.int64) for s in _RANK}
    offences: dict[int, Offence] = {}
    for low, high in (("train", "test"), ("val", "test"), ("train", "val")):
        a, b = by_split[low], by_split[high]
        for i, j in near_pairs(traces.hashes[a], traces.thumbs[a], traces.hashes[b], traces.thumbs[b]):
            x, y = int(a[i]), int(b[j])
            reason = f"image nearly equals one in {high}: {_who(traces, y)}"
            offences.setdefault(x, Offence(x, y, "leak", reason))
    return [offences[i] for i in sorted(offences)]


def _subject(traces: Traces, i: int) -> tuple[str, str]:
    patient = traces.patients[i]
    if patient is not None:
        return "patient", patient
    return "case", f"{traces.sources[i]}/{traces.case_ids[i]}"


def _who(traces: Traces, i: int) -> str:
    return f"{traces.sources[i]}/{traces.case_ids[i]} ({traces.ids[i]})"
