"""At which size a model sees an image, and how its output comes back to the image's own grid.

`native` keeps every pixel: the image is padded at the bottom and on the right to multiples that the model
needs, and the output is cropped. An image larger than the model takes is scaled down first. A number or
`WIDTHxHEIGHT` scales the image to that size, as the released scripts of most papers do. `auto` leaves the
choice to the model. Whatever was done is recorded, step by step, for the edit's `meta`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np

from mie.errors import ConfigError
from mie.images.resize import resize_image
from mie.records import Pixels

NATIVE: Final = "native"
AUTO: Final = "auto"
_NUMBERS: Final = re.compile(r"(\d{1,5})(?:x(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class SizeRule:
    """What a model accepts."""

    multiple: int = 16  # of both sides
    least: int = 16  # pixels of the shorter side
    most: int = 2**20  # pixels in all, with the padding


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the image lies in what the model was given."""

    source: tuple[int, int]  # (height, width) of the image
    scaled: tuple[int, int]  # after scaling
    given: tuple[int, int]  # after padding: what the model sees

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What was done before the model saw the image; empty where it saw every pixel as it is."""
        steps: list[dict[str, Any]] = []
        if self.scaled != self.source:
            steps.append({"step": "resize", "from": list(self.source), "to": list(self.scaled)})
        if self.given != self.scaled:
            steps.append({"step": "pad", "from": list(self.scaled), "to": list(self.given)})
        return steps

    def back(self, output: Pixels) -> tuple[Pixels, list[dict[str, Any]]]:
        """The output on the image's own grid, and what was done to bring it there."""
        steps: list[dict[str, Any]] = []
        size = output.shape[:2]
        if size == self.given != self.scaled:
            output = output[: self.scaled[0], : self.scaled[1]]
            steps.append({"step": "crop", "from": list(size), "to": list(self.scaled)})
        if output.shape[:2] != self.source:
            steps.append({"step": "resize", "from": list(output.shape[:2]), "to": list(self.source)})
            output = resize_image(np.ascontiguousarray(output), self.source)
        return np.ascontiguousarray(output), steps


def check_size(size: str | int) -> str:
    """The size option as text; `ConfigError` where it is none."""
    text = str(size).lower()
    match = _NUMBERS.fullmatch(text)
    if text in (NATIVE, AUTO) or (match and all(16 <= int(n) <= 8192 for n in match.groups() if n)):
        return text
    raise ConfigError(
        "not a size",
        where="size",
        expected="native, auto, a number of pixels such as 512, or 768x512",
        found=size,
    )


def place(image: Pixels, size: str, rule: SizeRule) -> tuple[Pixels, Placement]:
    """The image as the model should see it. With `auto` it is left alone."""
    source = (image.shape[0], image.shape[1])
    if size == AUTO:
        return image, Placement(source, source, source)
    scaled = _within(source, rule) if size == NATIVE else _asked(size)
    image = resize_image(np.ascontiguousarray(image), scaled)
    given = (_up(scaled[0], rule.multiple), _up(scaled[1], rule.multiple))
    if given != scaled:
        # Mirrored edges: a border of one colour would be painted on by some models.
        down, right = given[0] - scaled[0], given[1] - scaled[1]
        image = np.asarray(cv2.copyMakeBorder(image, 0, down, 0, right, cv2.BORDER_REFLECT), np.uint8)
    return image, Placement(source, scaled, given)


def _asked(size: str) -> tuple[int, int]:
    match = _NUMBERS.fullmatch(check_size(size))
    assert match is not None  # noqa: S101 (`native` and `auto` do not come here)
    width, height = int(match[1]), int(match[2] or match[1])
    return height, width


def _within(source: tuple[int, int], rule: SizeRule) -> tuple[int, int]:
    """The size itself unless it is beyond what the model takes; the shape is kept."""
    size = source
    if min(source) < rule.least:
        size = _times(source, rule.least / min(source))
    # What counts is the padded size: some models scale what is too large by themselves.
    factor = (rule.most / (source[0] * source[1])) ** 0.5
    while _up(size[0], rule.multiple) * _up(size[1], rule.multiple) > rule.most and min(size) > 1:
        size = _times(source, factor)
        factor *= 0.99
    return size


def _times(size: tuple[int, int], factor: float) -> tuple[int, int]:
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _up(side: int, multiple: int) -> int:
    return -(-side // multiple) * multiple
