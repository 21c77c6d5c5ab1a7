"""Training rows that change an area: stored pairs, and white holes made during training.

Every picture that is painted on gives such holes: the input has a hole in the shape of a lesion on tissue
without lesions, the goal is the picture as it was. Shapes and sizes are those of the pack's own lesions. A
hole lies where no lesion is marked; of a few places, the one with most contrast is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mie.editors.compact.holes import find_hole
from mie.editors.compact.kinds import EditKind
from mie.records import Pixels
from mie.training.augment import Draw, crop_pairs
from mie.training.batches import Groups, Pool, letterbox, letterbox_mask, to_tensor
from mie.training.pack import Instruction, Pack, Row, Wording, as_rgb
from mie.vocabulary import MODALITIES

_CANVAS: Final = 64  # pixels a side of a stored shape, whose longer side takes
_SHAPE: Final = 48  # of them
_MOST_SHAPES: Final = 600
_PLACES: Final = 4  # tried for each hole
_SIZES: Final = (0.06, 0.6)  # of the view: a hole's longer side
_GROWTH: Final = 8  # pixels that a hole may extend into white next to it

# Words that name a place: mirrored, they would be wrong.
_PLACE_WORDS: Final = frozenset(
    (
        *("left", "right", "upper", "lower", "top", "bottom", "clock"),
        *("anterior", "posterior", "superior", "inferior", "nasal", "temporal", "medial"),
    )
)
_GAMMA: Final = 0.25  # log: both halves of a pair, so that white stays white
TEMPLATES: Final = (
    "Fill the white area with healthy tissue.",
    "Inpaint the white region so that it looks like normal tissue.",
    "Replace the white patch on this {picture} with healthy tissue.",
    "Complete the missing white part of this {picture}.",
    "Restore the blanked-out area with plausible normal anatomy.",
    "The white hole should show healthy tissue: fill it in.",
    "Reconstruct what lies under the white mask as normal tissue.",
    "Please fill in the masked white area on this {picture} without any lesion.",
    "Paint healthy tissue into the white hole and leave the rest untouched.",
    "Fill the white gap seamlessly with normal-looking tissue.",
    "On this {picture}, fill the white region with what surrounds it.",
    "Synthesize normal tissue inside the white area.",
)


class HealthyPicture(NamedTuple):
    """A picture that holes may be put into."""

    large: int  # which of the two pools of pictures
    place: int
    modality: str
    source: str
    grey: bool
    lesions: NDArray[np.uint8]  # (S, S), letterboxed: 1 where a lesion is marked, and beside the picture


class Shape(NamedTuple):
    outline: NDArray[np.uint8]  # (_CANVAS, _CANVAS)
    size: float  # its longer side as a share of the picture's


def fill_instruction(modality: str) -> Instruction:
    """Return the wordings that ask to fill a white hole in a picture of this modality."""
    picture = MODALITIES.get(modality, "image")
    wordings = tuple(Wording(template.format(picture=picture), template) for template in TEMPLATES)
    return Instruction(f"modification/inpainting/healthy tissue/{modality}", wordings)


def lesion_shape(mask: NDArray[np.uint8]) -> Shape | None:
    """Return the largest connected part of a mask `(H, W)`; None where there are only specks."""
    count, labels, stats, _ = cv2.connectedComponentsWithStats((mask > 0).astype(np.uint8))
    if count < 2:
        return None
    at = 1 + int(stats[1:, cv2.CC_STAT_AREA].argmax())
    left, top, width, height, area = (int(value) for value in stats[at])
    if area < 30:
        return None
    part = (labels[top : top + height, left : left + width] == at).astype(np.uint8)
    scale = _SHAPE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    part = np.asarray(cv2.resize(part, size, interpolation=cv2.INTER_NEAREST_EXACT), np.uint8)
    outline = np.zeros((_CANVAS, _CANVAS), np.uint8)
    y, x = (_CANVAS - part.shape[0]) // 2, (_CANVAS - part.shape[1]) // 2
    outline[y : y + part.shape[0], x : x + part.shape[1]] = part
    return Shape(outline, max(height, width) / max(mask.shape))


def healthy_pictures(
    packs: Sequence[Pack],
    fold: str,
    stored: Iterable[tuple[int, int, bool]],
    sides: tuple[int, int],
) -> tuple[list[HealthyPicture], list[Shape]]:
    """Return every painted picture once, with all lesions that any row marks on it; and all their shapes.

    `stored` says (large, place, grey) of each such row's picture, in the packs' order.
    """
    rows = [
        (number, pack, row)
        for number, pack in enumerate(packs)
        for row in pack.rows
        if row.fold == fold and row.kind is EditKind.OVERLAY and row.mask is not None
    ]
    pictures: dict[tuple[int, int], HealthyPicture] = {}
    shapes = []
    for (number, pack, row), (large, place, grey) in zip(rows, stored, strict=True):
        assert row.mask is not None  # noqa: S101 (chosen above)
        mask = pack.masks[row.mask]
        key = (number, row.input)
        if key not in pictures:
            beside = 1 - letterbox_mask(np.ones(mask.shape, np.uint8), sides[large])
            pictures[key] = HealthyPicture(large, place, row.modality, row.source, grey, beside)
        if row.task in ("lesion", "holistic"):
            marked = letterbox_mask((mask > 0).astype(np.uint8), sides[large])
            np.maximum(pictures[key].lesions, marked, out=pictures[key].lesions)
        if row.task == "lesion" and (shape := lesion_shape(mask)) is not None:
            shapes.append(shape)
    return list(pictures.values()), shapes


class HoleMaker:
    """Pictures and shapes on the device, from which holes are made during training."""

    def __init__(
        self, pictures: Sequence[HealthyPicture], shapes: Sequence[Shape], device: torch.device | str
    ) -> None:
        self.pictures = pictures
        self.groups = Groups.of([(one.modality, one.source) for one in pictures], 0.5)
        some = shapes[:: max(1, len(shapes) // _MOST_SHAPES)]
        self._outlines = torch.from_numpy(np.stack([s.outline for s in some])).to(device).float()[:, None]
        self._sizes = torch.tensor([s.size for s in some], device=device)
        self._lesions: list[Pool | None] = []
        self._at: dict[int, int] = {}  # of a picture, in its pool of lesions
        for large in (0, 1):
            chosen = [at for at, one in enumerate(pictures) if one.large == large]
            self._at |= {at: n for n, at in enumerate(chosen)}
            masks = [pictures[at].lesions for at in chosen]
            self._lesions.append(Pool(masks, device) if masks else None)

    def views(
        self,
        chosen: Sequence[int],
        pools: Sequence[Pool | None],
        draw: Draw,
        side: int,
        flags: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return goal `(B, 3, side, side)`, area and hole `(B, 1, side, side)` of pictures of one size.

        `pools` hold the pictures. `flags`: which may be mirrored, and which turned by quarters.
        """
        large = self.pictures[chosen[0]].large
        device = self._sizes.device
        pool, lesions = pools[large], self._lesions[large]
        assert pool is not None and lesions is not None  # noqa: S101 PT018 (they hold what was chosen)
        places = to_tensor([self.pictures[at].place for at in chosen], torch.long, device)
        image = pool.gather(places).float() / 255
        marked = lesions.gather(to_tensor([self._at[at] for at in chosen], torch.long, device)).float()
        flips, turns = flags
        cut = crop_pairs(draw, torch.cat([image, marked], 1), side, turns, flips)
        goal, marked = cut[:, :3], cut[:, 3:] > 0
        area = self._placed(draw, goal, marked, pool.values.shape[-1] / side)
        return goal, area, grow_hole(area, goal)

    def _placed(self, draw: Draw, image: Tensor, marked: Tensor, zoom: float) -> Tensor:
        """Return `(B, 1, S, S)` bool: the best of a few holes for each image."""
        b, side = len(image), image.shape[-1]
        n = b * _PLACES
        many = Draw(n, draw.generator)
        which = (many.uniform(0, 1) * len(self._sizes)).long().clamp(max=len(self._sizes) - 1)
        size = self._sizes[which] * zoom * torch.exp(many.uniform(-0.3, 0.3))
        size = size.clamp(*_SIZES)
        angle = many.uniform(-math.pi, math.pi)
        mirror = torch.where(many.chance(0.5), -1.0, 1.0)
        centre = many.uniform(-0.85, 0.85, 2)
        # From the view to the shape's canvas: `size` is a share of the view, the shape a share of the canvas.
        scale = (_SHAPE / _CANVAS) / size
        cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
        theta = torch.zeros(n, 2, 3, device=image.device)
        theta[:, 0, 0], theta[:, 0, 1] = cos * mirror, -sin
        theta[:, 1, 0], theta[:, 1, 1] = sin * mirror, cos
        theta[:, :, 2] = -(theta[:, :, :2] @ centre[:, :, None])[:, :, 0]
        grid = F.affine_grid(theta, [n, 1, side, side], align_corners=False)
        holes = F.grid_sample(self._outlines[which], grid, align_corners=False) > 0.5
        holes = holes.view(b, _PLACES, side, side)
        free = (holes & ~marked).float()
        area = free.sum((2, 3)).clamp(min=1)
        level = image.mean(1, keepdim=True)
        mean = (level * free).sum((2, 3)) / area
        spread = (level**2 * free).sum((2, 3)) / area - mean**2
        lost = 1 - area / holes.float().sum((2, 3)).clamp(min=1)
        best = (spread.clamp(min=0).sqrt() - 10 * lost).argmax(1)
        return (free > 0)[torch.arange(b, device=image.device), best][:, None]


def grow_hole(area: Tensor, image: Tensor) -> Tensor:
    """Return the hole as it is found in the image: the area, and up to eight pixels of white next to it."""
    white = (image >= 1).all(1, keepdim=True)
    hole = area.float()
    for _ in range(_GROWTH):
        hole = torch.maximum(hole, F.max_pool2d(hole, 3, 1, 1) * white)
    return hole


class AreaItem(NamedTuple):
    """A row that changes an area, as drawn for a batch."""

    large: int
    new_hole: bool  # a hole made now: `place` is a picture of `HoleMaker`
    place: int
    prompt: int
    grey: bool
    flips: bool
    turns: bool
    removal: bool
    absent: bool  # what is to be removed is not there: the input is its own goal


class AreaViews(NamedTuple):
    """`(M, ...)` as the network sees them."""

    image: Tensor  # (M, 3, S, S)
    goal: Tensor
    area: Tensor  # (M, 1, S, S) 1 where the goal differs
    hole: Tensor  # (M, 1, S, S) 1 in the white hole


class StoredRow(NamedTuple):
    """A row, and where its pixels are."""

    row: Row
    large: int  # which of the two pools: 0 for the smaller side, 1 for the larger
    place: int
    instruction: int
    grey: bool


class AreaRows:
    """The pack's own pairs that differ in an area, on the device."""

    def __init__(self, device: torch.device | str, sides: tuple[int, int]) -> None:
        self.device, self._sides = device, sides
        self.stored: list[StoredRow] = []
        self._arrays: tuple[list[Any], list[Any]] = ([], [])
        self._centres: tuple[list[Any], list[Any]] = ([], [])

    def add(self, pack: Pack, row: Row, instruction: int) -> None:
        assert row.goal is not None and row.mask is not None  # noqa: S101 PT018 (such a row has both)
        image, goal = pack.images[row.input], pack.images[row.goal]
        large = int(max(image.shape[:2]) > self._sides[0])
        side = self._sides[large]
        both = [letterbox(as_rgb(half), side, enlarge=False)[0] for half in (image, goal)]
        maps = [pack.masks[row.mask] > 0, find_hole(as_rgb(image))]
        area, hole = (letterbox(255 * m.astype(np.uint8), side, enlarge=False)[0] for m in maps)
        grey = image.ndim == goal.ndim == 2
        self.stored.append(StoredRow(row, large, len(self._arrays[large]), instruction, grey))
        self._arrays[large].append(np.asarray(cv2.merge([*both, area, hole]), np.uint8))
        self._centres[large].append(_centre(area > 0))

    def finish(self) -> None:
        """Move to the device; nothing can be added after that."""
        self._pools = [Pool(some, self.device) if some else None for some in self._arrays]
        self._around = [torch.tensor(np.array(c), dtype=torch.float32).to(self.device) for c in self._centres]
        self._arrays = ([], [])
        keys = [(stored.row.source, stored.row.task) for stored in self.stored]
        self.groups = Groups.of(keys, 0.5) if keys else None

    def views(self, items: Sequence[AreaItem], draw: Draw) -> AreaViews:
        """Return the views of pairs of one size."""
        large = items[0].large
        pool = self._pools[large]
        assert pool is not None  # noqa: S101 (it holds what was chosen)
        place = to_tensor([item.place for item in items], torch.long, self.device)
        both = pool.gather(place).float() / 255
        around = self._around[large].index_select(0, place)
        flips, turns = flags(items, self.device)
        side = self._sides[0]
        if large:
            # Half of the views show the whole at half its size: lesions larger than a view, and their place.
            whole = draw.chance(0.5)[:, None, None, None]
            halved = F.pad(_halved(both), (0, both.shape[-1] - side, 0, both.shape[-1] - side))
            both = torch.where(whole, halved, both)
            around = torch.where(whole[:, 0, 0], 0.0, around)
        both = crop_pairs(draw, both, side, turns, flips, around if large else None)
        absent = to_tensor([item.absent for item in items], torch.bool, self.device)[:, None, None, None]
        image, goal = torch.where(absent, both[:, 3:6], both[:, :3]), both[:, 3:6]
        area = (both[:, 6:7] > 0.5) & ~absent
        return AreaViews(image, goal, area.float(), (both[:, 7:8] >= 1).float())


def area_views(
    items: Sequence[AreaItem],
    stored: AreaRows,
    holes: HoleMaker | None,
    pools: Sequence[Pool | None],
    generator: torch.Generator,
    side: int,
) -> AreaViews:
    """Return the views of a batch, which is sorted by size, then by whether the hole is made now."""
    parts = []
    for large in (0, 1):
        for new in (False, True):
            some = [item for item in items if item.large == large and item.new_hole == new]
            if not some:
                continue
            draw = Draw(len(some), generator)
            if new and holes is not None:
                goal, area, hole = holes.views(
                    [item.place for item in some], pools, draw, side, flags(some, stored.device)
                )
                image = torch.where(area, 1.0, goal)
                parts.append(AreaViews(image, goal, area.float(), hole))
            else:
                parts.append(stored.views(some, draw))
    if not parts:
        empty = torch.zeros(0, 3, side, side, device=stored.device)
        return AreaViews(empty, empty, empty[:, :1], empty[:, :1])
    views = AreaViews(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    gamma = torch.exp(Draw(len(items), generator).uniform(-_GAMMA, _GAMMA))[:, None, None, None]
    return views._replace(image=views.image.clamp(0, 1) ** gamma, goal=views.goal.clamp(0, 1) ** gamma)


def flags(items: Sequence[AreaItem], device: torch.device | str) -> tuple[Tensor, Tensor]:
    flips = to_tensor([item.flips for item in items], torch.bool, device)
    return flips, to_tensor([item.turns for item in items], torch.bool, device)


def names_a_place(text: str) -> bool:
    words = "".join(c if c.isalpha() else " " for c in text.lower()).split()
    return bool(_PLACE_WORDS & set(words))


def _halved(both: Tensor) -> Tensor:
    """Images by area; the area of change where any pixel was in it, the hole where all were."""
    images = F.avg_pool2d(both[:, :6], 2)
    area = F.max_pool2d(both[:, 6:7], 2)
    hole = -F.max_pool2d(-both[:, 7:8], 2)
    return torch.cat([images, area, hole], 1)


def _centre(area: NDArray[np.bool_]) -> tuple[float, float]:
    """(row, column) of the middle of an area; the square's where there is none."""
    rows, columns = np.nonzero(area)
    if not len(rows):
        return area.shape[0] / 2, area.shape[1] / 2
    return float(rows.mean()), float(columns.mean())


def mean_filled(image: Pixels, hole: NDArray[np.bool_]) -> Pixels:
    """Fill the hole with the mean colour of the rest: the baseline that a fill must beat."""
    filled = image.copy()
    if hole.any() and not hole.all():
        filled[hole] = np.rint(image[~hole].mean(0))
    return filled
