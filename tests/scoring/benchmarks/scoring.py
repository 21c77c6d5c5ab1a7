"""Each benchmark's way through a run, as `score_run(folder, variant=..., judge=...) -> document`."""

from functools import partial
from pathlib import Path

from mie.scoring.benchmarks import BENCHMARKS
from mie.scoring.benchmarks.omni_iie.pixels import Weights
from mie.scoring.benchmarks.omni_iie.score import setup
from mie.scoring.score import score_run

miedb = partial(score_run, BENCHMARKS["miedb"])
medebench = partial(score_run, BENCHMARKS["medebench"])
imgedit = partial(score_run, BENCHMARKS["imgedit"])


def omni_iie(run_folder: Path, *, weights: Weights | None = None, **options):
    return score_run(BENCHMARKS["omni-iie"], run_folder, setup=setup(weights), **options)
