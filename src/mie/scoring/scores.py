"""Files of scores: `scores/<benchmark>.<variant>.jsonl` and `summary/<benchmark>.<variant>.json` of a run.

The first is a header and then a line for each sample with its attempts; a metric of an attempt has a value,
or the reason why it has none. The second is the document that `mie score --json` prints. Everything that
writes or reads them goes through this module.

`ScoreTable` has a file's numbers as arrays, and chooses the one number that a sample gets from its attempts.
The variants differ in what an attempt without an output does. `paper`: pass@1 is attempt 0, and a sample
without it is unscored. `as_released`: pass@1 is the first attempt that exists, and where the header says
`missing_as_zero` a sample with no output at all counts 0. In both, pass@k is the best of the attempts that
exist. Nothing else in the package chooses among attempts.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.core.documents import null_for_nan, read_document, write_document
from mie.core.files import atomic_path, make_folder, remove_scratch
from mie.core.registry import suggestion
from mie.editors.runs import plain
from mie.errors import ConfigError, MieError
from mie.scoring.clusters import Clusters, Identity, clusters_of
from mie.scoring.metric import Metric, find_metric

GROUP_KEYS: Final = ("perspective", "task", "modality", "anatomy", "target", "source")
NO_OUTPUT: Final = "*"  # the key of `unscored` that stands for every metric of the attempt


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of one output: its value, or the reason why it has none."""

    metric: str
    value: float | None
    reason: str = ""

    @property
    def scored(self) -> bool:
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt at a sample got."""

    body: Mapping[str, Any]

    @property
    def k(self) -> int:
        return int(self.body["k"])

    @property
    def values(self) -> dict[str, float]:
        """Metric -> value; infinity is text in the file."""
        return {name: float(value) for name, value in self.body["metrics"].items()}

    @property
    def reasons(self) -> Mapping[str, str]:
        """Metric -> why it has no value; `NO_OUTPUT` stands for all of them."""
        found: Mapping[str, str] = self.body.get("unscored", {})
        return found

    @property
    def has_output(self) -> bool:
        return NO_OUTPUT not in self.reasons

    @property
    def drift(self) -> Mapping[str, Any] | None:
        """How the output lies on the input, where it was measured (`metrics.Drift`)."""
        return self.body.get("drift")

    def score(self, metric: str) -> Score:
        """One metric: its value, or why there is none."""
        value = self.body["metrics"].get(metric)
        if value is not None:
            return Score(metric, float(value))
        reasons = self.reasons
        return Score(metric, None, reasons.get(metric) or reasons.get(NO_OUTPUT) or "does not apply")


@dataclass(frozen=True, slots=True)
class Line:
    """One sample of a file of scores."""

    body: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.body["id"])

    @property
    def group(self) -> Mapping[str, str]:
        """What the sample is, by `GROUP_KEYS` and the benchmark's own keys."""
        found: Mapping[str, str] = self.body["group"]
        return found

    @property
    def patient(self) -> str | None:
        return None if self.body["patient"] is None else str(self.body["patient"])

    @property
    def case(self) -> str:
        return str(self.body["case"])

    @property
    def applies(self) -> tuple[str, ...]:
        """The metrics that apply to the sample."""
        return tuple(self.body["applies"])

    @property
    def attempts(self) -> list[Attempt]:
        return [Attempt(body) for body in self.body["attempts"]]


def scores_path(run_folder: Path, benchmark: str, variant: str) -> Path:
    return run_folder / "scores" / f"{benchmark}.{variant}.jsonl"


def summary_path(run_folder: Path, benchmark: str, variant: str) -> Path:
    return run_folder / "summary" / f"{benchmark}.{variant}.json"


def benchmarks_of(run_folder: Path, variant: str) -> list[str]:
    """The benchmarks that a run has a summary or a file of scores of."""
    found = {
        path.name.removesuffix(f".{variant}.json") for path in run_folder.glob(f"summary/*.{variant}.json")
    }
    endings = run_folder.glob(f"scores/*.{variant}.jsonl")
    return sorted(found | {path.name.removesuffix(f".{variant}.jsonl") for path in endings})


def read_scores_file(path: Path) -> tuple[dict[str, Any], Iterator[Line]]:
    """The header, and the lines one at a time. `MieError` for what is no file of scores."""
    fix = "run `mie score` again"
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError:
        raise MieError("no scores here", where=path, fix="run `mie score` first") from None
    lines = _objects(file, path, fix)
    header = next(lines, None)
    if header is None or not {"attempts", "metrics", "variant"} <= set(header):
        raise MieError("not a file of scores", where=path, found="no header", fix=fix)
    return header, map(Line, lines)


def _objects(file: Any, path: Path, fix: str) -> Iterator[dict[str, Any]]:
    with file:
        for number, text in enumerate(file, start=1):
            try:
                body = json.loads(text)
                if not isinstance(body, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                where = f"{path}:{number}"
                raise MieError("not a file of scores", where=where, found=error, fix=fix) from None
            yield body


def write_scores_file(path: Path, header: Mapping[str, Any], parts: Iterable[bytes]) -> None:
    """The whole file or nothing; `parts` are whole lines, as `encode_line` makes them."""
    make_folder(path.parent)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write((json.dumps(header, ensure_ascii=False) + "\n").encode())
        file.writelines(parts)
    remove_scratch(path.parent, path.name)  # of a call that was killed; other variants may be being written


def encode_line(body: Mapping[str, Any]) -> str:
    return json.dumps(plain(body), ensure_ascii=False, separators=(",", ":")) + "\n"


def read_summary(path: Path) -> dict[str, Any]:
    """The document of a summary; `MieError` for anything else."""
    document = read_document(path, "summary of scores")
    if not isinstance(document.get("groups"), list):
        raise MieError(
            "not a summary of scores",
            where=path,
            expected="an object with `groups`",
            fix="run `mie score` again",
        )
    return document


def write_summary(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Write the document and return it as JSON has it: no number is null, infinity is the text "inf"."""
    body: dict[str, Any] = plain(null_for_nan(document))
    make_folder(path.parent)
    write_document(path, body, allow_nan=False)
    remove_scratch(path.parent, path.name)
    return body


def number(value: Any) -> float:
    """A number of a document: null and "nan" are none, "inf" is infinite."""
    return math.nan if value is None else float(value)


_WORST: Final = float(np.finfo(np.float64).min)
_NOTHING: Final = Attempt({"k": 0, "metrics": {}, "unscored": {}})


@dataclass(frozen=True, slots=True)
class Selected:
    """One metric at one k: `(N,)` values, nan where there is none."""

    values: NDArray[np.float64]
    applies: NDArray[np.bool_]
    missing: NDArray[np.bool_]  # no attempt has an output, and the variant counts that as 0
    attempts: NDArray[np.intp]  # which attempt the value comes from; 0 where there is none

    @property
    def scored(self) -> NDArray[np.bool_]:
        return self.applies & ~np.isnan(self.values)


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """N samples with K attempts each."""

    header: Mapping[str, Any]
    ids: list[str]
    groups: Mapping[str, NDArray[Any]]  # key -> (N,) names
    identities: list[Identity]  # (N,)
    clusters: Clusters  # (N,): samples of one patient together, else of one image
    applies: Mapping[str, NDArray[np.bool_]]  # metric -> (N,)
    values: Mapping[str, NDArray[np.float64]]  # metric -> (N, K), nan where not scored
    absent: NDArray[np.bool_]  # (N, K): no output to look at
    drift: NDArray[np.int8]  # (N, K): -1 not measured, 0 in place, 1 moved
    not_covered: Mapping[str, int]  # perspective -> samples that no metric applies to

    @property
    def attempts(self) -> int:
        return self.absent.shape[1]

    @property
    def keys(self) -> list[tuple[str, int]]:
        """(metric, k) for pass@1 and pass@K of every metric."""
        return [(name, k) for name in self.values for k in dict.fromkeys((1, self.attempts))]

    def metric(self, name: str) -> Metric:
        """What is known about a metric of these scores."""
        return metric_of(self.header, name)

    def select(self, name: str, k: int) -> Selected:
        """One value for each sample: pass@1, or pass@K for k = the number of attempts."""
        if (name, k) not in self.keys:
            known = [f"{metric}@{j}" for metric, j in self.keys]
            raise ConfigError(
                f"no metric {name}@{k} in these scores",
                expected=", ".join(known) or "none: nothing was scored",
                fix=suggestion(f"{name}@{k}", known),
            )
        values, applies = self.values[name], self.applies[name]
        as_released = self.header["variant"] == "as_released"
        if k > 1:
            goodness = values if self.metric(name).higher_is_better else -values
            # An infinitely bad number is still better than none.
            attempts = np.where(np.isnan(values), -np.inf, np.maximum(goodness, _WORST)).argmax(axis=1)
        elif as_released:
            attempts = (~self.absent).argmax(axis=1)
        else:
            attempts = np.zeros(len(values), np.intp)
        out = values[np.arange(len(values)), attempts]
        missing = self._missing(name)
        out[missing] = 0.0
        return Selected(out, applies, missing, np.asarray(attempts, np.intp))

    def average(self, name: str) -> Selected:
        """One value for each sample: mean@K, over those of its attempts that have a number.

        A sample none of whose attempts has one is unscored, or counts 0 where its variant says so.
        """
        values, applies = self.values[name], self.applies[name]
        there = ~np.isnan(values)
        with np.errstate(invalid="ignore"):  # 0 / 0 where no attempt has a number
            out = np.where(there, values, 0.0).sum(axis=1) / there.sum(axis=1)
        missing = self._missing(name)
        out[missing] = 0.0
        return Selected(out, applies, missing, np.zeros(len(out), np.intp))

    def spread(self, name: str, rows: NDArray[np.bool_]) -> float:
        """How far a table's number moves from attempt to attempt: the standard deviation of K means.

        Each is over the same samples, those of `rows` with a finite number at every attempt; nan for fewer
        than two attempts, or where there is no such sample.
        """
        values = self.values[name][rows & self.applies[name]]
        whole = values[np.isfinite(values).all(axis=1)]
        if self.attempts < 2 or not len(whole):
            return math.nan
        return float(whole.mean(axis=0).std(ddof=1))

    def rows_of(self, group: Mapping[str, str]) -> NDArray[np.bool_]:
        """Which samples belong to a group of a summary, `(N,)`."""
        inside = np.ones(len(self.ids), np.bool_)
        for key, value in group.items():
            inside &= self.groups[key].astype(str) == value
        return inside

    def _missing(self, name: str) -> NDArray[np.bool_]:
        """No attempt has an output, and the variant counts that as 0."""
        as_released = self.header["variant"] == "as_released"
        counted = bool(self.header.get("missing_as_zero", as_released))
        return self.applies[name] & self.absent.all(axis=1) & counted


def metric_of(header: Mapping[str, Any], name: str) -> Metric:
    """The metric as the header has written it down, else as its benchmark has it, else by its name."""
    written = header.get("specs", {}).get(name)
    if written is not None:
        return Metric.from_record(name, written)
    from mie.scoring.benchmarks import BENCHMARKS  # benchmarks read results

    benchmark = str(header.get("protocol"))
    return BENCHMARKS[benchmark].metric(name) if benchmark in BENCHMARKS else find_metric(name)


def split_key(key: str) -> tuple[str, int]:
    """Name and k of a metric's key.

    >>> split_key("dice@3")
    ('dice', 3)
    """
    name, at, k = key.partition("@")
    if at and not k.isdecimal():
        raise ConfigError("not a metric", expected="a name such as dice@1", found=key)
    return name, int(k) if at else 1


def read_score_table(path: Path) -> ScoreTable:
    """The whole file, a line at a time: what stays in memory is numbers and names."""
    header, lines = read_scores_file(path)
    try:
        return _table(header, lines)
    except (ValueError, KeyError) as error:
        raise MieError(
            "not a file of scores",
            where=path,
            found=f"{type(error).__name__}: {error}",
            fix="run `mie score` again",
        ) from None


def _table(header: Mapping[str, Any], lines: Iterable[Line]) -> ScoreTable:
    attempts, names = int(header["attempts"]), list(header["metrics"])
    column = {name: at for at, name in enumerate(names)}
    ids: list[str] = []
    identities: list[Identity] = []
    groups: dict[str, list[str]] = {key: [] for key in (*GROUP_KEYS, *header.get("groups", ()))}
    cells = array("d")  # metrics x attempts of the first sample, of the second, ...
    applies, absent, drift = array("b"), array("b"), array("b")
    not_covered: Counter[str] = Counter()
    for line in lines:
        ids.append(line.id)
        identities.append((line.patient, f"{line.group['source']} {line.case}"))
        for key, names_of in groups.items():
            names_of.append(sys.intern(line.group[key]))
        if not line.applies:
            not_covered[line.group["perspective"]] += 1
        applies.extend(name in line.applies for name in names)
        by_k = {attempt.k: attempt for attempt in line.attempts}
        for k in range(attempts):
            attempt = by_k.get(k, _NOTHING)
            absent.append(not attempt.has_output)
            drift.append(attempt.drift["flag"] if attempt.drift else -1)
            row = [math.nan] * len(names)
            for name, value in attempt.values.items():
                row[column[name]] = value
            cells.extend(row)
    values = np.array(cells).reshape(len(ids), attempts, len(names))
    applied = np.array(applies, np.bool_).reshape(len(ids), len(names))
    used = [name for name in names if applied[:, column[name]].any()]
    return ScoreTable(
        header=header,
        ids=ids,
        groups={key: np.array(found, object) for key, found in groups.items()},
        identities=identities,
        clusters=clusters_of(*zip(*identities, strict=True)) if ids else clusters_of([], []),
        applies={name: applied[:, column[name]] for name in used},
        values={name: values[:, :, column[name]] for name in used},
        absent=np.array(absent, np.bool_).reshape(len(ids), attempts),
        drift=np.array(drift, np.int8).reshape(len(ids), attempts),
        not_covered=dict(not_covered),
    )
