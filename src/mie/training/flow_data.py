"""What the flow expert learns from: images and lesions on the device, crops with holes cut on the fly.

Half of a batch are lesions, each in its own outline grown by a few pixels. Half are holes in the shape of
lesions, placed where no lesion is marked. Half show the image's own pixels, half are scaled to the hole, so
that large ones are learnt too. What lies beyond the image belongs to the hole, but is not learnt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mie.core.hashing import generator, stable_hash
from mie.editors.compact.kinds import EditKind
from mie.errors import ConfigError
from mie.images.families import FAMILIES, GREY, family_of
from mie.networks.flow import SIDE, Conditions
from mie.perspectives.modification.inpainters.holes import LesionShapes
from mie.records import Mask
from mie.training.batches import Groups
from mie.training.pack import Pack, as_rgb

CANVAS: Final = 256  # the longest side of an image
OUTSIDE: Final = 255  # label of what lies beyond the image
_DARK: Final = 12  # grey levels: the air around a body is darker
_CLEAR: Final = 9  # pixels around a lesion that are not healthy either
_POINTS: Final = 64  # places for holes, of each image
_SMALLEST: Final = 12  # pixels of a lesion that can be drawn
_PARTS: Final = 6  # lesions of one name in one image
_SHAPES: Final = 1024
_SHAPE: Final = 64  # side of an outline
_EXTENTS: Final = (10.0, 150.0)  # pixels of the crop that a hole in healthy tissue extends over
_AROUND: Final = (1.3, 3.0)  # a crop's side, in extents of its lesion
_SIDES: Final = (88.0, 288.0)  # pixels of the image that a scaled crop shows
_FREE: Final = ("dermoscopy", "endoscopy")  # families without an upright
_POWER: Final = 0.5  # a group of n is drawn by n to this power


class Lesion(NamedTuple):
    """A connected lesion: its image, its label there, its target, and where it lies."""

    image: int
    label: int
    target: int
    row: float
    column: float
    extent: float


@dataclass(frozen=True, slots=True)
class FlowData:
    """A fold as arrays: small enough to lie on the device as a whole."""

    images: NDArray[np.uint8]  # (N, 3, CANVAS, CANVAS), from the upper left corner
    labels: NDArray[np.uint8]  # (N, CANVAS, CANVAS): 0 unmarked, 1... a lesion by name, OUTSIDE
    sizes: NDArray[np.int64]  # (N, 2)
    families: NDArray[np.int64]  # (N,)
    sources: NDArray[np.str_]  # (N,)
    patients: NDArray[np.str_]  # (N,)
    points: NDArray[np.float32]  # (N, _POINTS, 2): healthy places; NaN where there are none
    lesions: NDArray[np.float32]  # (M, 6): `Lesion`
    shapes: NDArray[np.bool_]  # (K, _SHAPE, _SHAPE): outlines

    def arrays(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def lesion_names(packs: Sequence[Pack], fold: str, least: int) -> tuple[str, ...]:
    """Names of lesions that at least so many rows show."""
    count: dict[str, int] = {}
    for row in (row for pack in packs for row in pack.rows if _lesion(row) and row.fold == fold):
        count[row.target] = count.get(row.target, 0) + 1
    return tuple(sorted(name for name, number in count.items() if number >= least))


def flow_data(packs: Sequence[Pack], fold: str, targets: Sequence[str], seed: int) -> FlowData:
    """The fold's images of a known family, each once, with its lesions.

    A lesion whose name is not among the targets is marked, so that it does not pass for healthy.
    """
    numbers = {name: at for at, name in enumerate(targets)}
    names = ("images", "labels", "sizes", "families", "sources", "patients", "points")
    parts: dict[str, list[Any]] = {name: [] for name in names}
    lesions: list[Lesion] = []
    outlines: list[Mask] = []
    for pack in packs:
        rows: dict[int, list[Any]] = {}
        for row in pack.rows:
            if row.kind is EditKind.OVERLAY and row.fold == fold and family_of(row.modality) is not None:
                rows.setdefault(row.input, []).append(row)
        for place, shown in rows.items():
            family = str(family_of(shown[0].modality))
            image = as_rgb(pack.images[place])
            height, width = image.shape[:2]
            if max(height, width) > CANVAS:
                raise ConfigError(
                    "an image is too large for the flow expert",
                    expected=f"at most {CANVAS} pixels a side",
                    found=f"{width}x{height}",
                    fix=f"pack with --longest {CANVAS}",
                )
            if family in GREY:
                image = np.repeat(image.mean(2, keepdims=True).round().astype(np.uint8), 3, axis=2)
            labels = np.full((CANVAS, CANVAS), OUTSIDE, np.uint8)
            labels[:height, :width] = 0
            for label, row in enumerate((row for row in shown if _lesion(row)), 1):
                mask = pack.masks[row.mask] > 0
                labels[:height, :width][mask] = label
                outlines.append(mask)
                if row.target in numbers:
                    lesions += _components(mask, len(parts["images"]), label, numbers[row.target])
            name = f"{shown[0].source}/{place}"
            parts["images"].append(_canvas(image))
            parts["labels"].append(labels)
            parts["sizes"].append((height, width))
            parts["families"].append(FAMILIES.index(family))
            parts["sources"].append(shown[0].source)
            parts["patients"].append(shown[0].patient_id or name)
            parts["points"].append(
                _healthy(image, labels[:height, :width] > 0, stable_hash("flow", seed, name))
            )
    if not parts["images"]:
        raise ConfigError("no images of a known family", where="data.packs", found=f"fold {fold}")
    if not lesions:
        raise ConfigError("no lesions of a known name", where="data.packs", found=f"fold {fold}")
    return FlowData(
        images=np.stack(parts["images"]),
        labels=np.stack(parts["labels"]),
        sizes=np.array(parts["sizes"], np.int64),
        families=np.array(parts["families"], np.int64),
        sources=np.array(parts["sources"]),
        patients=np.array(parts["patients"]),
        points=np.stack(parts["points"]),
        lesions=np.array(lesions, np.float32),
        shapes=_outlines(outlines, seed),
    )


def _lesion(row: Any) -> bool:
    return bool(row.kind is EditKind.OVERLAY and row.task == "lesion" and row.mask is not None)


def _canvas(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    edges = (0, CANVAS - image.shape[0], 0, CANVAS - image.shape[1])
    return np.asarray(cv2.copyMakeBorder(image, *edges, cv2.BORDER_CONSTANT), np.uint8).transpose(2, 0, 1)


def _components(mask: Mask, image: int, label: int, target: int) -> list[Lesion]:
    """Lesions a few pixels apart count as one."""
    near = cv2.dilate(mask.astype(np.uint8), np.ones((7, 7), np.uint8))
    count, parts = cv2.connectedComponents(near)
    lesions = []
    for part in range(1, count):
        rows, columns = np.nonzero(mask & (parts == part))
        if len(rows) < _SMALLEST:
            continue
        extent = max(np.ptp(rows), np.ptp(columns)) + 1
        middle = ((rows.min() + rows.max() + 1) / 2, (columns.min() + columns.max() + 1) / 2)
        place = (float(middle[0]), float(middle[1]), float(extent))
        lesions.append((len(rows), Lesion(image, label, target, *place)))
    lesions.sort(key=lambda item: -item[0])
    return [lesion for _, lesion in lesions[:_PARTS]]


def _healthy(image: NDArray[np.uint8], lesion: Mask, seed: int) -> NDArray[np.float32]:
    """Places inside the body and clear of lesions; NaN where there are none."""
    level = cv2.GaussianBlur(image.mean(axis=2).astype(np.float32), (0, 0), 4)
    clear = cv2.dilate(lesion.astype(np.uint8), np.ones((2 * _CLEAR + 1,) * 2, np.uint8)) == 0
    places = np.argwhere((level > _DARK) & clear)
    if len(places) < _POINTS:
        return np.full((_POINTS, 2), np.nan, np.float32)
    chosen = generator(seed).choice(len(places), _POINTS, replace=False)
    return places[chosen].astype(np.float32) + 0.5


def _outlines(masks: Sequence[Mask], seed: int) -> NDArray[np.bool_]:
    shapes = [shape for shape in LesionShapes.from_masks(masks).shapes if min(shape.crop.shape) >= 6]
    if not shapes:
        raise ConfigError("no lesion lies whole inside its image", where="data.packs")
    order = generator(stable_hash("outlines", seed)).permutation(len(shapes))[:_SHAPES]
    squares = np.zeros((len(order), _SHAPE, _SHAPE), np.bool_)
    for at, number in enumerate(order):
        crop = shapes[number].crop
        scale = _SHAPE / max(crop.shape)
        height, width = (max(1, round(side * scale)) for side in crop.shape)
        small = cv2.resize(crop.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR) > 0.5
        top, left = (_SHAPE - height) // 2, (_SHAPE - width) // 2
        squares[at, top : top + height, left : left + width] = small
    return squares


class Crops(NamedTuple):
    """A batch `(B, C, SIDE, SIDE)`, float32."""

    image: Tensor  # RGB in [0, 1]
    hole: Tensor
    lesion: Tensor
    learnt: Tensor  # the part of the hole that lies in the image
    conditions: Conditions
    of: Tensor  # (B,): the image each was cut from


class Cutter:
    """Cuts crops from a fold on the device; all randomness comes from the generator it is given."""

    def __init__(self, data: FlowData, device: torch.device) -> None:
        self.device = device
        self.images = torch.from_numpy(data.images).to(device)
        self.labels = torch.from_numpy(data.labels).to(device)[:, None]
        self.sizes = torch.from_numpy(data.sizes).to(device).float()
        self.families = torch.from_numpy(data.families).to(device)
        self.points = torch.from_numpy(data.points).to(device)
        self.lesions = torch.from_numpy(data.lesions).to(device)
        self.shapes = torch.from_numpy(data.shapes).to(device)[:, None].float()
        self.free = torch.tensor([name in _FREE for name in FAMILIES], device=device)
        self._lesions = _weights(data.lesions[:, [0, 2]].astype(np.int64), data.families)
        usable = np.flatnonzero(~np.isnan(data.points[:, 0, 0]))
        groups = Groups.of([(int(data.families[n]), data.sources[n]) for n in usable], _POWER)
        self._healthy = np.zeros(len(data.images))
        for rows, share in zip(groups.rows, groups.share, strict=True):
            self._healthy[usable[rows]] = share / len(rows)
        self._chances = tuple(torch.from_numpy(p).to(device) for p in (self._lesions, self._healthy))

    def cut(self, count: int, seed: int) -> Crops:
        """`count` crops, the first half of them lesions."""
        draw = torch.Generator(self.device).manual_seed(seed)
        lesions = count // 2
        chosen = self.lesions[torch.multinomial(self._chances[0], lesions, True, generator=draw)]
        healthy = torch.multinomial(self._chances[1], count - lesions, True, generator=draw)
        spot = self._integers(count - lesions, self.points.shape[1], draw)
        image = torch.cat([chosen[:, 0].long(), healthy])
        label = torch.cat([chosen[:, 1], torch.zeros_like(spot)])
        target = torch.cat([chosen[:, 2].long() + 2, torch.ones_like(spot)])
        middle = torch.cat([chosen[:, 3:5], self.points[healthy, spot]])
        extent = torch.cat([chosen[:, 5], _logarithmic(self._uniform(len(spot), draw), *_EXTENTS)])
        is_lesion = torch.arange(count, device=self.device) < lesions
        side, corner = self._window(is_lesion, middle, extent, self.sizes[image], draw)
        pixels, labels, inside = self._sample(image, side, corner)
        region = (labels == label.view(-1, 1, 1, 1)) & is_lesion.view(-1, 1, 1, 1) & inside
        marked = (labels > 0) & inside
        # Lesions: their outline grown by 2 or 5 pixels. Else an outline from anywhere, clear of lesions.
        wide = self._uniform(count, draw).view(-1, 1, 1, 1) < 0.5
        near = region.float()
        near = torch.where(wide, _grown(near, 5), _grown(near, 2)) > 0
        placed = self._outline((middle - corner) * (SIDE / side)[:, None], extent, draw)
        hole = (
            torch.where(is_lesion.view(-1, 1, 1, 1), near, placed & ~(_grown(marked.float(), 3) > 0)) & inside
        )
        image_, hole_, region_, inside_ = self._changed(
            pixels, hole, region, inside, self.families[image], draw
        )
        conditions = self._conditions(image_, region_, self.families[image], target, draw)
        return Crops(image_, (hole_ + 1 - inside_).clamp(max=1), region_, hole_, conditions, image)

    def _window(
        self, is_lesion: Tensor, middle: Tensor, extent: Tensor, size: Tensor, draw: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A crop's side and upper left corner in the image, in pixels. Half keep the image's own pixels."""
        count = len(middle)
        u, own = self._uniform(count, draw), self._uniform(count, draw) < 0.5
        around = extent * (_AROUND[0] + (_AROUND[1] - _AROUND[0]) * u)
        scaled = torch.where(is_lesion, around, _logarithmic(u, *_SIDES)).clamp(*_SIDES)
        native = own & ~(is_lesion & (extent > 0.9 * SIDE))
        side = torch.where(native, torch.full_like(scaled, SIDE), scaled)
        slack = (side - torch.where(is_lesion, extent, 0.2 * side)).clamp(min=0) * 0.5
        shift = (torch.rand(count, 2, generator=draw, device=self.device) - 0.5) * slack[:, None]
        most = (size - side[:, None]).clamp(min=0)
        least = torch.minimum(size - side[:, None], torch.zeros_like(size)) / 2
        wanted = middle - side[:, None] / 2 + shift
        corner = torch.where(size >= side[:, None], torch.minimum(wanted.clamp(min=0), most), least)
        return side, torch.where(native[:, None], corner.round(), corner)

    def _sample(self, image: Tensor, side: Tensor, corner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels, labels and what lies inside the image. A native crop is exact; others are averaged."""
        pixels = self.images[image].float() / 255
        exact = F.grid_sample(pixels, _grid(corner, side, SIDE), align_corners=False)
        fine = F.grid_sample(pixels, _grid(corner, side, 2 * SIDE), align_corners=False)
        native = (side == SIDE).view(-1, 1, 1, 1)
        labels = self.labels[image].float()
        grid = _grid(corner, side, SIDE)
        beyond = F.grid_sample(
            255 - labels, grid, mode="nearest", align_corners=False
        )  # zero beyond the canvas
        found = 255 - beyond
        return torch.where(native, exact, F.avg_pool2d(fine, 2)), found, found < OUTSIDE

    def _outline(self, middle: Tensor, extent: Tensor, draw: torch.Generator) -> Tensor:
        """A random outline, turned, about `middle`, in pixels of the crop."""
        count = len(middle)
        shape = self.shapes[self._integers(count, len(self.shapes), draw)]
        angle = 2 * torch.pi * self._uniform(count, draw)
        at = torch.arange(SIDE, device=self.device) + 0.5
        y = (at[None, :, None] - middle[:, 0, None, None]) / (extent[:, None, None] / 2)
        x = (at[None, None, :] - middle[:, 1, None, None]) / (extent[:, None, None] / 2)
        cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
        grid = torch.stack([cos * x + sin * y, cos * y - sin * x], -1)
        return F.grid_sample(shape, grid, align_corners=False) > 0.5

    def _changed(
        self,
        pixels: Tensor,
        hole: Tensor,
        region: Tensor,
        inside: Tensor,
        family: Tensor,
        draw: torch.Generator,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mirrored, turned where the family has no upright, a little brighter or darker."""
        whole = torch.cat([pixels, hole.float(), region.float(), inside.float()], 1)
        free = self.free[family]
        for axes, allowed in (((3,), None), ((2,), free), ((2, 3), free)):
            turn = (self._uniform(len(whole), draw) < 0.5) & (True if allowed is None else allowed)
            other = whole.transpose(2, 3) if len(axes) == 2 else whole.flip(axes)
            whole = torch.where(turn.view(-1, 1, 1, 1), other, whole)
        u, v = (self._uniform(len(whole), draw).view(-1, 1, 1, 1) - 0.5 for _ in range(2))
        image = (whole[:, :3] ** torch.exp(0.4 * u) * (0.95 + 0.2 * v)).clamp(0, 1)
        return image, whole[:, 3:4], whole[:, 4:5], whole[:, 5:6]

    def _conditions(
        self, image: Tensor, region: Tensor, family: Tensor, target: Tensor, draw: torch.Generator
    ) -> Conditions:
        """Names are dropped in a tenth, contrast in half: then the network has to do without."""
        contrast = lesion_contrast(image, region)
        unknown = (self._uniform(len(image), draw) < 0.5) | (target < 2)
        unnamed = self._uniform(len(image), draw) < 0.1
        return Conditions(
            family,
            torch.where(unnamed, torch.zeros_like(target), target),
            torch.where(unknown, torch.full_like(contrast, torch.nan), contrast),
        )

    def _uniform(self, count: int, draw: torch.Generator) -> Tensor:
        return torch.rand(count, generator=draw, device=self.device)

    def _integers(self, count: int, below: int, draw: torch.Generator) -> Tensor:
        return torch.randint(below, (count,), generator=draw, device=self.device)


def lesion_contrast(image: Tensor, region: Tensor) -> Tensor:
    """A lesion's mean grey level above that of the 6 pixels around it, `(B,)`; zero without one."""
    grey = image.mean(1, keepdim=True)
    ring = _grown(region, 8) - _grown(region, 2)
    means = [(grey * part).sum((1, 2, 3)) / part.sum((1, 2, 3)).clamp(min=1) for part in (region, ring)]
    seen = (region.sum((1, 2, 3)) > 0) & (ring.sum((1, 2, 3)) > 0)
    return torch.where(seen, means[0] - means[1], torch.zeros_like(means[0]))


def _grown(mask: Tensor, pixels: int) -> Tensor:
    return F.max_pool2d(mask, 2 * pixels + 1, 1, pixels)


def _logarithmic(u: Tensor, low: float, high: float) -> Tensor:
    return low * (high / low) ** u


def _grid(corner: Tensor, side: Tensor, count: int) -> Tensor:
    """Where `count` x `count` pixels of each crop lie on the canvas, for `grid_sample`."""
    at = (torch.arange(count, device=corner.device) + 0.5) / count
    y = 2 * (corner[:, :1] + side[:, None] * at) / CANVAS - 1
    x = 2 * (corner[:, 1:] + side[:, None] * at) / CANVAS - 1
    across = x[:, None, :].expand(-1, count, -1)
    return torch.stack([across, y[:, :, None].expand(-1, -1, count)], -1)


def _weights(lesions: NDArray[np.int64], families: NDArray[np.int64]) -> NDArray[np.float64]:
    """How often each lesion is drawn: by its family and name, and evenly over its images."""
    groups = Groups.of([(int(families[image]), int(target)) for image, target in lesions], _POWER)
    weights = np.zeros(len(lesions))
    for rows, share in zip(groups.rows, groups.share, strict=True):
        images, count = np.unique(lesions[rows, 0], return_counts=True)
        each: Mapping[int, int] = dict(zip(images.tolist(), count.tolist(), strict=True))
        weights[rows] = [share / (len(images) * each[int(image)]) for image in lesions[rows, 0]]
    return weights
