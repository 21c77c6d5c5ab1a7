"""Runs: an editor over a dataset, resumable, one line per edit."""

from __future__ import annotations

from mie.running.run import Progress, run_editor

__all__ = ["Progress", "run_editor"]
