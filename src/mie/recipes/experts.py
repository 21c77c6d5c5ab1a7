"""Inpainters and detectors by family, opened once in a process: their weights are read but once."""

from __future__ import annotations

import sys
from functools import lru_cache

from mie.detectors.registry import make_detector
from mie.errors import ConfigError
from mie.inpainters.base import Inpainter
from mie.inpainters.registry import make_inpainter
from mie.recipes.detection import Watch, watch


@lru_cache(maxsize=16)
def expert(spec: str, family: str) -> Inpainter:
    """The family's inpainter; `ConfigError` with what to do where its weights are missing."""
    found = make_inpainter(spec, family=family)
    one_thread()
    return found


@lru_cache(maxsize=16)
def watcher(spec: str | None, family: str, min_sensitivity: float) -> Watch:
    """The family's detector. Where there is none, that is said in the data, not passed over."""
    if spec is None:
        return watch(None, min_sensitivity=min_sensitivity)
    try:
        found = make_detector(spec, family=family)
    except ConfigError as error:
        return watch(None, min_sensitivity=min_sensitivity, reason=f"no {spec} detector for {family}: {error.what}")
    one_thread()
    return watch(found, min_sensitivity=min_sensitivity)


def one_thread() -> None:
    """One thread for torch, where it is loaded: sums in another order would be other bytes."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
