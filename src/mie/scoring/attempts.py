"""The lines of scores: what the pixels of each attempt at a sample say, or why they say nothing.

A run is cut into chunks that are scored on their own: a few row groups of the dataset with their outputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from mie.core.hashing import canonical
from mie.datasets.dataset import Dataset
from mie.datasets.parquet import ShardFile
from mie.editors.runs import Run
from mie.errors import ImageError, MetricError
from mie.images.resize import resize_to
from mie.records import Pixels
from mie.scoring.benchmarks import Benchmark
from mie.scoring.metric import Metric
from mie.scoring.reference import Reference, facts_of, read_output, read_stored
from mie.scoring.scores import GROUP_KEYS, NO_OUTPUT

Row: TypeAlias = Mapping[str, Any]  # of the dataset, by column
LineBody: TypeAlias = dict[str, Any]
T = TypeVar("T")


class Inputs:
    """Samples of one image follow each other and hold the same file: it is decoded once."""

    def __init__(self) -> None:
        self._data: bytes | None = None
        self._pixels: Pixels

    def read(self, data: bytes) -> Pixels:
        if self._data is None or data != self._data:
            self._pixels, self._data = read_stored(data), data
        return self._pixels


@dataclass(frozen=True, slots=True)
class Context:
    """How a chunk is measured. `setup` is the benchmark's own, and crosses to other processes."""

    benchmark: Benchmark
    variant: str
    metrics: Mapping[str, Metric]  # that are scored: without a judge those of a judge are not among them
    inputs: Inputs
    setup: Any = None

    @property
    def judged(self) -> bool:
        return any(metric.judged for metric in self.metrics.values())

    @property
    def psnr_cap(self) -> float | None:
        """Of exact matches in dB."""
        return self.benchmark.psnr_cap if self.variant == "paper" else None


def line_of(row: Row, applies: Sequence[str], attempts: list[dict[str, Any]], **groups: str) -> LineBody:
    """A line of scores; `groups` are the benchmark's own, or replace one of every benchmark's."""
    return {
        "id": row["id"],
        "group": {**{key: row[key] for key in GROUP_KEYS}, **groups},
        "patient": row["patient_id"],
        "case": row["case_id"],
        "applies": tuple(applies),
        "attempts": attempts if applies else [],
    }


class Entry:
    """The scores of one attempt as they come in: `{"metrics": {name: value}, "unscored": {name: reason}}`."""

    def __init__(self, psnr_cap: float | None = None) -> None:
        self._cap = psnr_cap  # of exact matches
        self.metrics: dict[str, float] = {}
        self.unscored: dict[str, str] = {}
        self.body: dict[str, Any] = {"metrics": self.metrics, "unscored": self.unscored}

    def measure(self, metrics: Sequence[Metric], compute: Callable[[], Iterable[float]]) -> bool:
        """Several metrics at once. False, and a reason for each, where they are not defined here."""
        try:
            values = list(compute())
        except MetricError as error:
            self.unscored.update({metric.name: error.reason for metric in metrics})
            return False
        for metric, value in zip(metrics, values, strict=True):
            self.unscored.pop(metric.name, None)
            capped = self._cap is not None and metric.decibels
            self.metrics[metric.name] = min(float(value), self._cap or 0.0) if capped else float(value)
        return True

    def compute(self, metric: Metric, output: Pixels, reference: Reference) -> None:
        """One metric by its own function."""
        self.measure([metric], lambda: [metric.compute(output, reference.facts)])


def each_output(
    outputs: Sequence[Output],
    variant: str,
    read_reference: Callable[[], T],
    score: Callable[[T, Pixels], dict[str, Any]],
) -> list[dict[str, Any]]:
    """An entry for each attempt: what `score` says of its pixels, or why there are none.

    `read_reference` reads the sample's own images, once for all attempts.
    """
    try:
        reference = read_reference()
    except ImageError as error:
        return [_no_output(output.k, f"the sample's own images: {error.reason}") for output in outputs]
    return [_attempt(reference, output, variant, score) for output in outputs]


def _attempt(
    reference: T, output: Output, variant: str, score: Callable[[T, Pixels], dict[str, Any]]
) -> dict[str, Any]:
    if output.path is None:
        return _no_output(output.k, output.reason)
    try:
        pixels = read_output(Path(output.path), variant)
    except ImageError as error:
        return _no_output(output.k, f"unreadable output: {error.reason}")
    return {"k": output.k, **score(reference, pixels)}


def _no_output(k: int, reason: str) -> dict[str, Any]:
    return {"k": k, "metrics": {}, "unscored": {NO_OUTPUT: reason}}


def read_reference(row: Row, context: Context) -> Reference:
    """The sample's own images, and the region that its edit is about."""
    image = context.inputs.read(row["input"]["bytes"])
    target = read_stored(row["target_image"]["bytes"])
    mask = None if row["mask"] is None else read_stored(row["mask"]["bytes"])
    return Reference.of(row["perspective"], row["task"], row["colour"], image, target, mask)


def measure_metrics(row: Row, outputs: Sequence[Output], context: Context) -> LineBody:
    """A line of a benchmark that has no `measure` of its own: each metric by its function."""
    facts = facts_of(row)
    metrics = [m for m in context.metrics.values() if m.function is not None and m.needs <= facts]

    def score(reference: Reference, output: Pixels) -> dict[str, Any]:
        entry = Entry(context.psnr_cap)
        if output.shape[:2] != reference.size:
            entry.body["resized_from"] = list(output.shape[:2])
            output = resize_to(output, reference.size)
        for metric in metrics:
            entry.compute(metric, output, reference)
        return entry.body

    attempts = each_output(outputs, context.variant, lambda: read_reference(row, context), score)
    return line_of(row, [metric.name for metric in metrics], attempts)


# Outputs in a chunk: some hundred milliseconds of work, which is what an interruption may cost.
_PAIRS: Final = 48


@dataclass(frozen=True, slots=True)
class Output:
    """Where an attempt's output lies, or why there is none."""

    k: int
    path: str | None
    reason: str = ""
    stamp: tuple[int, int] = (0, 0)  # size and time of change: a file that was replaced is scored again


@dataclass(frozen=True, slots=True)
class Chunk:
    """Row groups `groups` of a shard; `outputs` lists (sample id, attempts) for their rows, in order.

    A run that was limited may leave out the last rows.
    """

    number: int
    shard: Path
    groups: tuple[int, ...]
    outputs: tuple[tuple[str, tuple[Output, ...]], ...]

    @property
    def pairs(self) -> int:
        return sum(len(attempts) for _, attempts in self.outputs)

    def key(self, header: Mapping[str, Any]) -> str:
        """Changes with anything that the chunk's scores depend on."""
        return chunk_key([header], self.outputs)

    def rows(self, columns: list[str]) -> Iterator[tuple[dict[str, Any], tuple[Output, ...]]]:
        """Each row with its attempts. One row group is in memory, and one row of it as Python objects."""
        with ShardFile(self.shard) as file:
            rows = chain.from_iterable(_rows(file, group, columns) for group in self.groups)
            for row, (_, attempts) in zip(rows, self.outputs, strict=False):
                if attempts:  # none where the run's filters left the sample out
                    yield row, attempts


def chunk_key(about: list[Any], outputs: Iterable[tuple[str, tuple[Output, ...]]]) -> str:
    """The key of what is scored together: what it is about, and the state of each output."""
    attempts = [
        [sample, [[o.k, o.path is not None, o.reason, o.stamp] for o in attempts]]
        for sample, attempts in outputs
    ]
    return hashlib.sha256(canonical([*about, attempts]).encode()).hexdigest()[:16]


def _rows(file: ShardFile, group: int, columns: list[str]) -> Iterator[dict[str, Any]]:
    table = file.read_row_group(
        group, columns=columns, use_threads=False
    )  # each thread keeps memory of its own
    for at in range(table.num_rows):
        yield table.slice(at, 1).to_pylist()[0]


def make_chunks(run: Run, dataset: Dataset) -> list[Chunk]:
    """The samples that the run was made for, in dataset order."""
    edits = run.edits()
    config = run.info["config"]
    chosen = set(run.sample_ids(dataset)) if config.get("where") else None
    left = len(dataset) if chosen is not None else config.get("limit") or len(dataset)
    chunks: list[Chunk] = []

    def output(sample: str, k: int) -> Output:
        edit = edits.get((sample, k))
        if edit is None:
            return Output(k, None, "no output")
        if edit.state != "done":
            return Output(k, None, f"edit {edit.state}: {edit.reason}")
        path = run.output_path(sample, k)
        try:
            status = path.stat()
        except OSError:
            return Output(k, None, "output file is gone")
        return Output(k, str(path), stamp=(status.st_size, status.st_mtime_ns))

    for shard in dataset.shards(config.get("split")):
        with ShardFile(shard) as file:
            ids = iter(file.read(columns=["id"]).column("id").to_pylist()[:left])
            sizes = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        groups: list[int] = []
        outputs: list[tuple[str, tuple[Output, ...]]] = []
        for group, size in enumerate(sizes):
            groups.append(group)
            for _, sample in zip(range(size), ids, strict=False):
                attempts = range(run.attempts if chosen is None or sample in chosen else 0)
                outputs.append((sample, tuple(output(sample, k) for k in attempts)))
                left -= 1
            if outputs and (len(outputs) * run.attempts >= _PAIRS or group == len(sizes) - 1 or not left):
                chunks.append(Chunk(len(chunks), shard, tuple(groups), tuple(outputs)))
                groups, outputs = [], []
        if not left:
            break
    return chunks
