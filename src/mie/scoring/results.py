"""A file of scores (`scores/<protocol>.<variant>.jsonl`) as arrays, and the one number a sample gets from it.

The variants differ in what an attempt without an output does. `paper`: pass@1 is attempt 0, and a sample
without it is unscored. `as_released`: pass@1 is the first attempt that exists, and where the header says
`missing_as_zero` a sample with no output at all counts 0. In both, pass@k is the best of the attempts that
exist.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.core.registry import nearest_name
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.scoring.clusters import Clusters, Identity, clusters_of

if TYPE_CHECKING:
    import pandas as pd

GROUP_KEYS: Final = ("perspective", "task", "modality", "anatomy", "target", "source")
# Metrics where less is better, by the beginning of their name.
LOWER_IS_BETTER: Final = ("lpips", "fid", "kid")
# The values that a metric can take, by its whole name: an interval of its mean stays within them.
_SHARES: Final = ("dice", "dice_guarded", "class_dice", "p_acc", "ea", "vq", "ea_plain", "vq_plain", "qa")
RANGES: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(_SHARES, (0.0, 1.0)),
    **dict.fromkeys(("memory", "understanding", "backtracking"), (0.0, 1.0)),
    **dict.fromkeys(("imgedit", "adherence", "quality", "preservation", "uge"), (1.0, 5.0)),
    **dict.fromkeys((f"rubric_{number}" for number in range(1, 9)), (1.0, 5.0)),
    **dict.fromkeys(("ssim", "b_ssim", "cp"), (-1.0, 1.0)),
    **dict.fromkeys(("psnr", "b_psnr"), (0.0, math.inf)),
    "rubric": (0.0, 100.0),
}
NO_OUTPUT: Final = "*"  # the key of `unscored` that stands for every metric of the attempt
_NOTHING: Final[Mapping[str, Any]] = {"metrics": {}, "unscored": {}}


@dataclass(frozen=True, slots=True)
class Selected:
    """One metric at one k: `(N,)` values, nan where there is none."""

    values: NDArray[np.float64]
    applies: NDArray[np.bool_]
    missing: NDArray[np.bool_]  # no attempt has an output, and the variant counts that as 0

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

    def select(self, name: str, k: int) -> Selected:
        """One value for each sample: pass@1, or pass@K for k = the number of attempts."""
        if (name, k) not in self.keys:
            known = [f"{metric}@{j}" for metric, j in self.keys]
            near = nearest_name(f"{name}@{k}", known)
            raise ConfigError(
                f"no metric {name}@{k} in these scores",
                expected=", ".join(known) or "none: nothing was scored",
                fix=f"did you mean {near!r}?" if near else None,
            )
        values, applies = self.values[name], self.applies[name]
        as_released = self.header["variant"] == "as_released"
        if k > 1:
            sign = -1.0 if name.startswith(LOWER_IS_BETTER) else 1.0
            best = sign * np.where(np.isnan(values), -np.inf, sign * values).max(axis=1)
            out = np.where(np.isnan(values).all(axis=1), np.nan, best)
        elif as_released:
            out = values[np.arange(len(values)), (~self.absent).argmax(axis=1)]
        else:
            out = values[:, 0].copy()
        missing = applies & self.absent.all(axis=1) & self.header.get("missing_as_zero", as_released)
        out[missing] = 0.0
        return Selected(out, applies, missing)


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
    try:
        with path.open(encoding="utf-8") as file:
            return _table(json.loads(file.readline()), map(json.loads, file))
    except FileNotFoundError:
        raise MieError("no scores here", where=path, fix="run `mie score` first") from None
    except (ValueError, KeyError) as error:
        raise MieError(
            "not a file of scores",
            where=path,
            found=f"{type(error).__name__}: {error}",
            fix="run `mie score` again",
        ) from None


def _table(header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> ScoreTable:
    attempts, names = int(header["attempts"]), list(header["metrics"])
    column = {name: at for at, name in enumerate(names)}
    ids: list[str] = []
    identities: list[Identity] = []
    groups: dict[str, list[str]] = {key: [] for key in (*GROUP_KEYS, *header.get("groups", ()))}
    cells = array("d")  # metrics x attempts of the first sample, of the second, ...
    applies, absent, drift = array("b"), array("b"), array("b")
    not_covered: Counter[str] = Counter()
    for line in lines:
        ids.append(line["id"])
        identities.append((line["patient"], f"{line['group']['source']} {line['case']}"))
        for key, names_of in groups.items():
            names_of.append(sys.intern(line["group"][key]))
        if not line["applies"]:
            not_covered[line["group"]["perspective"]] += 1
        applies.extend(name in line["applies"] for name in names)
        by_k = {attempt["k"]: attempt for attempt in line["attempts"]}
        for k in range(attempts):
            attempt = by_k.get(k, _NOTHING)
            absent.append(NO_OUTPUT in attempt["unscored"])
            drift.append(attempt["drift"]["flag"] if attempt.get("drift") else -1)
            row = [math.nan] * len(names)
            for name, value in attempt["metrics"].items():
                row[column[name]] = float(value)
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


# Runs with all their scores, under the names that people know them by.


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRun:
    """A run's numbers by key (`dice@1`): sample -> value, None where the metric applies but has none."""

    name: str
    aliases: frozenset[str]  # folder, path, editor; none of them shared with another run
    values: Mapping[str, Mapping[str, float | None]]
    identities: Mapping[str, Identity]  # of each sample


def read_scored_runs(
    folders: Sequence[Path | str], *, variant: str = "paper", protocol: str | None = None
) -> list[ScoredRun]:
    """The runs with their scores by one protocol and variant; without a name, by the only one they share.

    Refused where the runs are of different datasets, or were scored in different ways.
    """
    runs = [Run.open(folder) for folder in folders]
    names = _names(runs)
    files = [_files(run, variant) for run in runs]
    shared = [name for name in (files[0] if files else {}) if all(name in found for found in files)]
    protocols = [name for name in shared if protocol in (None, name)]
    if runs and not protocols:
        raise MieError(
            "the runs have no scores in common",
            where=", ".join(map(str, folders)),
            expected=f"scores/{protocol or 'PROTOCOL'}.{variant}.jsonl in each",
            found="; ".join(f"{n}: {', '.join(f) or 'none'}" for n, f in zip(names, files, strict=True)),
            fix="run `mie score` on each",
        )
    if len(protocols) > 1:
        raise ConfigError(
            "the runs are scored by several protocols",
            expected="one of them",
            found=", ".join(protocols),
            fix="choose one with --protocol",
        )
    tables = [read_score_table(found[protocols[0]]) for found in files]
    _check_same(dict(zip(names, tables, strict=True)))
    aliases = _aliases(runs, names, folders)
    return [
        ScoredRun(name, known, _values(table), dict(zip(table.ids, table.identities, strict=True)))
        for name, known, table in zip(names, aliases, tables, strict=True)
    ]


def _files(run: Run, variant: str) -> dict[str, Path]:
    """Protocol -> file."""
    ending = f".{variant}.jsonl"
    found = sorted((run.folder / "scores").glob(f"*{ending}"))
    return {path.name.removesuffix(ending): path for path in found}


def _values(table: ScoreTable) -> dict[str, dict[str, float | None]]:
    out: dict[str, dict[str, float | None]] = {}
    for name, k in table.keys:
        chosen = table.select(name, k)
        out[f"{name}@{k}"] = {
            table.ids[row]: float(chosen.values[row]) if chosen.scored[row] else None
            for row in np.flatnonzero(chosen.applies)
        }
    return out


def _names(runs: Sequence[Run]) -> list[str]:
    """By folder; by the whole path where two folders have one name."""
    names = [run.folder.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


def _aliases(
    runs: Sequence[Run], names: Sequence[str], folders: Sequence[Path | str]
) -> list[frozenset[str]]:
    def editor(run: Run) -> set[str]:
        about: Mapping[str, Any] = run.info.get("editor", {})
        return {str(about[key]) for key in ("name", "spec") if about.get(key)}

    sets = [
        {name, str(folder), run.folder.resolve().name} | editor(run)
        for run, name, folder in zip(runs, names, folders, strict=True)
    ]
    times = Counter(alias for known in sets for alias in known)
    return [frozenset(alias for alias in known if times[alias] == 1) for known in sets]


def _check_same(tables: Mapping[str, ScoreTable]) -> None:
    """One dataset, one way of scoring and, where a judge scored, one judge."""
    for key in ("dataset_digest", "version", "judge"):
        found = {name: table.header.get(key) for name, table in tables.items()}
        if key == "judge":  # what may move its numbers, not what it cost
            judges = {name: judge or {} for name, judge in found.items()}
            differ = judges_differ(list(judges.values()))
            found = {name: yardstick(judge) for name, judge in judges.items()}
        else:
            differ = len(set(map(str, found.values()))) > 1
        if differ:
            raise ConfigError(
                f"the runs differ in {key}",
                expected="one dataset, scored in one way",
                found=", ".join(f"{name}: {str(value)[:40]}" for name, value in found.items()),
                fix="compare runs on the same dataset, and score them the same way",
            )


# A run's scores as a table for pandas.

# type: ignore[import-untyped, unused-ignore]


def read_scores(run_folder: Path | str, protocol: str = "miedb", variant: str = "paper") -> pd.DataFrame:
    """One row for each sample and attempt: who it is, its metrics, why some have no number.

    Columns: `id`, `perspective`, `task`, `modality`, `anatomy`, `target`, `source`, `patient`, `k`, one for
    each metric (nan where it does not apply or was not scored), `class_dice_red` and the like, `unscored`
    (the reasons as text, "" where there are none), and `drift_dx`, `drift_dy`, `drift_scale`,
    `drift_response`, `drift_flag` where it was measured.
    """
    import pandas as pd

    path = Path(run_folder) / "scores" / f"{protocol}.{variant}.jsonl"
    if not path.is_file():
        raise MieError(
            "this run has no such scores",
            where=path,
            fix=f"run `mie score {run_folder} --protocol {protocol} --variant {variant}` first",
        )
    with path.open(encoding="utf-8") as file:
        header = json.loads(file.readline())
        rows = [row for line in file for row in _rows(json.loads(line))]
    frame = pd.DataFrame(rows)
    for name in header["metrics"]:
        if name in frame:
            frame[name] = frame[name].astype("float64")  # "inf" is text in the file
    return frame


def _rows(line: dict[str, Any]) -> list[dict[str, Any]]:
    who = {"id": line["id"], **line["group"], "patient": line["patient"]}
    return [
        {
            **who,
            "k": attempt["k"],
            **attempt["metrics"],
            **{f"class_dice_{colour}": value for colour, value in attempt.get("classes", {}).items()},
            "unscored": "; ".join(f"{name}: {reason}" for name, reason in attempt["unscored"].items()),
            **{f"drift_{name}": value for name, value in attempt.get("drift", {}).items()},
        }
        for attempt in line["attempts"]
    ]


def judges_differ(judges: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any two of these would grade differently: another model, setting, or text of one prompt.

    A prompt that only one of them was asked with says nothing: a run may have no output of some kind.
    """
    prompts: dict[str, set[str]] = {}
    for judge in judges:
        for name, sha256 in judge.get("prompts", {}).items():
            prompts.setdefault(name, set()).add(sha256)
    alone = {yardstick({**judge, "prompts": {}} if judge else {}) for judge in judges}
    return len(alone) > 1 or any(len(texts) > 1 for texts in prompts.values())


def yardstick(judge: Mapping[str, Any]) -> str:
    """All that may move a judge's numbers, in words."""
    if not judge:
        return "no judge"
    words = [f"{judge['model']} at {judge['provider']}"]
    words += [f"answered by {model}" for model in judge["answered_by"] if model != judge["model"]]
    words += [f"{key} {value}" for key, value in sorted(judge["parameters"].items())]
    words += [f"prompt {name} ({sha256[:8]})" for name, sha256 in sorted(judge["prompts"].items())]
    return ", ".join(words)
