"""Inpainters and detectors by family, opened once in a process: their weights are read but once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

from mie.detectors.registry import make_detector
from mie.errors import ConfigError
from mie.inpainters.base import Inpainter
from mie.inpainters.registry import make_inpainter
from mie.recipes.detection import Watch, watch
from mie.spec import parse_spec


@lru_cache(maxsize=16)
def expert(spec: str, family: str) -> Inpainter:
    """The family's inpainter; `ConfigError` with what to do where its weights are missing."""
    return make_inpainter(spec, family=family)


def inpainter_specs(given: str | Sequence[str]) -> tuple[str, ...]:
    """A recipe names one inpainter, or several that take turns."""
    return (given,) if isinstance(given, str) else tuple(given)


@lru_cache(maxsize=16)
def watcher(spec: str | None, family: str, min_sensitivity: float) -> Watch:
    """The family's detector. Where there is none, that is said in the data, not passed over."""
    if spec is None:
        return watch(None, min_sensitivity=min_sensitivity)
    try:
        return watch(make_detector(spec, family=family), min_sensitivity=min_sensitivity)
    except ConfigError as error:
        if parse_spec(spec, noun="detector").argument is not None:
            raise  # the user's own model
        reason = f"no detector {spec!r} for {family}: {error.what}"
        return watch(None, min_sensitivity=min_sensitivity, reason=reason)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, where it is loaded: sums in another order would be other bytes."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
