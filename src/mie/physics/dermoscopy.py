"""What lies between a dermatoscope and the skin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from mie.errors import ConfigError, ImageError
from mie.physics._severity import Ranges, as_params, check_fields, check_ranges, draw_ranges
from mie.physics._skin_bubbles import draw_bubbles
from mie.physics._skin_frame import draw_frame
from mie.physics._skin_hair import draw_hairs
from mie.physics._skin_ink import draw_ink
from mie.physics._skin_ruler import draw_ruler
from mie.records import Pixels

KINDS = ("hairs", "ruler", "bubbles", "frame", "ink")


@dataclass(frozen=True, slots=True)
class SkinArtifacts:
    """Hair, ruler marks, gel bubbles, a dark frame and pen marks over a dermoscopic image.

    Drawn from the skin outwards: ink, hair, bubbles, ruler, frame; each anti-aliased and composited over what
    lies below it, lesion included. All sizes follow the picture's shorter side. At least one kind is on.
    """

    hairs: int = 0  # strands; 0 .. 100
    light_hairs: float = 0.1  # share of light strands; 0 .. 1
    ruler: bool = False
    bubbles: int = 0  # 0 .. 30
    frame: float = 0.0  # vignetting, with a black rim from 0.5; 0 .. 1
    ink: bool = False

    RANGES: ClassVar[Ranges] = {
        "hairs": (0, 100), "light_hairs": (0.0, 1.0), "bubbles": (0, 30), "frame": (0.0, 1.0)
    }  # fmt: skip
    DRAWN: ClassVar[Ranges] = {
        "hairs": (5, 40), "light_hairs": (0.0, 0.3), "bubbles": (1, 8), "frame": (0.3, 0.8)
    }  # fmt: skip

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        if not self.kinds:
            raise ConfigError(
                "SkinArtifacts: nothing to draw", expected=f"one of {', '.join(KINDS)}", found="none"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is on, e.g. `("hairs", "ruler")`."""
        return tuple(kind for kind in KINDS if getattr(self, kind))

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        """One to three kinds that `fixed` does not name, hair the most often, with severities from DRAWN.

        Where `fixed` turns kinds on, the others are left off: `draw(rng, ruler=True)` draws a ruler alone.
        """
        check_fields(cls, fixed)
        order = rng.permutation(["hairs", "hairs", "hairs", "ruler", "bubbles", "frame", "ink"])
        on = list(dict.fromkeys(map(str, order)))[: rng.integers(1, 4)]
        numbers: dict[str, Any] = {**draw_ranges(rng, cls.DRAWN), "ruler": True, "ink": True}
        open_kinds = [kind for kind in KINDS if kind not in fixed]
        chosen: list[str] = []
        if not any(fixed.get(kind) for kind in KINDS):
            chosen = [kind for kind in on if kind in open_kinds] or open_kinds[:1]
        for kind in open_kinds:
            if kind not in chosen:
                del numbers[kind]
        return cls(**numbers | fixed)

    def apply(self, image: Pixels, rng: np.random.Generator) -> Pixels:
        """`(H, W, 3)` uint8 RGB -> the same with artefacts."""
        if image.ndim != 3 or image.shape[2] != 3 or min(image.shape[:2]) < 2 or image.dtype != np.uint8:
            raise ImageError(
                "not a dermoscopic picture",
                expected="(H, W, 3) uint8, at least 2 by 2 pixels",
                found=f"{image.shape} {image.dtype}",
            )
        picture: NDArray[np.float32] = image.astype(np.float32)
        if self.ink:
            draw_ink(picture, rng)
        if self.hairs:
            draw_hairs(picture, self.hairs, self.light_hairs, rng)
        if self.bubbles:
            draw_bubbles(picture, self.bubbles, rng)
        if self.ruler:
            draw_ruler(picture, rng)
        if self.frame:
            draw_frame(picture, self.frame, rng)
        return np.clip(np.rint(picture), 0, 255).astype(np.uint8)

    def params(self) -> dict[str, Any]:
        return as_params(self)
