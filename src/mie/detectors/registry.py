"""Detectors by name, imported only when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Final, cast

from mie.detectors.base import Detector
from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.spec import parse_spec
from mie.vocabulary import nearest_name

Open = Callable[[str | None, Mapping[str, str], str], Detector]

_OURS: Final = {
    "compact": "mie.detectors.compact:open_compact",
    "nnunet": "mie.detectors.nnunet:open_nnunet",
}


def detector_names() -> list[str]:
    return sorted(_OURS)


def make_detector(spec: str, *, family: str) -> Detector:
    """The detector of a spec (`compact`, `compact:PATH`, `nnunet:FOLDER,fold=0`) for a family of images."""
    parsed = parse_spec(spec, noun="detector")
    if parsed.name not in _OURS:
        near = nearest_name(parsed.name, _OURS)
        raise ConfigError(
            f"no detector named {parsed.name!r}",
            expected=", ".join(detector_names()),
            fix=f"did you mean {near!r}?" if near else None,
        )
    if family not in FAMILIES:
        raise ConfigError(f"no family {family!r}", expected=", ".join(FAMILIES))
    module, _, attribute = _OURS[parsed.name].partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "mie":
            raise
        raise ConfigError(
            f"detector {parsed.name!r} needs the package {error.name}", fix="run `pip install 'mie[models]'`"
        ) from None
    return cast(Open, found)(parsed.argument, parsed.options, family)
