"""A benchmark as a dataset of its own: chosen, reviewed, with its digest, its card, and who accepted what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mie.core.documents import DatasetInfo, plural
from mie.datasets.choose import (
    STRATA,
    Candidates,
    Choice,
    Decision,
    Quota,
    accepted_by,
    choose,
    read_candidates,
    write_chosen,
)
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.records import Rejection


@dataclass(frozen=True, slots=True)
class Published:
    """A benchmark on disk, and how it was chosen."""

    folder: Path
    info: DatasetInfo
    choice: Choice


def publish(
    dataset: Dataset,
    folder: Path | str,
    *,
    quota: str | int | Mapping[str, Any],
    split: str | None = "test",
    strata: Sequence[str] = STRATA,
    allocation: str = "equal",
    spare: float = 0.0,
    decisions: Sequence[Decision] | None = None,
    needed: int = 3,
    seed: int = 0,
    name: str | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Published:
    """Choose samples of `dataset` and write them to `folder`, a dataset with its own digest and card.

    Args:
        dataset: What to choose from.
        folder: Of the benchmark; new.
        quota: A number, a preset, a YAML file, or a mapping by one column.
        split: Choose from this split; None for all.
        strata: The columns that a stratum's samples share.
        allocation: "equal" or "proportional", of the quota over the strata.
        spare: Choose this share more: candidates for people to reject from.
        decisions: What people said; then only what `needed` of them accepted is chosen from.
        needed: How many people must accept a sample.
        seed: Another seed takes other samples of equal rank.
        name: Of the benchmark.
        workers: Processes that read the images.
        progress: Called with (done, total).

    """
    wanted = _more(Quota.parse(quota), spare)
    candidates = read_candidates(dataset, split, workers=workers, progress=progress)
    reviews: dict[str, Any] = {}
    rejections: list[Rejection] = []
    accepted: dict[str, list[str]] = {}
    if decisions is not None:
        accepted, refused = accepted_by(decisions, needed)
        rejections = _refusals(dataset, refused)
        candidates = _only(candidates, accepted)
        if not candidates.ids:
            raise MieError(
                "no sample was accepted by enough people",
                where=dataset.folder,
                expected=f"samples that {needed} people accepted and nobody rejected",
                found=f"{plural(len(refused), 'sample')} reviewed, none accepted",
                fix="let more people review, or ask for fewer with --accepted",
            )
    choice = choose(candidates, wanted, strata=strata, allocation=allocation, seed=seed)
    ids = [candidates.ids[at] for at in choice.places]
    if decisions is not None:
        people = sorted({decision.rater for decision in decisions})
        by = {sample: accepted[sample] for sample in sorted(ids)}
        reviews = {"reviews": {"needed": needed, "raters": people, "accepted_by": by}}
    chosen = {
        "quota": wanted.as_json(),
        "strata": list(choice.strata[0].name) if choice.strata else list(strata),
        "allocation": allocation,
        "split": split,
        "seed": seed,
        **reviews,
    }
    info = write_chosen(dataset, ids, Path(folder), chosen=chosen, name=name, rejections=rejections)
    return Published(Path(folder), info, choice)


def _more(quota: Quota, spare: float) -> Quota:
    def more(count: int) -> int:
        return math.ceil(count * (1 + spare))

    if quota.total is not None:
        return replace(quota, total=more(quota.total))
    return replace(quota, by_value={value: more(count) for value, count in quota.by_value.items()})


def _only(candidates: Candidates, ids: Mapping[str, Any]) -> Candidates:
    places = [at for at, sample in enumerate(candidates.ids) if sample in ids]
    return Candidates(
        [candidates.ids[at] for at in places],
        [candidates.subjects[at] for at in places],
        {name: [column[at] for at in places] for name, column in candidates.columns.items()},
        candidates.features[np.array(places, np.int64)],
    )


def _refusals(dataset: Dataset, refused: Mapping[str, str]) -> list[Rejection]:
    columns = dataset.table(["id", "source", "case_id", "target", "perspective"])
    return [
        Rejection(source, case, "review", refused[sample], target, {"id": sample}, perspective)
        for sample, source, case, target, perspective in zip(*columns.values(), strict=True)
        if sample in refused
    ]
