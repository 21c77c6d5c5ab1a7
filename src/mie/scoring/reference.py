"""What an output is measured against: a sample's own images and the region that its edit is about.

The region of a painted overlay is read back from the target by the same de-blending that reads the output,
so that a perfect output has DICE 1 exactly. The mask that the dataset stores is not used there; it agrees to
DICE 0.99 at least, which the gates of `mie build` see to. Elsewhere the stored mask is the region.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mie.images.overlay import deblend, deblend_any
from mie.records import Mask, Pixels
from mie.scoring.perspectives import needs_met, paints
from mie.scoring.pixels import in_colour
from mie.vocabulary import COLOURS


@dataclass(frozen=True)
class Reference:
    """What every attempt at a sample is measured against."""

    perspective: str
    image: Pixels  # I
    target: Pixels  # O
    colours: tuple[str, ...] = ()  # as the sample names them
    several: bool = False  # the release's `Multiclasses`: the region is the union over all three colours
    region: Mask | None = None  # R; None where it cannot be known

    @classmethod
    def of(
        cls,
        perspective: str,
        task: str,
        colour: str | None,
        image: Pixels,
        target: Pixels,
        mask: Pixels | None = None,
    ) -> Reference:
        """`colour` as samples store it: "red", or "red,green" for several classes."""
        if not paints(perspective):
            return cls(perspective, image, target, region=None if mask is None else mask > 0)
        colours = tuple(c for c in (colour or "").split(",") if c in COLOURS)
        several = task == "holistic"
        region = None
        if several:
            region = deblend_any(image, target)
        elif colours:
            region = deblend(image, target, colours[0])
        return cls(perspective, image, target, colours, several, region)

    @property
    def painted_in(self) -> tuple[str, ...]:
        """The colours that count as paint: all three where a sample has several classes."""
        return tuple(COLOURS) if self.several else self.colours[:1]

    @cached_property
    def classes(self) -> dict[str, Mask]:
        """The region of each colour of a sample with several classes."""
        if not self.several:
            return {}
        return {colour: deblend(self.image, self.target, colour) for colour in self.colours}

    @property
    def meets(self) -> frozenset[str]:
        """The needs of metrics that the sample meets, or is expected to."""
        return needs_met(self.perspective, has_mask=self.region is not None, several=self.several)

    @property
    def size(self) -> tuple[int, int]:
        return self.image.shape[0], self.image.shape[1]

    @property
    def facts(self) -> dict[str, Any]:
        """What metrics may need, by the names of `mie.scoring.metric.NEEDS`; None where there is none."""
        return {
            "input": in_colour(self.image),
            "reference": in_colour(self.target),
            "region": self.region,
            "colours": self.painted_in or None,
            "classes": self.classes or None,
        }
