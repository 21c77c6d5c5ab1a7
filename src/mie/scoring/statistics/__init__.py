"""What the numbers of one run, or of several, allow us to say, and whether people say the same."""

from __future__ import annotations

from mie.scoring.clusters import Clusters, clusters_of, patients_in_words
from mie.scoring.results import ScoreTable, read_score_table
from mie.scoring.statistics.agreement import agree, cross_validated, fit_isotonic
from mie.scoring.statistics.compare import Comparison, compare_runs, holm
from mie.scoring.statistics.intervals import (
    MIN_PATIENTS,
    Interval,
    macro_interval,
    mean_interval,
    ratio_interval,
    wilson,
)
from mie.scoring.statistics.people import read_human, read_ratings
from mie.scoring.statistics.preference import leaderboard, place_model
from mie.scoring.statistics.ranks import (
    average_ranks,
    kendall_tau_b,
    kendall_w,
    krippendorff_alpha,
    quadratic_kappa,
    spearman,
    spearman_formula,
    within,
)

__all__ = [
    "MIN_PATIENTS",
    "Clusters",
    "Comparison",
    "Interval",
    "ScoreTable",
    "agree",
    "average_ranks",
    "clusters_of",
    "compare_runs",
    "cross_validated",
    "fit_isotonic",
    "holm",
    "kendall_tau_b",
    "kendall_w",
    "krippendorff_alpha",
    "leaderboard",
    "macro_interval",
    "mean_interval",
    "patients_in_words",
    "place_model",
    "quadratic_kappa",
    "ratio_interval",
    "read_human",
    "read_ratings",
    "read_score_table",
    "spearman",
    "spearman_formula",
    "wilson",
    "within",
]
