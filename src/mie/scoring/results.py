"""The scores of a run by one benchmark and variant: the one reader for commands, reports and Python."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mie.core.documents import plural
from mie.core.files import digest
from mie.core.registry import suggestion
from mie.errors import ConfigError, MieError
from mie.scoring.clusters import patients_in_words
from mie.scoring.metric import Metric
from mie.scoring.scored_runs import ScoredRun, judges_differ, read_scored_runs, yardstick
from mie.scoring.scores import (
    GROUP_KEYS,
    NO_OUTPUT,
    Attempt,
    Line,
    Score,
    ScoreTable,
    Selected,
    benchmarks_of,
    metric_of,
    number,
    read_score_table,
    read_scores_file,
    read_summary,
    scores_path,
    split_key,
    summary_path,
)

if TYPE_CHECKING:
    import pandas as pd

    from mie.scoring.benchmarks import Benchmark

__all__ = [
    "GROUP_KEYS",
    "NO_OUTPUT",
    "Attempt",
    "Drifted",
    "Line",
    "Mean",
    "Results",
    "Score",
    "ScoreTable",
    "ScoredRun",
    "Selected",
    "benchmarks_of",
    "judges_differ",
    "read_score_table",
    "read_scored_runs",
    "read_scores",
    "split_key",
    "yardstick",
]
_NO_BYTES = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of nothing


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over `n` samples, with `unscored` more that the metric applies to."""

    metric: Metric
    mean: float
    low: float  # of the 95% interval; nan where there is none
    high: float
    n: int
    unscored: int
    capped: int = 0  # of the n, exact matches that count as the highest PSNR
    missing: int = 0  # of the n, samples without an output that count 0 (`as_released`)
    patients: int | None = None  # that the n samples come from; None where that is not known
    images: int | None = None  # of unknown patients, each counted as a patient of its own

    @classmethod
    def of(cls, metric: Metric, entry: Mapping[str, Any], patients: tuple[int, int] | None = None) -> Mean:
        """An entry of a summary; `patients` and images of unknown patients are those behind it."""
        low, high = (number(end) for end in entry.get("ci95") or (None, None))
        n, unscored, capped, missing = (
            int(entry.get(key) or 0) for key in ("n", "unscored", "capped", "missing")
        )
        known, unknown = patients or (entry.get("patients"), entry.get("images_without_patient"))
        return cls(metric, number(entry["mean"]), low, high, n, unscored, capped, missing, known, unknown)

    def __float__(self) -> float:
        return self.mean

    def __str__(self) -> str:
        return self.metric.show(self.mean)

    def __repr__(self) -> str:
        interval = f" {self.interval}" if self.interval else ""
        return f"{self.metric.label} {self}{interval}, {'; '.join([f'{self.coverage} samples', *self.notes])}"

    @property
    def interval(self) -> str:
        """`[.79, .86]`, or nothing where there is none."""
        if math.isnan(self.low) or math.isnan(self.high):
            return ""
        return f"[{self.metric.show(self.low)}, {self.metric.show(self.high)}]"

    @property
    def coverage(self) -> str:
        """`71/77`: how many of those that the metric applies to have a number."""
        return f"{self.n:,}/{self.n + self.unscored:,}"

    @property
    def notes(self) -> list[str]:
        """What else a reader of the mean must know."""
        counts = (
            (self.capped, "exact match, capped", "exact matches, capped"),
            (self.missing, "missing output, counted as 0", "missing outputs, counted as 0"),
        )
        found = [f"{count:,} {one if count == 1 else many}" for count, one, many in counts if count]
        if not self.n or self.patients is None:
            return found
        return [patients_in_words(self.patients, self.images or 0), *found]


@dataclass(frozen=True, slots=True)
class Drifted:
    """An output that was shifted, zoomed or cropped against its input."""

    sample_id: str
    attempt: int
    dx: float
    dy: float
    scale: float


class Results:
    """What a run scored. `res["dice"]` is a mean with its coverage; `res.frame` is a pandas frame.

    A benchmark of another package may keep a summary alone: then there are means, but no samples.
    """

    def __init__(self, run_folder: Path | str, document: Mapping[str, Any]) -> None:
        self.folder = Path(run_folder)
        self.document = document  # as `mie score --json` prints it
        self.name = str(document["protocol"])
        self.variant = str(document["variant"])
        self.path = scores_path(self.folder, self.name, self.variant)
        self._selected: dict[tuple[str, int], Selected] = {}
        self._codes: dict[str, tuple[dict[str, int], NDArray[np.intp]]] = {}

    @classmethod
    def open(cls, run_folder: Path | str, benchmark: str = "miedb", variant: str = "paper") -> Results:
        """The results that `mie score` has written into a run's folder."""
        folder = Path(run_folder)
        path = summary_path(folder, benchmark, variant)
        if not path.is_file():
            there = ", ".join(benchmarks_of(folder, variant))
            raise MieError(
                "this run has no such scores",
                where=path,
                found=f"scores by {there}" if there else "no scores of this variant",
                fix=f"run `mie score {run_folder} --benchmark {benchmark} --variant {variant}` first",
            )
        return cls(folder, {"protocol": benchmark, "variant": variant, **read_summary(path)})

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark itself; `ConfigError` where it is not installed."""
        from mie.scoring.benchmarks import BENCHMARKS  # benchmarks read results

        return BENCHMARKS[self.name]

    @property
    def has_samples(self) -> bool:
        """The scores of single samples are there, not only their summary."""
        return self.path.is_file()

    @cached_property
    def table(self) -> ScoreTable:
        """Every number as arrays; `MieError` where there is only a summary."""
        return read_score_table(self.path)

    @cached_property
    def header(self) -> Mapping[str, Any]:
        """What the numbers rest on: dataset, edits, judge, weights."""
        return read_scores_file(self.path)[0] if self.has_samples else {"protocol": self.name}

    def lines(self) -> Iterator[Line]:
        """Every sample with its attempts, one at a time from the file."""
        return read_scores_file(self.path)[1]

    @property
    def judge(self) -> Mapping[str, Any] | None:
        """Who judged, where a language model was asked."""
        return self.document.get("judge")

    @property
    def stale(self) -> bool:
        """Edits were made after the run was scored."""
        path = self.folder / "edits.jsonl"
        scored = self.header.get("edits_sha256")
        return scored is not None and scored != (digest(path) if path.exists() else _NO_BYTES)

    def __len__(self) -> int:
        return int(self.document.get("n_samples", 0))

    def metric(self, name: str) -> Metric:
        """What is known about a metric of these results."""
        return metric_of(self.header, name)

    @property
    def keys(self) -> list[str]:
        """`dice@1`, `dice@3` and so on, of all samples."""
        return list(self._entries({}))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and "@".join(map(str, split_key(key))) in self._entries({})

    def __getitem__(self, key: str) -> Mean:
        """The mean of a metric over all samples: `res["dice"]`, or with its k `res["dice@3"]`."""
        name, k = split_key(key)
        means = self._entries({})
        if f"{name}@{k}" not in means:
            raise ConfigError(
                f"no metric {name}@{k} in these scores",
                where=f"{self.folder}: {self.name}, {self.variant}",
                expected=", ".join(means) or "none: nothing was scored",
                fix=suggestion(f"{name}@{k}", means),
            )
        return self._mean({}, f"{name}@{k}", means[f"{name}@{k}"])

    def means(self, **group: str) -> dict[str, Mean]:
        """`dice@1` and so on, over all samples or those of a group: `res.means(modality="CT")`."""
        return {key: self._mean(group, key, entry) for key, entry in self._entries(group).items()}

    @property
    def groups(self) -> list[dict[str, str]]:
        """The groups of the summary; `{}` is all samples."""
        return [dict(item["group"]) for item in self.document["groups"]]

    def by(self, key: str) -> dict[str, dict[str, Mean]]:
        """The groups that are cut by this key alone: value -> `dice@1` -> mean."""
        values = [group[key] for group in self.groups if list(group) == [key]]
        return {value: self.means(**{key: value}) for value in values}

    def select(self, key: str) -> Selected:
        """Each sample's value of `dice@1`, and the attempt that it comes from."""
        name, k = split_key(key)
        if (name, k) not in self._selected:
            self._selected[name, k] = self.table.select(name, k)
        return self._selected[name, k]

    def values(self, key: str) -> pd.Series:
        """Each sample's value as a pandas series by sample id, nan where it is unscored."""
        import pandas as pd

        selected = self.select(key)
        chosen = np.flatnonzero(selected.applies)
        ids = [self.table.ids[row] for row in chosen]
        return pd.Series(selected.values[chosen], index=pd.Index(ids, name="id"), name=key)

    @cached_property
    def reasons(self) -> Counter[tuple[str, str]]:
        """(metric, why it has no number) -> attempts; the metric `NO_OUTPUT` is all of them."""
        return Counter(
            (name, str(reason))
            for line in self.lines()
            for attempt in line.attempts
            for name, reason in attempt.reasons.items()
        )

    @cached_property
    def drifted(self) -> list[Drifted]:
        """The outputs that do not lie where their input does."""
        return [
            Drifted(line.id, attempt.k, *(float(attempt.drift[key]) for key in ("dx", "dy", "scale")))
            for line in self.lines()
            for attempt in line.attempts
            if attempt.drift and attempt.drift["flag"]
        ]

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each sample and attempt: who it is, its metrics, why some have no number.

        Columns: `id`, `perspective`, `task`, `modality`, `anatomy`, `target`, `source`, `patient`, `k`, one
        for each metric (nan where it does not apply or was not scored), `class_dice_red` and the like,
        `unscored` (the reasons as text, "" where there are none), and `drift_dx`, `drift_dy`, `drift_scale`,
        `drift_response`, `drift_flag` where it was measured.
        """
        import pandas as pd

        frame = pd.DataFrame([row for line in self.lines() for row in _rows(line)])
        for name in self.header["metrics"]:
            if name in frame:
                frame[name] = frame[name].astype("float64")
        return frame

    def __repr__(self) -> str:
        lines = [f"{self.folder}: {self.name}, {self.variant}, {plural(len(self), 'sample')}"]
        return "\n  ".join([*lines, *(f"{key}: {mean!r}" for key, mean in self.means().items())])

    def _repr_html_(self) -> str:
        heads = ("metric", "mean", "95% interval", "scored", "")
        rows = [
            (
                f"{mean.metric.title}, pass@{split_key(key)[1]}",
                str(mean),
                mean.interval,
                mean.coverage,
                mean.notes,
            )
            for key, mean in self.means().items()
        ]
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in (*row[:-1], '; '.join(row[-1])))}</tr>"
            for row in rows
        )
        caption = html.escape(f"{self.folder}: {self.name}, {self.variant}, {plural(len(self), 'sample')}")
        head = "".join(f"<th>{text}</th>" for text in heads)
        return (
            f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def _entries(self, group: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
        found = [item["metrics"] for item in self.document["groups"] if item["group"] == dict(group)]
        if not found and group:
            known = [str(one) for one in self.groups]
            raise ConfigError("no such group in these scores", expected=", ".join(known), found=dict(group))
        return dict(found[0]) if found else {}

    def _mean(self, group: Mapping[str, str], key: str, entry: Mapping[str, Any]) -> Mean:
        return Mean.of(self.metric(split_key(key)[0]), entry, self._patients(group, key))

    def _patients(self, group: Mapping[str, str], key: str) -> tuple[int, int] | None:
        """How many patients, and images of unknown patients, a mean rests on."""
        if not self.has_samples or split_key(key) not in self.table.keys:
            return None
        clusters = self.table.clusters[self._rows_of(group) & self.select(key).scored]
        return clusters.patients, clusters.unknown

    def _rows_of(self, group: Mapping[str, str]) -> NDArray[np.bool_]:
        inside = np.ones(len(self.table.ids), np.bool_)
        for key, value in group.items():
            if key not in self._codes:  # numbers compare faster than names
                names, codes = np.unique(self.table.groups[key].astype(str), return_inverse=True)
                self._codes[key] = {str(name): at for at, name in enumerate(names)}, codes
            numbers, codes = self._codes[key]
            inside &= codes == numbers.get(value, -1)
        return inside


def read_scores(run_folder: Path | str, benchmark: str = "miedb", variant: str = "paper") -> pd.DataFrame:
    """The scores of a run as a pandas frame: `Results.frame`."""
    return Results.open(run_folder, benchmark, variant).frame


def _rows(line: Line) -> Iterator[dict[str, Any]]:
    for attempt in line.attempts:
        yield {
            "id": line.id,
            **line.group,
            "patient": line.patient,
            "k": attempt.k,
            **attempt.values,
            **{f"class_dice_{name}": value for name, value in attempt.body.get("classes", {}).items()},
            "unscored": "; ".join(f"{name}: {reason}" for name, reason in attempt.reasons.items()),
            **{f"drift_{name}": value for name, value in (attempt.drift or {}).items()},
        }
