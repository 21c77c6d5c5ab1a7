"""What an inpainter is: an image with a hole goes in, the image with tissue in the hole comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeAlias

import numpy as np

from mie.core.registry import Registry, unknown_name
from mie.core.spec import parse_spec
from mie.errors import ConfigError, ImageError
from mie.images.families import FAMILIES
from mie.records import Mask, Pixels


class NoExpertError(ConfigError):
    """An inpainter that has not learnt this family of images."""


class Inpainter(Protocol):
    """Fills a hole with healthy tissue."""

    @property
    def name(self) -> str:
        """As in the registry."""
        ...

    @property
    def weights(self) -> str | None:
        """SHA-256 of what it has learnt; None for one that has learnt nothing."""
        ...

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        """`(H, W, 3) uint8` with the hole filled; `mask` is `(H, W) bool`, true in the hole.

        What stands under the hole must not influence the result. Any size; same seed, same bytes. Pixels
        outside the hole may come back changed: `blend` restores them. ImageError where there is nothing to
        fill from.
        """
        ...


def check_hole(image: Pixels, mask: Mask) -> None:
    """ImageError unless the two fit and something outside the hole is left."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ImageError(
            "not an 8-bit RGB image", expected="(H, W, 3) uint8", found=f"{image.shape} {image.dtype}"
        )
    if mask.shape != image.shape[:2] or mask.dtype != np.bool_:
        raise ImageError(
            "the hole does not fit the image",
            expected=f"{image.shape[:2]} bool",
            found=f"{mask.shape} {mask.dtype}",
        )
    if mask.all():
        raise ImageError("the hole covers the whole image: nothing to fill it from")


def refuse_arguments(name: str, argument: str | None, options: Mapping[str, str]) -> None:
    """ConfigError when a spec gives more than the name to an inpainter that takes nothing else."""
    if argument is not None or options:
        given = argument if argument is not None else ", ".join(options)
        raise ConfigError(f"inpainter {name!r} takes no argument and no options", found=given)


# argument, options, family -> inpainter
Opener: TypeAlias = Callable[[str | None, Mapping[str, str], str], Inpainter]

INPAINTERS: Final[Registry[Opener]] = Registry(
    "inpainter",
    {
        "telea": "mie.perspectives.modification.inpainters.blend:open_telea",
        "navier-stokes": "mie.perspectives.modification.inpainters.blend:open_navier_stokes",
        "harmonic": "mie.perspectives.modification.inpainters.blend:open_harmonic",
        "exemplar": "mie.perspectives.modification.inpainters.exemplar:open_exemplar",
        "compact": "mie.perspectives.modification.inpainters.compact:open_compact",
        "flow": "mie.perspectives.modification.inpainters.flow:open_flow",
        "flux-fill": "mie.perspectives.modification.inpainters.flux:open_flux_fill",
    },
    group="mie.inpainters",
)


def make_inpainter(spec: str, *, family: str) -> Inpainter:
    """The inpainter of a spec (`exemplar`, `compact`, `compact:FILE`) for one of `families.FAMILIES`."""
    parsed = parse_spec(spec, noun="inpainter")
    opener = INPAINTERS[parsed.name]
    if family not in FAMILIES:
        raise unknown_name("modality family", family, FAMILIES)
    return opener(parsed.argument, parsed.options, family)
