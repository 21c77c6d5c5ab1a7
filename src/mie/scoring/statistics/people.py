"""What people said: the file of ratings that a review exports and `mie agree` reads.

CSV with a header, or JSON lines, with `sample_id`, `rater`, `run` (or `model`), `rank` or `score` (or both),
and where there are several questions a `criterion`. Rank 1 is best and equal ranks are ties; a higher score
is better. Other columns are ignored.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.core.csv_cells import plain_cell
from mie.errors import ConfigError, MieError
from mie.scoring.clusters import Identity, clusters_of_samples
from mie.scoring.statistics.arrays import Floats
from mie.scoring.statistics.intervals import mean_interval
from mie.scoring.statistics.ranks import (
    LEVELS,
    average_ranks,
    kendall_w,
    krippendorff_alpha,
    quadratic_kappa,
    spearman,
    within,
)

_NAMED: Final = 5  # samples in a message


@dataclass(frozen=True, slots=True)
class Rating:
    """One answer of one rater about one model's output."""

    sample_id: str
    rater: str
    model: str
    rank: float | None
    score: float | None
    criterion: str = ""


def samples_in_words(samples: Sequence[str]) -> str:
    """Rated samples that the scored runs do not have: changed, or removed, since people rated them."""
    named = ", ".join(samples[:_NAMED]) + (", …" if len(samples) > _NAMED else "")
    what = "1 rated sample is" if len(samples) == 1 else f"{len(samples)} rated samples are"
    return f"{what} not among the scored ones, changed or removed since the rating ({named})"


@dataclass(frozen=True, slots=True)
class Human:
    """The ratings of one criterion."""

    criterion: str
    # sample -> rater -> model -> how far from the best: the rank, or the score turned round
    orders: Mapping[str, Mapping[str, Mapping[str, float]]]
    # sample -> model -> rater -> score; empty where there are ranks alone
    scores: Mapping[str, Mapping[str, Mapping[str, float]]]

    @property
    def raters(self) -> list[str]:
        return sorted({rater for by_rater in self.orders.values() for rater in by_rater})

    @property
    def models(self) -> list[str]:
        found = {m for by_rater in self.orders.values() for order in by_rater.values() for m in order}
        return sorted(found)

    @property
    def ratings(self) -> int:
        return sum(len(order) for by_rater in self.orders.values() for order in by_rater.values())

    def consensus(self, sample: str, models: list[str]) -> Floats | None:
        """Ranks `(m,)` of these models, the raters' ranks averaged and ranked again.

        Only raters who placed all of them count: a place among fewer is another quantity. None: nobody did.
        """
        orders = [o for o in self.orders[sample].values() if all(model in o for model in models)]
        if not orders:
            return None
        return average_ranks(np.mean([average_ranks([o[m] for m in models]) for o in orders], axis=0))


def read_ratings(path: Path | str) -> list[Rating]:
    """Every row of a file of ratings, checked; two answers of one rater to one question are refused."""
    path = Path(path)
    if not path.is_file():
        raise MieError("no file of ratings here", where=path, expected="a CSV or JSON lines file")
    ratings: list[Rating] = []
    places: dict[tuple[str, ...], str] = {}
    for where, row in _rows(path):
        rating = _rating(row, where)
        key = (rating.sample_id, rating.rater, rating.model, rating.criterion)
        if key in places:
            raise MieError(
                "a rater answered twice",
                where=where,
                expected="one row for each",
                found=f"also {places[key]}",
            )
        places[key] = where
        ratings.append(rating)
    if not ratings:
        raise MieError("no ratings in the file", where=path, expected="at least one row")
    return ratings


def read_human(path: Path | str, criterion: str | None = None) -> Human:
    """The ratings of one criterion; without a name, of the only one there is."""
    return choose(read_ratings(path), criterion, where=path)


def choose(ratings: Sequence[Rating], criterion: str | None, *, where: object) -> Human:
    """`read_human` of ratings that were read already."""
    known = sorted({rating.criterion for rating in ratings})
    if criterion is None and len(known) > 1:
        raise ConfigError(
            "the file answers several questions",
            where=where,
            expected="one criterion",
            found=", ".join(repr(name) for name in known),
            fix="choose one with --criterion",
        )
    chosen = known[0] if criterion is None else criterion
    if chosen not in known:
        raise ConfigError(f"no criterion {chosen!r}", where=where, expected=", ".join(map(repr, known)))
    return gather([rating for rating in ratings if rating.criterion == chosen], where=where)


def gather(ratings: list[Rating], *, where: object = None) -> Human:
    """Ratings of one criterion by sample, rater and model."""
    orders: dict[str, dict[str, dict[str, float]]] = {}
    scores: dict[str, dict[str, dict[str, float]]] = {}
    by_rank: dict[tuple[str, str], bool] = {}
    for r in ratings:
        ranked = r.rank is not None
        if by_rank.setdefault((r.sample_id, r.rater), ranked) != ranked:
            raise MieError(
                "a rater gave ranks and scores to one sample",
                where=where,
                expected="a rank in each row or in none",
                found=f"sample {r.sample_id}, rater {r.rater}",
            )
        order = orders.setdefault(r.sample_id, {}).setdefault(r.rater, {})
        order[r.model] = r.rank if r.rank is not None else -(r.score or 0.0)
        if r.score is not None:
            scores.setdefault(r.sample_id, {}).setdefault(r.model, {})[r.rater] = r.score
    return Human(ratings[0].criterion, orders, scores)


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".csv":
                reader = csv.DictReader(file, strict=True)
                for row in reader:
                    cells = {k: plain_cell(v) if isinstance(v, str) else v for k, v in row.items()}
                    yield f"{path}:{reader.line_num}", cells
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _object(line)
    except (csv.Error, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise MieError(
            "not a file of ratings", where=path, expected="CSV or JSON lines, UTF-8", found=error
        ) from None


def _object(line: str) -> Mapping[str, Any]:
    body = json.loads(line)
    if not isinstance(body, dict):
        raise ValueError(f"{line[:60]!r} is not a JSON object")
    return body


def _rating(row: Mapping[str, Any], where: str) -> Rating:
    model = row.get("run") or row.get("model")
    texts = {"sample_id": row.get("sample_id"), "rater": row.get("rater"), "run or model": model}
    for name, value in texts.items():
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise MieError(f"a row has no {name}", where=where, expected=name, found=repr(value))
    rank, score = _number(row, "rank", where), _number(row, "score", where)
    if rank is None and score is None:
        raise MieError("a row has neither rank nor score", where=where, expected="one of them")
    if rank is not None and rank < 1:
        raise MieError("a rank below 1", where=where, expected="1 for the best", found=rank)
    criterion = row.get("criterion")
    names = [str(value) for value in texts.values()]
    return Rating(names[0], names[1], names[2], rank, score, "" if criterion is None else str(criterion))


def _number(row: Mapping[str, Any], name: str, where: str) -> float | None:
    value = row.get(name)
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise MieError(f"{name} is not a number", where=where, expected="a finite number", found=repr(value))
    return number


def rater_agreement(human: Human, identities: Mapping[str, Identity]) -> dict[str, Any]:
    """How far people agree with each other, before anything is asked to agree with them.

    Kendall's W per sample and its mean, Krippendorff's alpha over everything, kappa of each two raters.

    `identities` has the patient and the image of each sample; a sample that is not there stands alone.
    """
    table = _table(human)
    return {
        "raters": human.raters,
        "rated": "score" if human.scores else "rank",
        "units": table.shape[1],
        "kendall_w": _concordance(human, identities),
        "krippendorff_alpha": {level: krippendorff_alpha(table, level) for level in LEVELS},
        "spearman": _rank_pairs(human, identities),
        "pairs": _pairs(human, table) if human.scores else [],
    }


def _table(human: Human) -> Floats:
    """`(raters, units)` of scores, or of ranks where there are no scores; a unit is a model on a sample.

    A rank is one among certain models: raters who ranked others beside it did not rate the same unit.
    """
    row = {rater: at for at, rater in enumerate(human.raters)}
    column: dict[tuple[str, str, frozenset[str]], int] = {}
    cells: list[tuple[int, int, float]] = []
    for sample, by_rater in human.orders.items():
        for rater, order in by_rater.items():
            among = frozenset[str]() if human.scores else frozenset(order)
            for model, place in order.items():
                value = human.scores.get(sample, {}).get(model, {}).get(rater) if human.scores else place
                if value is not None:
                    at = column.setdefault((sample, model, among), len(column))
                    cells.append((row[rater], at, value))
    table = np.full((len(row), len(column)), np.nan)
    for rater_at, at, value in cells:
        table[rater_at, at] = value
    return table


def _concordance(human: Human, identities: Mapping[str, Identity]) -> dict[str, Any]:
    values, samples = [], []
    for sample, by_rater in human.orders.items():
        # Those who placed the same models, together: after a model was added, some placed others.
        alike: dict[frozenset[str], list[Mapping[str, float]]] = {}
        for order in by_rater.values():
            alike.setdefault(frozenset(order), []).append(order)
        found = [kendall_w([[order[m] for m in sorted(ms)] for order in os]) for ms, os in alike.items()]
        known = [w for w in found if not np.isnan(w)]
        if known:
            values.append(float(np.mean(known)))
            samples.append(sample)
    interval = mean_interval(values, clusters_of_samples(samples, identities), bounds=(0, 1))
    return {
        "mean": interval.value,
        "n": len(values),
        # No two raters placed the same models, or they told no two apart.
        "unscored": len(human.orders) - len(values),
        **interval.entry,
    }


def _rank_pairs(human: Human, identities: Mapping[str, Identity]) -> list[dict[str, Any]]:
    """Each two raters: Spearman's correlation over the models of a sample, and its mean over samples."""
    out = []
    for pair in combinations(human.raters, 2):
        values, samples, unscored = [], [], 0
        for sample, by_rater in human.orders.items():
            if not all(rater in by_rater for rater in pair):
                continue
            first, second = (by_rater[rater] for rater in pair)
            shared = sorted(set(first) & set(second))
            same = set(first) == set(second)  # a rank among other models is another quantity
            rho = spearman([first[m] for m in shared], [second[m] for m in shared]) if same else np.nan
            if np.isnan(rho):
                unscored += 1
                continue
            values.append(rho)
            samples.append(sample)
        if values or unscored:
            interval = mean_interval(values, clusters_of_samples(samples, identities), bounds=(-1, 1))
            counts = {"n": len(values), "unscored": unscored}
            out.append({"raters": list(pair), "mean": interval.value, **counts, **interval.entry})
    return out


def _pairs(human: Human, table: Floats) -> list[dict[str, Any]]:
    out = []
    for (at_a, a), (at_b, b) in combinations(enumerate(human.raters), 2):
        shared = ~np.isnan(table[[at_a, at_b]]).any(axis=0)
        x, y = table[at_a, shared], table[at_b, shared]
        out.append(
            {
                "raters": [a, b],
                "n": int(shared.sum()),
                "quadratic_kappa": quadratic_kappa(x, y),
                "within_one": float(within(x, y).mean()) if shared.any() else np.nan,
            }
        )
    return out
