"""Where the work runs: in process, on a local pool, or on Ray. The same tasks give the same results."""

from __future__ import annotations

from mie.engines.run import ENGINES, cores, run_tasks

__all__ = ["ENGINES", "cores", "run_tasks"]
