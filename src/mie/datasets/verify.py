"""`mie verify`: prove a dataset from its own bytes, and name every offender."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from mie.datasets.dataset import Dataset, dataset_digest
from mie.datasets.engine import run_tasks
from mie.datasets.faithful import fault, take_apart
from mie.datasets.leaks import Traces, content_key, duplicates, image_leaks, patient_leaks
from mie.datasets.schema import content_digest, pixel_digests, sample_from_row, text_fields
from mie.datasets.shards import read_rejected, read_rows
from mie.errors import MieError
from mie.images.hashes import perceptual
from mie.perspectives.modification.samples import background_problems
from mie.perspectives.perception.samples import MIN_DICE, proof
from mie.perspectives.transformation.samples import PairGate
from mie.records import Sample
from mie.vocabulary import COLOURS, MODALITIES, SPLITS, TASKS, UNKNOWN


@dataclass(frozen=True, slots=True)
class Problem:
    check: str
    where: str
    reason: str


@dataclass(slots=True)
class Verification:
    """What was checked and what was found wrong; `ok` when nothing was."""

    samples: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(slots=True)
class _ShardReport:
    path: Path
    problems: list[Problem] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


def verify(
    folder: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verification:
    """Decode every sample again and check it, then compare all of them with each other."""
    dataset = Dataset(folder)
    result = Verification()
    result.problems += _check_files(dataset)
    shards = dataset.shards()
    reports: dict[Path, _ShardReport] = {}
    progress(0, len(shards))
    for report in run_tasks(_check_shard, shards, workers=workers):
        reports[report.path] = report
        progress(len(reports), len(shards))
    rows = []
    for path in shards:
        result.problems += reports[path].problems
        rows += reports[path].rows
    result.samples = len(rows)
    result.problems += _check_totals(dataset, rows)
    result.problems += _check_separation(rows)
    result.problems += _check_pairs(rows)
    return result


def _check_files(dataset: Dataset) -> list[Problem]:
    problems = []
    names = {path.name for path in dataset.shards()}
    for path in sorted((dataset.folder / "data").iterdir()):
        if path.name not in names:
            problems.append(Problem("files", path.name, "not a shard of this dataset"))
    for split in SPLITS:
        numbers = [re.findall(r"\d{5}", path.name) for path in dataset.shards(split)]
        counts = {int(of) for _, of in numbers}
        if numbers and (len(counts) != 1 or [int(n) for n, _ in numbers] != list(range(counts.pop()))):
            problems.append(Problem("files", split, "shards are missing or numbered wrongly"))
    try:
        read_rejected(dataset.folder / "rejected.parquet")
    except (OSError, pa.ArrowException, KeyError) as error:
        problems.append(Problem("files", "rejected.parquet", f"cannot be read: {error}"))
    if (dataset.folder / "parts").exists():
        problems.append(Problem("files", "parts", "left over from a build; run the same `mie build` again"))
    return problems


def _check_shard(path: Path) -> _ShardReport:
    report = _ShardReport(path)
    split = path.name.split("-")[0]
    try:
        for number, row in enumerate(read_rows(path)):
            where = f"{path.name} row {number} ({row.get('id')})"
            try:
                sample = sample_from_row(row)
            except (MieError, ValueError, TypeError, KeyError) as error:
                report.problems.append(Problem("decode", where, str(error).replace("\n", "; ")))
                continue
            digests = pixel_digests(sample)
            if content_digest(digests, text_fields(sample)) != row["sha256"]:
                report.problems.append(Problem("digest", where, "content differs from its recorded digest"))
            if sample.split != split:
                report.problems.append(Problem("split", where, f"says {sample.split} in a {split} shard"))
            report.problems += [Problem(check, where, reason) for check, reason in check_sample(sample)]
            report.rows.append(_trace(sample, row["sha256"], digests))
    except (OSError, pa.ArrowException, KeyError) as error:
        report.problems.append(Problem("files", path.name, f"cannot be read: {error}"))
    return report


def check_sample(sample: Sample) -> list[tuple[str, str]]:
    """(check, reason) for everything wrong with one sample by itself."""
    wrong = []
    if sample.perspective not in TASKS or sample.task not in (*TASKS[sample.perspective], UNKNOWN):
        wrong.append(("vocabulary", f"unknown perspective or task: {sample.perspective}/{sample.task}"))
    if sample.modality not in (*MODALITIES, UNKNOWN):
        wrong.append(("vocabulary", f"unknown modality: {sample.modality}"))
    if not sample.prompt.strip():
        wrong.append(("prompt", "empty"))
    wrong += _check_rephrasing(sample)
    size = sample.input.shape[:2]
    for name, other in (("target image", sample.target_image), ("mask", sample.mask)):
        if other is not None and other.shape[:2] != size:
            wrong.append(("size", f"input is {size}, {name} is {other.shape[:2]}"))
            return wrong
    if sample.bin is not None and max(size) != sample.bin:
        wrong.append(("bin", f"longer side is {max(size)}, bin is {sample.bin}"))
    if sample.perspective == "perception":
        wrong += _check_overlay(sample)
    elif sample.perspective == "transformation":
        wrong += _check_transformation(sample)
    elif sample.perspective == "modification" and sample.recipe == "modification":
        wrong += _check_modification(sample)
    return wrong


def _check_rephrasing(sample: Sample) -> list[tuple[str, str]]:
    """What `mie build --rephrase` made of a template's sentence still asks for the same."""
    note = sample.params.get("rephrased")
    if not isinstance(note, Mapping) or not isinstance(note.get("sentence"), str):
        return []
    sentence = take_apart(note["sentence"], sample.prompt_template, sample.params)
    trouble = "not from its template" if sentence is None else fault(sentence, sample.prompt)
    return [] if trouble is None else [("prompt", f"{trouble}: {sample.prompt!r} for {note['sentence']!r}")]


def _check_transformation(sample: Sample) -> list[tuple[str, str]]:
    """A change without a region, and a prompt that says which."""
    wrong = []
    if sample.mask is not None or sample.colour is not None:
        wrong.append(("overlay", "a transformation sample has neither mask nor colours"))
    refusal = PairGate(np.inf)(sample)
    if refusal is not None:
        wrong.append(("pair", refusal.reason))
    return wrong + _check_named(sample)


def _check_modification(sample: Sample) -> list[tuple[str, str]]:
    """A change inside the mask alone, and a prompt that names it. Imported samples make no such promise."""
    wrong = [("background", reason) for reason, _ in background_problems(sample)]
    if sample.colour is not None:
        wrong.append(("overlay", "a modification sample has no colours"))
    if sample.group is None:
        wrong.append(("pair", "a modification sample belongs to a pair"))
    return wrong + _check_named(sample)


def _check_named(sample: Sample) -> list[tuple[str, str]]:
    return [
        ("prompt", f"does not name {word!r}: {sample.prompt!r}")
        for word in sample.params.get("named", [])
        if str(word).casefold() not in sample.prompt.casefold()
    ]


def _check_overlay(sample: Sample) -> list[tuple[str, str]]:
    wrong = []
    colours = (sample.colour or "").split(",")
    if sample.mask is None or any(c not in COLOURS for c in colours):
        return [("overlay", "a perception sample needs a mask and colours from red, green, blue")]
    for word in [*colours, *(c["target"] for c in sample.params.get("classes", []))]:
        if word.casefold() not in sample.prompt.casefold():
            wrong.append(("prompt", f"does not name {word!r}: {sample.prompt!r}"))
    worst = min(proof(sample).values())
    if worst < MIN_DICE:
        wrong.append(("overlay", f"de-blending the target gives DICE {worst:.4f}, at least {MIN_DICE}"))
    changed = (sample.input != sample.target_image).any(axis=2)
    outside = int(np.count_nonzero(changed & (sample.mask == 0)))
    if outside:
        wrong.append(("overlay", f"{outside} pixels changed outside the region"))
    return wrong


def _trace(sample: Sample, sha256: str, digests: Mapping[str, bytes | None]) -> dict[str, Any]:
    hash_, thumb = perceptual(sample.input)
    names = ("id", "split", "perspective", "task", "modality", "source", "case_id", "patient_id", "group")
    return {
        **{name: getattr(sample, name) for name in names},
        "pixels": digests,
        "recipe": sample.recipe,
        "sha256": sha256,
        "content": content_key(digests, sample.perspective),
        "hash": hash_,
        "thumb": thumb,
    }


def _check_totals(dataset: Dataset, rows: list[dict[str, Any]]) -> list[Problem]:
    problems = []
    for sample_id, n in Counter(row["id"] for row in rows).items():
        if n > 1:
            problems.append(Problem("ids", sample_id, f"given to {n} samples"))
    digest = dataset_digest(row["sha256"] for row in rows)
    if digest != dataset.digest:
        problems.append(
            Problem("digest", "dataset.json", f"says {dataset.digest[:12]}, the samples give {digest[:12]}")
        )
    if not rows:
        problems.append(Problem("counts", "dataset", "holds no sample; rejected.parquet says why"))
    counts = dataset.info["counts"]
    if counts["samples"] != len(rows):
        problems.append(Problem("counts", "dataset.json", f"says {counts['samples']}, found {len(rows)}"))
    for name in ("split", "perspective", "task", "modality", "source"):
        found = dict(Counter(row[name] for row in rows))
        if counts.get(f"by_{name}") != found:
            problems.append(Problem("counts", f"dataset.json by_{name}", f"found {found}"))
    return problems


def _check_pairs(rows: list[dict[str, Any]]) -> list[Problem]:
    """The samples of one counterfactual pair show the same two images and the same mask."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["recipe"] == "modification" and row["group"] is not None:
            groups[row["group"]].append(row)
    problems = []
    for group, samples in groups.items():
        shown: dict[str, set[bytes | None]] = defaultdict(set)
        for row in samples:
            shown["mask"].add(row["pixels"]["mask"])
            shown["split"].add(row["split"])
            for image, name in zip(("input", "target_image"), _SHOWS.get(row["task"], ()), strict=False):
                shown[name].add(row["pixels"][image])
        for name, found in shown.items():
            if len(found) > 1:
                problems.append(Problem("pair", group, f"{name}: its samples differ"))
    return problems


# Input and target image of each kind of modification.
_SHOWS: Final = {
    "removal": ("image with the lesion", "healthy image"),
    "addition": ("healthy image", "image with the lesion"),
    "inpainting": ("image with a hole", "healthy image"),
    "simulation": ("image with a hole", "image with the lesion"),
}


def _check_separation(rows: list[dict[str, Any]]) -> list[Problem]:
    if not rows:
        return []
    traces = Traces(
        ids=[r["id"] for r in rows],
        splits=[r["split"] for r in rows],
        sources=[r["source"] for r in rows],
        case_ids=[r["case_id"] for r in rows],
        patients=[r["patient_id"] for r in rows],
        content=[r["content"] for r in rows],
        hashes=np.array([r["hash"] for r in rows], np.uint64),
        thumbs=np.frombuffer(b"".join(r["thumb"] for r in rows), np.uint8).reshape(-1, 256),
    )
    problems = []
    for name, find in (
        ("duplicate", duplicates),
        ("patient leak", patient_leaks),
        ("image leak", image_leaks),
    ):
        for offence in find(traces):
            i = offence.index
            where = f"{traces.sources[i]}/{traces.case_ids[i]} ({traces.ids[i]}, {traces.splits[i]})"
            problems.append(Problem(name, where, offence.reason))
    return problems
