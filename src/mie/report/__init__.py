"""Pages, tables and plots from scored runs. `mie.report([run_a, run_b], "out/report")` writes a report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mie.scoring.statistics.people import Rating

_Location = str | os.PathLike[str]


def report(
    runs: Sequence[_Location],
    folder: _Location,
    *,
    variant: str = "paper",
    force: bool = False,
    ratings: Sequence[Rating] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the report of one or more scored runs to `folder`; returns its `index.html`.

    Args:
        runs: Scored runs, or their folders.
        folder: A new folder, or one with an earlier report.
        variant: Of the benchmark.
        force: Show runs side by side even if they are of different datasets or were scored by different
            judges; the page then says so and does not compare them.
        ratings: What people said; they get a section and tables of their own.
        progress: Called with the number of pictures written and their total.

    """
    from mie.report.page import write_report

    return write_report(
        [Path(run) for run in runs],
        Path(folder),
        variant=variant,
        force=force,
        ratings=ratings,
        progress=progress,
    )


class _Package(ModuleType):
    # `mie.report` is both this package and a function of the Python API: Python binds the package to that
    # name as soon as anything imports it, so the package itself can be called.
    __call__ = staticmethod(report)


sys.modules[__name__].__class__ = _Package
