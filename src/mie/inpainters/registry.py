"""Inpainters by name (`mie.spec` has the grammar); a backend is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, cast

from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.inpainters.base import Inpainter
from mie.spec import parse_spec
from mie.vocabulary import nearest_name

# argument, options, family -> inpainter
Opener: TypeAlias = Callable[[str | None, Mapping[str, str], str], Inpainter]

_OPENERS: Final = {
    "telea": "mie.inpainters.diffusion:open_telea",
    "navier-stokes": "mie.inpainters.diffusion:open_navier_stokes",
    "harmonic": "mie.inpainters.harmonic:open_harmonic",
    "exemplar": "mie.inpainters.exemplar:open_exemplar",
    "compact": "mie.inpainters.compact:open_compact",
    "flux-fill": "mie.inpainters.flux_fill:open_flux_fill",
}


def inpainter_names() -> list[str]:
    """Every name that a spec may begin with."""
    return sorted(_OPENERS)


def make_inpainter(spec: str, *, family: str) -> Inpainter:
    """The inpainter of a spec (`exemplar`, `compact`, `compact:FILE`) for one of `families.FAMILIES`."""
    parsed = parse_spec(spec, noun="inpainter")
    if parsed.name not in _OPENERS:
        raise _unknown("inpainter", parsed.name, _OPENERS)
    if family not in FAMILIES:
        raise _unknown("modality family", family, FAMILIES)
    module, _, attribute = _OPENERS[parsed.name].partition(":")
    opener = cast(Opener, getattr(importlib.import_module(module), attribute))
    return opener(parsed.argument, parsed.options, family)


def _unknown(noun: str, name: str, known: Mapping[str, str] | tuple[str, ...]) -> ConfigError:
    near = nearest_name(name, known)
    return ConfigError(
        f"no {noun} named {name!r}",
        expected=", ".join(sorted(known)),
        fix=f"did you mean {near!r}?" if near else None,
    )
