"""Why a number could not be computed."""

from __future__ import annotations

from mie.errors import MieError


class MetricError(MieError):
    """A metric that has no value here: the sample is unscored for it, and `reason` says why."""
