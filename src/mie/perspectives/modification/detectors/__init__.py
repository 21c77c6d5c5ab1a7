"""What a detector is: an image goes in, where its lesions are comes out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from mie.core.spec import parse_spec
from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.records import Mask, Pixels
from mie.vocabulary import nearest_name


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one image."""

    mask: Mask  # (H, W): the pixels of lesions, at the detector's own threshold
    score: float  # in [0, 1]: how sure the detector is that there is any lesion at all


class Detector(Protocol):
    """Anything that finds lesions. Any size of image; the same image, the same finding."""

    name: str
    weights: str  # SHA-256 of what it has learnt

    def find(self, image: Pixels) -> Finding:
        """The lesions in an image `(H, W, 3) uint8` RGB."""
        ...

    def quality(self) -> Mapping[str, Any] | None:
        """How well it finds lesions of held-out patients (`quality.Quality.as_json`, with `threshold`).

        None where nobody has measured it: say so wherever the detector is used.
        """
        ...


# Detectors by name, imported only when asked for.

Open = Callable[[str | None, Mapping[str, str], str], Detector]

_OURS: Final = {
    "compact": "mie.perspectives.modification.detectors.compact:open_compact",
    "nnunet": "mie.perspectives.modification.detectors.nnunet:open_nnunet",
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
