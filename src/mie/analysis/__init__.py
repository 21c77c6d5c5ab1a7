"""What the numbers of one run, or of several, allow us to say, and whether people say the same."""

from __future__ import annotations

from mie.analysis.agreement import agree
from mie.analysis.bootstrap import bootstrap_mean, bootstrap_means
from mie.analysis.calibration import cross_validated, fit_isotonic
from mie.analysis.compare import Comparison, compare_runs, holm
from mie.analysis.human import read_human, read_ratings
from mie.analysis.kappa import quadratic_kappa, within
from mie.analysis.krippendorff import krippendorff_alpha
from mie.analysis.preference import leaderboard, place_model
from mie.analysis.ranks import average_ranks, kendall_tau_b, kendall_w, spearman, spearman_formula
from mie.analysis.scores import ScoreTable, read_score_table

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
