"""What the numbers of one run, or of several, allow us to say, and whether people say the same."""

from __future__ import annotations

from mie.scoring.results import ScoreTable, read_score_table
from mie.scoring.statistics.agreement import agree, cross_validated, fit_isotonic
from mie.scoring.statistics.bootstrap import bootstrap_mean, bootstrap_means
from mie.scoring.statistics.compare import Comparison, compare_runs, holm
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
    "Comparison",
    "ScoreTable",
    "agree",
    "average_ranks",
    "bootstrap_mean",
    "bootstrap_means",
    "compare_runs",
    "cross_validated",
    "fit_isotonic",
    "holm",
    "kendall_tau_b",
    "kendall_w",
    "krippendorff_alpha",
    "leaderboard",
    "place_model",
    "quadratic_kappa",
    "read_human",
    "read_ratings",
    "read_score_table",
    "spearman",
    "spearman_formula",
    "within",
]
