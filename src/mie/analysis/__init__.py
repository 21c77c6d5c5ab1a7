"""What the numbers of one run, or of several, allow us to say."""

from __future__ import annotations

from mie.analysis.bootstrap import bootstrap_mean, bootstrap_means
from mie.analysis.compare import Comparison, compare_runs, holm
from mie.analysis.scores import ScoreTable, read_score_table

__all__ = [
    "Comparison",
    "ScoreTable",
    "bootstrap_mean",
    "bootstrap_means",
    "compare_runs",
    "holm",
    "read_score_table",
]
