"""Metrics and judges against people: who orders the models as people do, and who predicts their scores.

For each sample the models are ranked by people and by the metric; the two orders are correlated over the
models, and the correlations averaged over the samples (MedEBench's human correlation). A sample where fewer
than two models have both, or where no rater placed all of them, has no correlation: it is unscored and
counted, never a 0. Where people gave scores, isotonic regression brings the metric to their scale.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from mie.errors import MieError
from mie.scoring.clusters import Clusters, Identity, clusters_of_samples
from mie.scoring.results import ScoredRun, read_scored_runs, split_key
from mie.scoring.statistics.arrays import Floats, numbers
from mie.scoring.statistics.intervals import mean_interval
from mie.scoring.statistics.people import Human, Rating, choose, rater_agreement, read_ratings
from mie.scoring.statistics.preference import KINDS, leaderboard
from mie.scoring.statistics.ranks import (
    kendall_tau_b,
    quadratic_kappa,
    spearman,
    spearman_formula,
    within,
)

FOLDS: Final = 5
CORRELATIONS: Final[Mapping[str, Callable[[ArrayLike, ArrayLike], float]]] = {
    "spearman_formula": spearman_formula,
    "spearman": spearman,
    "kendall_tau_b": kendall_tau_b,
}


@dataclass(frozen=True, slots=True)
class Isotonic:
    """A rising curve through knots `(K,)`; straight between them, flat beyond the first and the last."""

    x: Floats
    y: Floats

    def __call__(self, values: ArrayLike) -> Floats:
        return np.interp(np.asarray(values, np.float64), self.x, self.y)


def fit_isotonic(x: ArrayLike, y: ArrayLike) -> Isotonic:
    """Fit the curve that never falls with the least squared error.

    Values of equal `x` count as one with their mean. For a metric where lower is better give `-x`. A nan and
    an infinite value are refused (`MieError`).

    >>> fit_isotonic([1, 2, 3, 4], [1, 3, 2, 4])([1, 2, 3, 4]).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    from scipy.optimize import isotonic_regression

    places, inverse, times = np.unique(numbers(x, finite=True), return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=numbers(y, finite=True)) / times
    levels = isotonic_regression(means, weights=times).x
    # Only the ends of a level are needed to draw it.
    inner = np.zeros(len(levels), bool)
    inner[1:-1] = (levels[1:-1] == levels[:-2]) & (levels[1:-1] == levels[2:])
    return Isotonic(places[~inner], levels[~inner])


@dataclass(frozen=True, slots=True)
class Held:
    """Predictions for what was held out: `(N,)` errors of the curve, and of the mean alone."""

    errors: Floats
    errors_of_mean: Floats
    folds: int


def cross_validated(
    x: ArrayLike, y: ArrayLike, groups: ArrayLike, *, folds: int = FOLDS, seed: int = 0
) -> Held | None:
    """Fit on all folds but one, predict that one, in turn. Values of one group (a patient) share a fold.

    None for fewer than two groups: there is nothing to hold out. A nan and an infinite value are refused.
    """
    scores, wanted = numbers(x, finite=True), numbers(y, finite=True)
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    folds = min(folds, len(names))
    if folds < 2:
        return None
    fold = (np.random.default_rng(seed).permutation(len(names)) % folds)[codes]
    errors, of_mean = np.empty(len(wanted)), np.empty(len(wanted))
    for number in range(folds):
        out = fold == number
        errors[out] = fit_isotonic(scores[~out], wanted[~out])(scores[out]) - wanted[out]
        of_mean[out] = wanted[~out].mean() - wanted[out]
    return Held(errors, of_mean, folds)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of all runs: sample -> run's name -> value."""

    key: str
    values: Mapping[str, Mapping[str, float]]
    higher_is_better: bool


def agree(
    runs: Sequence[Path | str],
    human_file: Path | str,
    *,
    ratings: Sequence[Rating] | None = None,
    criterion: str | None = None,
    benchmark: str | None = None,
    variant: str = "paper",
    metrics: Sequence[str] = (),
    same_scale: Sequence[str] = (),
) -> dict[str, Any]:
    """The document that `mie agree --json` prints, with NumPy numbers in it.

    `runs` are scored runs on one dataset; without any, only people are compared with each other. `metrics`
    (`dice@1`) chooses some of those that were scored; `same_scale` names those whose numbers are on the
    raters' own scale. `ratings` are those of the file where they were read already.
    """
    human = choose(read_ratings(human_file) if ratings is None else ratings, criterion, where=human_file)
    scored = read_scored_runs(runs, variant=variant, benchmark=benchmark)
    document = compare_with_people(human, scored, metrics=metrics, same_scale=same_scale)
    return {
        "human": {"file": str(human_file), **document.pop("human")},
        "runs": document.pop("runs"),
        "not_among_the_runs": document.pop("not_among_the_runs"),
        "variant": variant,
        **document,
    }


def agree_on_all(
    runs: Sequence[Path | str],
    human_file: Path | str,
    *,
    ratings: Sequence[Rating] | None = None,
    benchmark: str | None = None,
    variant: str = "paper",
    metrics: Sequence[str] = (),
) -> dict[str, Any]:
    """Every metric against every criterion that people answered: `{criterion: the document of agree}`."""
    given = read_ratings(human_file) if ratings is None else ratings
    scored = read_scored_runs(runs, variant=variant, benchmark=benchmark)
    found = {}
    for criterion in dict.fromkeys(rating.criterion for rating in given):
        human = choose(given, criterion, where=human_file)
        found[criterion or "overall"] = compare_with_people(human, scored, metrics=metrics)
    return {"human": str(human_file), "variant": variant, "criteria": found}


def compare_with_people(
    human: Human, scored: Sequence[ScoredRun], *, metrics: Sequence[str] = (), same_scale: Sequence[str] = ()
) -> dict[str, Any]:
    """People with each other and, where there are runs, with their metrics: the document of `agree`."""
    identities = {sample: identity for run in scored for sample, identity in run.identities.items()}
    names = _match(human, scored)
    found = _metrics(scored, metrics)
    steady = {split_key(key)[0] for key in same_scale}.union(*(run.same_scale for run in scored))
    return {
        "human": {
            "criterion": human.criterion,
            "samples": len(human.orders),
            "ratings": human.ratings,
            "models": human.models,
            "not_scored": [sample for sample in human.orders if sample not in identities] if scored else [],
        },
        "runs": {run.name: model for model, run in names.items()},
        "not_among_the_runs": [model for model in human.models if model not in names],
        "raters": rater_agreement(human, identities),
        "metrics": {m.key: _agreement(m, human, names, identities, steady) for m in found},
        "leaderboard": _leaderboards(human, identities),
    }


def _agreement(
    metric: Metric,
    human: Human,
    names: Mapping[str, ScoredRun],
    identities: Mapping[str, Identity],
    same_scale: set[str],
) -> dict[str, Any]:
    entry: dict[str, Any] = {"higher_is_better": metric.higher_is_better}
    entry |= _correlations(metric, human, names, identities)
    entry["system"] = system_correlation(metric, human, names)
    if human.scores:
        entry |= _on_scores(metric, human, names, identities, split_key(metric.key)[0] in same_scale)
    return entry


def _correlations(
    metric: Metric, human: Human, names: Mapping[str, ScoredRun], identities: Mapping[str, Identity]
) -> dict[str, Any]:
    """Each coefficient's mean over samples; `n` samples have it, `unscored` do not, and why."""
    rows: dict[str, list[float]] = {name: [] for name in CORRELATIONS}
    samples: dict[str, list[str]] = {name: [] for name in CORRELATIONS}
    reasons: dict[str, Counter[str]] = {name: Counter() for name in CORRELATIONS}
    applies = partial = 0
    for sample, by_rater in human.orders.items():
        if sample not in metric.values:
            continue  # the metric does not apply to it
        applies += 1
        placed = sorted({m for order in by_rater.values() for m in order if m in names})
        values = {m: v for m in placed if (v := metric.values[sample].get(names[m].name)) is not None}
        order, reason = _order(human, sample, list(values))
        partial += order is not None and len(values) < len(placed)
        sign = -1 if metric.higher_is_better else 1  # rank 1 is best on both sides
        for name, correlate in CORRELATIONS.items():
            value = np.nan if order is None else correlate(sign * np.array(list(values.values())), order)
            if np.isnan(value):
                reasons[name][reason or "all models tied"] += 1
            else:
                rows[name].append(value)
                samples[name].append(sample)
    intervals = {
        name: mean_interval(rows[name], clusters_of_samples(samples[name], identities), bounds=(-1, 1))
        for name in CORRELATIONS
    }
    return {
        "partial": partial,  # samples where some of the placed models have no number
        **{
            name: {
                "mean": interval.value,
                "n": len(rows[name]),
                "unscored": applies - len(rows[name]),
                **interval.entry,
                "reasons": dict(reasons[name]),
            }
            for name, interval in intervals.items()
        },
    }


def system_correlation(metric: Metric, human: Human, names: Mapping[str, ScoredRun]) -> dict[str, Any]:
    """Whether the metric orders whole models as people do: the correlation over models of both means.

    Each mean is over the same samples: those where every model has a number and a rater placed all of them.
    """
    models = sorted(names)
    values: list[list[float]] = []
    ranks: list[Floats] = []
    for sample in human.orders:
        row = metric.values.get(sample, {})
        order = human.consensus(sample, models) if len(models) > 1 else None
        if order is not None and all(names[m].name in row for m in models):
            values.append([row[names[m].name] for m in models])
            ranks.append(order)
    counts = {"models": len(models), "samples": len(values)}
    if not values:
        return {**counts, "spearman": np.nan, "kendall_tau_b": np.nan}
    sign = -1 if metric.higher_is_better else 1
    means, places = sign * np.mean(values, axis=0), np.mean(ranks, axis=0)
    return {
        **counts,
        "spearman": spearman(means, places),
        "kendall_tau_b": kendall_tau_b(means, places),
        "means": dict(zip(models, np.mean(values, axis=0).tolist(), strict=True)),
        "ranks": dict(zip(models, places.tolist(), strict=True)),
    }


def _order(human: Human, sample: str, models: list[str]) -> tuple[Floats | None, str]:
    if len(models) < 2:
        return None, "fewer than two models with both"
    order = human.consensus(sample, models)
    return (None, "no rater placed all models") if order is None else (order, "")


def _on_scores(
    metric: Metric,
    human: Human,
    names: Mapping[str, ScoredRun],
    identities: Mapping[str, Identity],
    same_scale: bool,
) -> dict[str, Any]:
    """Against people's mean score for each output: calibration, and on one scale alignment and kappa."""
    found: list[tuple[float, float, str]] = []
    applies = 0
    for sample, by_model in human.scores.items():
        for model, by_rater in by_model.items():
            if model not in names or sample not in metric.values:
                continue
            applies += 1
            value = metric.values[sample].get(names[model].name)
            if value is not None and np.isfinite(value):
                found.append((value, float(np.mean(list(by_rater.values()))), sample))
    if not found:
        return {}
    values, wanted = np.array([f[0] for f in found]), np.array([f[1] for f in found])
    groups = clusters_of_samples([f[2] for f in found], identities)
    counts = {"n": len(found), "unscored": applies - len(found)}
    out: dict[str, Any] = {
        "calibration": counts | _calibration(values if metric.higher_is_better else -values, wanted, groups)
    }
    if same_scale:
        near = within(values, wanted)
        interval = mean_interval(near, groups, bounds=(0, 1))
        out["within_one"] = {"mean": interval.value, **counts, **interval.entry}
        out["quadratic_kappa"] = {"value": quadratic_kappa(values, wanted), **counts}
    return out


def _calibration(values: Floats, wanted: Floats, groups: Clusters) -> dict[str, Any]:
    curve = fit_isotonic(values, wanted)
    held = cross_validated(values, wanted, groups.codes)
    if held is None:
        return {"reason": "one patient: nothing to hold out", "knots": [curve.x, curve.y]}
    interval = mean_interval(np.abs(held.errors), groups, bounds=(0, np.inf))
    return {
        "mae": interval.value,
        **interval.entry,
        "rmse": float(np.sqrt((held.errors**2).mean())),
        # What the mean of all other scores would miss by: a judge worth calibrating misses by less.
        "mae_of_mean": float(np.abs(held.errors_of_mean).mean()),
        "folds": held.folds,
        "knots": [curve.x, curve.y],  # score (turned round where lower is better), people's score
    }


def _leaderboards(human: Human, identities: Mapping[str, Identity]) -> dict[str, Any]:
    rankings, samples = [], []
    for sample, by_rater in human.orders.items():
        for order in by_rater.values():
            if len(order) > 1:
                rankings.append(order)
                samples.append(sample)
    try:
        groups = clusters_of_samples(samples, identities)
        boards = {kind: leaderboard(rankings, groups, kind=kind) for kind in KINDS}
    except MieError as error:  # models that were never compared: the rest of the document still stands
        return {"rankings": len(rankings), "reason": error.reason}
    return {"rankings": len(rankings), **{k: [asdict(one) for one in board] for k, board in boards.items()}}


def _metrics(runs: Sequence[ScoredRun], chosen: Sequence[str]) -> list[Metric]:
    """Those asked for, or pass@1 of everything that every run was scored by."""
    if not runs:
        return []
    shared = [key for key in runs[0].values if all(key in run.values for run in runs)]
    keys = [f"{name}@{k}" for name, k in map(split_key, chosen)] or [k for k in shared if k.endswith("@1")]
    missing = [key for key in keys if key not in shared]
    if missing:
        raise MieError(
            "metrics that not every run has",
            expected=", ".join(shared) or "scores: run `mie score` first",
            found=", ".join(missing),
        )
    out = []
    for key in keys:
        by_sample: dict[str, dict[str, float]] = {}
        for run in runs:
            for sample, value in run.values[key].items():
                row = by_sample.setdefault(sample, {})
                if value is not None:
                    row[run.name] = value
        out.append(Metric(key, by_sample, runs[0].metrics[split_key(key)[0]].higher_is_better))
    return out


def _match(human: Human, runs: Sequence[ScoredRun]) -> dict[str, ScoredRun]:
    """Model as people's file names it -> its run."""
    found = {model: run for model in human.models for run in runs if model in run.aliases}
    twice = [run.name for run, times in Counter(found.values()).items() if times > 1]
    if twice:
        raise MieError(
            "a run is rated under several names",
            expected="one name for each run",
            found=", ".join(model for model, run in found.items() if run.name in twice),
        )
    if runs and not found:
        raise MieError(
            "no rated model is among the runs",
            expected=", ".join(run.name for run in runs),
            found=", ".join(human.models[:10]),
            fix="name runs in the file by their folder, or by their editor",
        )
    return found
