"""How often a 95% interval holds the truth, by number of patients: ours beside a percentile bootstrap.

Patients have unequally many samples (log-normal) and differ in how well they are edited. Outcomes are skewed
and bounded, as DICE is, or successes and failures, as P-ACC is. Two patients have no interval of ours; what
it would be is printed in brackets, with its width: that is why the least is 3.

    python bench/intervals.py [--trials 2000]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mie.scoring.statistics import intervals
from mie.scoring.statistics.intervals import Interval, Range, macro_interval, mean_interval
from mie.scoring.statistics.preference import leaderboard

PATIENTS = (2, 3, 4, 5, 6, 10, 20, 40)
REPLICATES = 1000
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """`draw(rng, patients)` gives the value of each row; rows of one patient share what is drawn for it."""

    name: str
    truth: float
    draw: Callable[[np.random.Generator, NDArray[np.int64]], Floats]
    bounds: Range | None = (0.0, 1.0)


def beta(
    a: float, b: float, *, binary: bool = False
) -> Callable[[np.random.Generator, NDArray[np.int64]], Floats]:
    """Patients' means are Beta(a, b); their samples lie around it, or are 1 that often and else 0."""

    def draw(rng: np.random.Generator, patients: NDArray[np.int64]) -> Floats:
        mean = np.clip(rng.beta(a, b, patients.max() + 1), 0.001, 0.999)[patients]
        values = rng.random(len(mean)) < mean if binary else rng.beta(6 * mean, 6 * (1 - mean))
        return np.asarray(values, np.float64)

    return draw


OUTCOMES = (
    Outcome("DICE, mean .80", 0.8, beta(4, 1)),
    Outcome("DICE, mean .25", 0.25, beta(0.75, 2.25)),
    Outcome("P-ACC of 50%", 0.5, beta(1.5, 1.5, binary=True)),
    Outcome("P-ACC of 80%", 0.8, beta(2.4, 0.6, binary=True)),
    Outcome("P-ACC of 95%", 0.95, beta(2.85, 0.15, binary=True)),
)


def rows_of(rng: np.random.Generator, patients: int) -> NDArray[np.int64]:
    """The patient of each row."""
    return np.repeat(np.arange(patients), 1 + np.floor(np.exp(rng.normal(1.2, 0.9, patients))).astype(int))


def trials(outcome: Outcome, patients: int, count: int) -> Iterator[tuple[Floats, NDArray[np.int64]]]:
    rng = np.random.default_rng([patients, count])
    for _ in range(count):
        rows = rows_of(rng, patients)
        yield outcome.draw(rng, rows), rows


def percentile(values: Floats, rows: NDArray[np.int64], times: Floats) -> tuple[float, float]:
    """The bootstrap that was used before; `times` `(B, C)` is how often each patient is drawn."""
    means = (times @ np.bincount(rows, weights=values)) / (times @ np.bincount(rows))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def share_held(bounds: list[tuple[float, float]], truth: float) -> float:
    found = np.array(bounds)
    return float(((found[:, 0] - 1e-9 <= truth) & (truth <= found[:, 1] + 1e-9)).mean())


def means(count: int) -> None:
    print(f"Means: 95% intervals that hold the truth (median width), {count} trials")
    print(f"{'outcome':16}{'':12}" + "".join(f"{n:>12}" for n in PATIENTS))
    for outcome in OUTCOMES:
        lines: dict[str, list[str]] = {"ours": [], "bootstrap": []}
        for patients in PATIENTS:
            times = np.random.default_rng(0).multinomial(
                patients, np.full(patients, 1 / patients), REPLICATES
            )
            ours, theirs = [], []
            for values, rows in trials(outcome, patients, count):
                found = mean_interval(values, rows, bounds=outcome.bounds)
                ours.append((found.low, found.high))
                theirs.append(percentile(values, rows, times.astype(np.float64)))
            for name, bounds in (("ours", ours), ("bootstrap", theirs)):
                width = float(np.median(np.diff(np.array(bounds))))
                lines[name].append(f"{share_held(bounds, outcome.truth):.0%} ({width:.2f})")
        for name, cells in lines.items():
            if name == "ours":
                cells[0] = f"[{cells[0]}]"
            print(f"{outcome.name:16}{name:12}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


def strata(count: int) -> None:
    """Patients who lie in several strata, and half of the strata with one patient each."""
    outcome = OUTCOMES[0]
    print(f"\nMeans over strata, {outcome.name}: ours, {count} trials")
    for patients, kinds in ((6, 3), (10, 4), (20, 8), (40, 8)):
        rng = np.random.default_rng([patients, kinds])
        found: dict[str, list[Interval]] = {"crossed": [], "half single": []}
        for _ in range(count):
            rows = rows_of(rng, patients)
            values = outcome.draw(rng, rows)
            found["crossed"].append(macro_interval(values, rng.integers(0, kinds, len(rows)), rows))
            single = kinds // 2
            shared = single + rows % (kinds - single)
            found["half single"].append(macro_interval(values, np.where(rows < single, rows, shared), rows))
        held = {
            name: share_held([(one.low, one.high) for one in some if not one.reason], outcome.truth)
            for name, some in found.items()
        }
        words = ", ".join(f"{name} {share:.0%}" for name, share in held.items())
        print(f"  {patients} patients, {kinds} strata: {words}", flush=True)


def strengths(count: int) -> None:
    """Bradley-Terry: patients differ in which model suits them; the truth is the fit of 2,500 patients."""
    print(f"\nBradley-Terry strengths: ours, {count} trials")
    rng = np.random.default_rng(0)
    rankings, rows = _rankings(rng, 2500)
    truth = {one.model: one.strength for one in leaderboard(rankings, 0 * rows, prior=0)}
    for patients in (3, 5, 10, 40):
        held = []
        for _ in range(count):
            for one in leaderboard(*_rankings(rng, patients)):
                held.append(one.ci95[0] <= truth[one.model] <= one.ci95[1])
        print(f"  {patients} patients: {np.mean(held):.0%}", flush=True)


def _rankings(rng: np.random.Generator, patients: int) -> tuple[list[dict[str, float]], NDArray[np.int64]]:
    rows = rows_of(rng, patients)
    suits = np.linspace(1, -1, 4) + 0.6 * rng.normal(size=(patients, 4))
    places = np.argsort(np.argsort(-(suits[rows] + rng.gumbel(size=(len(rows), 4)))))
    return [dict(zip("abcd", row.tolist(), strict=True)) for row in places], rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    count = parser.parse_args().trials
    least = intervals.MIN_PATIENTS
    intervals.MIN_PATIENTS = 2  # type: ignore[misc]  # to show what it would be
    means(count)
    intervals.MIN_PATIENTS = least  # type: ignore[misc]
    strata(count // 4)
    strengths(count // 10)


if __name__ == "__main__":
    main()
