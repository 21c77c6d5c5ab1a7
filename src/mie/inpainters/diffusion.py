"""Holes that close from the rim inwards, by OpenCV: Telea 2004, and Navier-Stokes (Bertalmio 2001).

Both carry grey levels inwards and draw no texture: the floor that every other inpainter is measured against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import cv2

from mie.images.closed import closed
from mie.inpainters.base import Inpainter, check_hole, refuse_arguments
from mie.records import Mask, Pixels

_RADIUS: Final = 5  # pixels that a pixel is filled from


@dataclass(frozen=True, slots=True)
class Diffusion:
    """`cv2.inpaint`; the seed changes nothing."""

    name: str
    method: int

    @property
    def weights(self) -> None:
        """Nothing is learnt."""
        return

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        check_hole(image, mask)
        return closed(image, mask, self.method, _RADIUS)


def open_telea(argument: str | None, options: Mapping[str, str], family: str) -> Inpainter:
    refuse_arguments("telea", argument, options)
    return Diffusion("telea", cv2.INPAINT_TELEA)


def open_navier_stokes(argument: str | None, options: Mapping[str, str], family: str) -> Inpainter:
    refuse_arguments("navier-stokes", argument, options)
    return Diffusion("navier-stokes", cv2.INPAINT_NS)
