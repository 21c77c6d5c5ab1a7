"""`mie verify`: prove a dataset from its own bytes, and name every offender."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from mie.core.documents import is_joint
from mie.datasets.dataset import Dataset, dataset_digest
from mie.datasets.engine import run_tasks
from mie.datasets.faithful import fault, take_apart
from mie.datasets.leaks import (
    FirstTraces,
    Traces,
    duplicates,
    image_leaks,
    intact_volumes,
    patient_leaks,
    sample_key,
    turn_key,
)
from mie.datasets.rejected import read_rejected
from mie.datasets.schema import content_digest, pixel_digests, read_rows, sample_from_row, text_fields
from mie.errors import MieError
from mie.images.hashes import perceptual
from mie.perspectives import find_perspective
from mie.perspectives.volumes import volume_id
from mie.records import Sample
from mie.vocabulary import MODALITIES, SPLITS, UNKNOWN

# The columns that are kept of each sample, to compare all of them in the end.
_TRACED: Final = (
    *("id", "split", "perspective", "task", "target", "modality", "source", "case_id", "patient_id"),
    *("group", "turn", "recipe"),
)
_COMPARED: Final = (
    *("id", "split", "source", "case_id", "patient_id", "content", "hash", "thumb", "goal_hash"),
    "goal_thumb",
)


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
    conversations: list[tuple[str, str, list[Problem]]] = field(default_factory=list)  # perspective, group


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
    result.problems += _check_conversations(dataset, [reports[path] for path in shards])
    result.samples = len(rows)
    result.problems += _check_totals(dataset, rows)
    result.problems += _check_separation(rows, across=is_joint(dataset.info["recipe"]))
    result.problems += _check_together(rows)
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
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError, RecursionError) as error:
        problems.append(Problem("files", "rejected.parquet", f"cannot be read: {error}"))
    if (dataset.folder / "parts").exists():
        problems.append(Problem("files", "parts", "left over from a build; run the same `mie build` again"))
    return problems


def _check_shard(path: Path) -> _ShardReport:
    report = _ShardReport(path)
    split = path.name.split("-")[0]
    inputs, turns = FirstTraces(), _Turns(report)
    try:
        for number, row in enumerate(read_rows(path)):
            where = f"{path.name} row {number} ({row.get('id')})"
            try:
                sample = sample_from_row(row)
                digests = pixel_digests(sample)
                if content_digest(digests, text_fields(sample)) != row["sha256"]:
                    problem = Problem("digest", where, "content differs from its recorded digest")
                    report.problems.append(problem)
                if sample.split != split:
                    report.problems.append(Problem("split", where, f"says {sample.split} in a {split} shard"))
                report.problems += [Problem(check, where, reason) for check, reason in check_sample(sample)]
                report.rows.append(_trace(sample, str(row["sha256"]), digests, inputs))
                turns.add(sample)
            except Exception as error:  # a stranger's row may hold anything, and must not hide the others
                said = str(error) if isinstance(error, MieError) else f"{type(error).__name__}: {error}"
                report.problems.append(Problem("decode", where, said.replace("\n", "; ")[:500]))
    except Exception as error:  # Arrow raises its own, OSError, and UnicodeDecodeError for text that is none
        report.problems.append(Problem("files", path.name, f"cannot be read: {str(error)[:500]}"))
    turns.end()
    return report


class _Turns:
    """The turns of a conversation that follow each other in a shard; one conversation is in memory."""

    def __init__(self, report: _ShardReport) -> None:
        self._report = report
        self._key: tuple[str, str] | None = None
        self._samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        key = _conversation_of(sample)
        if key != self._key:
            self.end()
            self._key = key
        if key is not None:
            self._samples.append(sample)

    def end(self) -> None:
        if self._key is not None:
            problems = _prove_group(*self._key, self._samples)
            self._report.conversations.append((*self._key, problems))
        self._key, self._samples = None, []


def _conversation_of(sample: Sample) -> tuple[str, str] | None:
    perspective = find_perspective(sample.perspective)
    if sample.group is None or perspective is None or perspective.prove_group is None:
        return None
    return sample.perspective, sample.group


def _prove_group(perspective: str, group: str, samples: Sequence[Sample]) -> list[Problem]:
    found = find_perspective(perspective)
    if found is None or found.prove_group is None:
        return []
    try:
        problems = found.prove_group(samples)
    except Exception as error:  # a stranger's rows may hold anything
        problems = [("decode", f"{type(error).__name__}: {error}"[:500])]
    return [Problem(check, f"conversation {group}", reason) for check, reason in problems]


def _check_conversations(dataset: Dataset, reports: Sequence[_ShardReport]) -> list[Problem]:
    """What the shards found, except that turns which do not stand together are brought together first."""
    found: dict[tuple[str, str], list[list[Problem]]] = defaultdict(list)
    for report in reports:
        for perspective, group, problems in report.conversations:
            found[perspective, group].append(problems)
    apart = [group for (_, group), lists in found.items() if len(lists) > 1]
    places: dict[str, list[int]] = {group: [] for group in apart}
    for at, group in enumerate(dataset.table(["group"])["group"] if apart else ()):
        if group in places:
            places[group].append(at)
    whole = []
    for (perspective, group), lists in found.items():
        if len(lists) == 1:
            whole += lists[0]
            continue
        samples = []
        for at in places[group]:
            with suppress(MieError, ValueError, TypeError, KeyError):  # reported by its shard
                samples.append(sample_from_row(dataset.row_index.row(at)))
        whole += _prove_group(perspective, group, [s for s in samples if s.perspective == perspective])
    return whole


def check_sample(sample: Sample) -> list[tuple[str, str]]:
    """(check, reason) for everything wrong with one sample by itself."""
    wrong = []
    perspective = find_perspective(sample.perspective)
    if perspective is None or sample.task not in (*perspective.tasks, UNKNOWN):
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
    return wrong if perspective is None else wrong + perspective.prove(sample)


def _check_rephrasing(sample: Sample) -> list[tuple[str, str]]:
    """What `mie build --rephrase` made of a template's sentence still asks for the same."""
    note = sample.params.get("rephrased")
    if not isinstance(note, Mapping) or not isinstance(note.get("sentence"), str):
        return []
    sentence = take_apart(note["sentence"], sample.prompt_template, sample.params)
    trouble = "not from its template" if sentence is None else fault(sentence, sample.prompt)
    return [] if trouble is None else [("prompt", f"{trouble}: {sample.prompt!r} for {note['sentence']!r}")]


def _trace(
    sample: Sample, sha256: str, digests: Mapping[str, bytes | None], first: FirstTraces
) -> dict[str, Any]:
    perspective = find_perspective(sample.perspective)
    turn = _conversation_of(sample) is not None
    hash_, thumb = first.of(sample) or perceptual(sample.input)
    first.keep(sample if turn else None, (hash_, thumb))
    edit = "image" if perspective is None else perspective.edit
    anew = perspective is not None and "target_image" in perspective.patient_images and not turn
    goal_hash, goal_thumb = perceptual(sample.target_image) if anew else (None, None)
    return {
        **{name: getattr(sample, name) for name in _TRACED},
        "pixels": digests,
        "sha256": sha256,
        "content": turn_key(sample) if turn else sample_key(sample, digests, edit),
        "hash": hash_,
        "thumb": thumb,
        "volume": volume_id(sample),
        "goal_hash": goal_hash,
        "goal_thumb": goal_thumb,
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


def _check_together(rows: list[dict[str, Any]]) -> list[Problem]:
    """What each perspective demands of its samples together."""
    by_perspective: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_perspective[row["perspective"]].append(row)
    return [
        Problem("pair", where, reason)
        for name, group in by_perspective.items()
        if (perspective := find_perspective(name)) is not None
        for where, reason in perspective.prove_together(group)
    ]


def _check_separation(rows: list[dict[str, Any]], *, across: bool) -> list[Problem]:
    """What stands on both sides of a split; `across` perspectives also by their target images."""
    if not rows:
        return []
    traces = Traces.of({name: [row[name] for row in rows] for name in _COMPARED}, goals=across)
    problems = []
    offences = [
        (name, offence)
        for name, find in (
            ("duplicate", duplicates),
            ("patient leak", patient_leaks),
            ("image leak", image_leaks),
        )
        for offence in find(traces)
    ]
    intact = intact_volumes({o.index for _, o in offences}, [row["volume"] for row in rows])
    for name, offence in offences:
        i = offence.index
        if i not in intact:
            where = f"{traces.sources[i]}/{traces.case_ids[i]} ({traces.ids[i]}, {traces.splits[i]})"
            problems.append(Problem(name, where, offence.reason))
    return problems
