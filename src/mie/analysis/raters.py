"""How far people agree with each other, before anything is asked to agree with them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from mie.analysis.bootstrap import bootstrap_mean
from mie.analysis.human import Human
from mie.analysis.kappa import quadratic_kappa, within
from mie.analysis.krippendorff import LEVELS, krippendorff_alpha
from mie.analysis.ranks import Floats, kendall_w


def rater_agreement(human: Human, clusters: Mapping[str, Any]) -> dict[str, Any]:
    """Kendall's W per sample and its mean, Krippendorff's alpha over everything, kappa of each two raters.

    `clusters`: sample -> what belongs together in the bootstrap (a patient); a sample not in it stands alone.
    """
    table = _table(human)
    return {
        "raters": human.raters,
        "rated": "score" if human.scores else "rank",
        "units": table.shape[1],
        "kendall_w": _concordance(human, clusters),
        "krippendorff_alpha": {level: krippendorff_alpha(table, level) for level in LEVELS},
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


def _concordance(human: Human, clusters: Mapping[str, Any]) -> dict[str, Any]:
    values, names = [], []
    for sample, by_rater in human.orders.items():
        # Those who placed the same models, together: after a model was added, some placed others.
        alike: dict[frozenset[str], list[Mapping[str, float]]] = {}
        for order in by_rater.values():
            alike.setdefault(frozenset(order), []).append(order)
        found = [kendall_w([[order[m] for m in sorted(ms)] for order in os]) for ms, os in alike.items()]
        known = [w for w in found if not np.isnan(w)]
        if known:
            values.append(float(np.mean(known)))
            names.append(str(clusters.get(sample, ("sample", sample))))
    return {
        "mean": float(np.mean(values)) if values else np.nan,
        "n": len(values),
        # No two raters placed the same models, or they told no two apart.
        "unscored": len(human.orders) - len(values),
        "ci95": list(bootstrap_mean(values, names)),
    }


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
