"""The scores of a run as arrays, and the one number a sample gets from its attempts.

The variants differ in what an attempt without an output does. `paper`: pass@1 is attempt 0, and a sample
without it is unscored. `as_released`: pass@1 is the first attempt that exists, and where the header says
`missing_as_zero` a sample with no output at all counts 0. In both, pass@k is the best of the attempts that
exist. Nothing else in the package chooses among attempts.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.core.registry import suggestion
from mie.errors import ConfigError, MieError
from mie.scoring.clusters import Clusters, Identity, clusters_of
from mie.scoring.lines import GROUP_KEYS, Attempt, Line, read_scores_file
from mie.scoring.metric import Metric, find_metric

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
        missing = applies & self.absent.all(axis=1) & self.header.get("missing_as_zero", as_released)
        out[missing] = 0.0
        return Selected(out, applies, missing, np.asarray(attempts, np.intp))


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
