"""A contact sheet: real triplets side by side, each with its modality, target and instruction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import cv2
import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mie.errors import MieError
from mie.images.resize import fitted_size, resize_image
from mie.records import Pixels, Sample

_Font: TypeAlias = ImageFont.FreeTypeFont
_INK, _GREY = (34, 34, 34), (105, 105, 105)
_ELLIPSIS = "…"
_MARK = (255, 225, 77)
# A mean difference of levels, of 255, below which two small pictures look alike. Measured at 224 pixels on
# the samples of `mie demo`: bias fields 7 to 13, super-resolution 2 to 20, another CT window mostly over 100.
_ALIKE = 24.0
_ZOOMED = 6.0  # the enlarged square has this part of the longer side
_INSET = 0.42  # and covers this part of the shorter side of its picture
_AROUND = 1.3  # of a region's longer side: the square around it that is enlarged, and the least enlargement
# What the label of a pair adds, by the mark in its params: one of its two images is not real.
_GENERATED = {"lesion": " · generated lesion", "tissue": " · generated tissue"}


class _Box(NamedTuple):
    """A square of an image, as shares of its height and width."""

    top: float
    left: float
    height: float
    width: float


class _Block(NamedTuple):
    """Images side by side, with a line above and a text below; the first and last show `zoom` enlarged.

    A line that is too long loses the end of its label, not of its `mark`.
    """

    label: str
    images: tuple[Pixels, ...]
    text: str
    zoom: _Box | None = None
    mark: str = ""


def contact_sheet(samples: Iterable[Sample], *, columns: int = 3, cell: int = 224) -> Pixels:
    """`(H, W, 3) uint8` on white: per sample a block of input | target image, `columns` blocks in a row.

    Each image fits a square of `cell` pixels with its shape kept. Above it stands "modality · target", cut
    where it is too long; below it the whole prompt, wrapped. Where the two images look alike at this size,
    the place where they differ most is shown enlarged inside both.
    """
    blocks = [_Block(_label(s), (s.input, s.target_image), s.prompt, _zoom(s, cell)) for s in samples]
    return _sheet(blocks, columns, cell)


def pair_sheet(samples: Iterable[Sample], *, columns: int = 2, cell: int = 224) -> Pixels:
    """The same for removals: with the lesion | with a white hole | healthy; above them, what was drawn."""
    blocks = []
    for sample in samples:
        if sample.task != "removal" or sample.mask is None:
            raise MieError("not a removal", expected="removal samples", found=f"{sample.id} ({sample.task})")
        white = np.where(sample.mask[..., None] > 0, np.uint8(255), sample.input)
        mark = _GENERATED.get(str(sample.params.get("synthetic")), "")
        images = (sample.input, white, sample.target_image)
        blocks.append(_Block(_label(sample), images, sample.prompt, _around(sample.mask), mark))
    return _sheet(blocks, columns, cell)


def model_sheet(
    heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Pixels | None], str]], *, cell: int = 224
) -> Pixels:
    """`(H, W, 3) uint8` on white: a column under each head, a row of images for each sample.

    A row is a line above it, an image for each head (None: an empty place) and a text below it.
    """
    blocks = []
    for label, images, text in rows:
        shape = next((image.shape for image in images if image is not None), (cell, cell, 3))
        empty = np.full(shape, 235, np.uint8)
        blocks.append(_Block(label, tuple(empty if image is None else image for image in images), text))
    sheet = _Sheet(cell, len(heads))
    bands = [sheet.heads(heads), *(sheet.band([block], 1) for block in blocks)]
    return np.concatenate([*bands, np.full((sheet.margin, bands[0].shape[1], 3), 255, np.uint8)])


def sample_title(modality: str, target: str, between: str = ", ") -> str:
    """Return modality and target; the target alone where it names the modality.

    >>> sample_title("CT", "liver"), sample_title("MRI", "MRI bias field"), sample_title("CT", "low-dose CT")
    ('CT, liver', 'MRI bias field', 'low-dose CT')
    """
    named = re.search(rf"(?<!\w){re.escape(modality)}(?!\w)", target, re.IGNORECASE)
    return target if named else f"{modality}{between}{target}"


def _label(sample: Sample) -> str:
    return " ".join(sample_title(sample.modality, sample.target, " · ").split())


def _zoom(sample: Sample, cell: int) -> _Box | None:
    """Return where the two images differ most; None where the change is seen without a closer look."""
    before, after = sample.input, sample.target_image
    if sample.mask is not None or before.shape != after.shape:
        return None  # a region's change is seen, and other sizes have no place in common
    size = fitted_size(before.shape[0], before.shape[1], cell)
    small = cv2.absdiff(resize_image(before, size), resize_image(after, size))
    if small.mean() > _ALIKE:
        return None
    apart = cv2.absdiff(before, after).astype(np.float32).sum(axis=2)
    height, width = apart.shape
    side = min(height, width, max(8, round(max(height, width) / _ZOOMED)))
    nearby = cv2.GaussianBlur(apart, (0, 0), side / 4)
    row, column = np.unravel_index(int(nearby.argmax()), nearby.shape)
    return _square((int(row), int(column)), side, (height, width))


def _around(mask: Pixels) -> _Box | None:
    """Return a square around the region; None where the inset would not show it larger."""
    rows, columns = np.nonzero(mask)
    if not rows.size:
        return None
    low, high = (rows.min(), columns.min()), (rows.max() + 1, columns.max() + 1)
    side = round(_AROUND * max(high[0] - low[0], high[1] - low[1]))
    if side * _AROUND > _INSET * min(mask.shape):
        return None
    middle = int(low[0] + high[0]) // 2, int(low[1] + high[1]) // 2
    return _square(middle, side, mask.shape)


def _square(middle: tuple[int, int], side: int, shape: Sequence[int]) -> _Box:
    """The square about `middle`, moved into the image where it would leave it."""
    (row, column), (height, width) = middle, shape
    top = min(max(row - side // 2, 0), height - side)
    left = min(max(column - side // 2, 0), width - side)
    return _Box(top / height, left / width, side / height, side / width)


def _sheet(blocks: list[_Block], columns: int, cell: int) -> Pixels:
    if not blocks:
        raise MieError("no samples to show", expected="one sample or more")
    columns = min(columns, len(blocks))
    sheet = _Sheet(cell, len(blocks[0].images))
    rows = [blocks[at : at + columns] for at in range(0, len(blocks), columns)]
    bands = [sheet.band(row, columns) for row in rows]
    return np.concatenate([*bands, np.full((sheet.margin, bands[0].shape[1], 3), 255, np.uint8)])


class _Sheet:
    """The measures that follow from the cell, and the drawing of one band of blocks."""

    def __init__(self, cell: int, images: int) -> None:
        self.cell = cell
        self.gap = max(2, cell // 56)  # between the images of a block
        self.margin = max(8, cell // 10)  # between blocks
        self.block = images * cell + (images - 1) * self.gap
        size = max(11, cell // 9)
        self.label_font, self.prompt_font = _font("DejaVuSans-Bold", size), _font("DejaVuSans", size)
        self.line = round(1.3 * size)

    def band(self, blocks: list[_Block], columns: int) -> Pixels:
        """One row of blocks under a margin, as high as its longest text needs."""
        prompts = [_wrapped(block.text, self.prompt_font, self.block) for block in blocks]
        tallest = max(self._fitted(image)[0] for block in blocks for image in block.images)
        images_top = self.margin + self.line + self.gap
        prompts_top = images_top + tallest + self.gap
        height = prompts_top + self.line * max(len(lines) for lines in prompts)
        width = columns * (self.block + self.margin) + self.margin
        canvas = Image.new("RGB", (width, height), "white")
        draw = ImageDraw.Draw(canvas)
        for at, (block, lines) in enumerate(zip(blocks, prompts, strict=True)):
            left = self.margin + at * (self.block + self.margin)
            room = self.block - round(self.label_font.getlength(block.mark))
            label = _cut(block.label, self.label_font, room) + block.mark
            draw.text((left, self.margin), label, _INK, self.label_font)
            for place, image in enumerate(block.images):
                at_x = left + place * (self.cell + self.gap)
                x, y, shown = self._paste(canvas, image, at_x, images_top, tallest)
                last = place == len(block.images) - 1
                if block.zoom is not None and (last or place == 0):
                    self._enlarge(canvas, image, block.zoom, (x, y, *shown), right=not last)
            for number, line in enumerate(lines):
                draw.text((left, prompts_top + number * self.line), line, _GREY, self.prompt_font)
        return np.asarray(canvas)

    def heads(self, names: Sequence[str]) -> Pixels:
        """A line with a name over each column."""
        width = self.block + 2 * self.margin
        canvas = Image.new("RGB", (width, self.margin + self.line), "white")
        draw = ImageDraw.Draw(canvas)
        for at, name in enumerate(names):
            left = self.margin + at * (self.cell + self.gap)
            draw.text((left, self.margin), _cut(name, self.label_font, self.cell), _INK, self.label_font)
        return np.asarray(canvas)

    def _fitted(self, image: Pixels) -> tuple[int, int]:
        return fitted_size(image.shape[0], image.shape[1], self.cell)

    def _paste(
        self, canvas: Image.Image, image: Pixels, left: int, top: int, tallest: int
    ) -> tuple[int, int, tuple[int, int]]:
        """Put the image in the middle of its place, white around it; return x, y and (height, width)."""
        height, width = self._fitted(image)
        picture = Image.fromarray(resize_image(image, (height, width)))
        x, y = left + (self.cell - width) // 2, top + (tallest - height) // 2
        canvas.paste(picture, (x, y))
        return x, y, (height, width)

    def _enlarge(
        self,
        canvas: Image.Image,
        image: Pixels,
        box: _Box,
        place: tuple[int, int, int, int],
        *,
        right: bool,
    ) -> None:
        """Mark `box` in the image and show it enlarged in the corner beside the other image.

        `place` is the image's x, y, height and width on the canvas. The corner is the upper or the lower one,
        whichever does not hide the box.
        """
        x, y, height, width = place
        rows, columns = image.shape[:2]
        top, left = round(box.top * rows), round(box.left * columns)
        part = image[top : top + round(box.height * rows), left : left + round(box.width * columns)]
        side = round(_INSET * min(height, width))
        large = cv2.resize(part, (side, side), interpolation=cv2.INTER_CUBIC)
        above = box.top + box.height / 2 > 0.5
        corner = (x + width - side if right else x, y if above else y + height - side)
        draw, line = ImageDraw.Draw(canvas), max(1, self.cell // 112)
        marked = (x + box.left * width, y + box.top * height)
        end = (marked[0] + box.width * width, marked[1] + box.height * height)
        draw.rectangle((*marked, *end), outline=_MARK, width=line)
        canvas.paste(Image.fromarray(np.asarray(large, np.uint8)), corner)
        ends = (corner[0] + side - 1, corner[1] + side - 1)
        draw.rectangle((*corner, *ends), outline=_MARK, width=line)


def _font(name: str, size: int) -> _Font:
    # matplotlib's copy of DejaVu: there on every machine, and with more letters than Pillow's built-in font,
    # which lacks even é. Basic layout: the same pixels with and without libraqm.
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def _wrapped(text: str, font: _Font, width: int) -> list[str]:
    """Lines no wider than `width` pixels; a word that is wider by itself is cut."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(_cut(word, font, width))
    return lines or [""]


def _cut(text: str, font: _Font, width: int) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + _ELLIPSIS) > width:
        text = text[:-1]
    return text.rstrip() + _ELLIPSIS
