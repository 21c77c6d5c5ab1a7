"""What the flow expert learns from, on the device: crops with holes, cut on the fly.

Half of a batch are lesions, each in its own outline grown by a few pixels. Half are holes in the shape of
lesions, placed where no lesion is marked. Half show the image's own pixels, half are scaled to the hole, so
that large ones are learnt too. What lies beyond the image is not drawn. Needs nothing but torch and NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mie.images.families import FAMILIES
from mie.networks.flow import SIDE, Conditions
from mie.training.batches import Groups

CANVAS: Final = 384  # the longest side of an image
OUTSIDE: Final = 255  # label of what lies beyond the image
_EXTENTS: Final = (10.0, 115.0)  # pixels of the crop that a hole in healthy tissue extends over
_AROUND: Final = (1.3, 3.0)  # a crop's side, in extents of its lesion
_SIDES: Final = (88.0, 400.0)  # pixels of the image that a scaled crop shows
# Families whose crops may be turned: sound and X-rays have a direction.
FREE: Final = ("dermoscopy", "endoscopy", "fundus", "mri", "ct", "microscopy")
_POWER: Final = 0.5  # a group of n is drawn by n to this power


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


class Crops(NamedTuple):
    """A batch `(B, C, SIDE, SIDE)`, float32."""

    image: Tensor  # RGB in [0, 1]
    hole: Tensor  # what is drawn
    beyond: Tensor  # what lies beyond the image
    lesion: Tensor
    conditions: Conditions
    target: Tensor  # (B,): also where the conditions do not name it
    of: Tensor  # (B,): the image each was cut from

    def part(self, which: slice | Tensor) -> Crops:
        conditions = Conditions(*(value[which] for value in self.conditions))
        image, hole, beyond, lesion = (value[which] for value in self[:4])
        return Crops(image, hole, beyond, lesion, conditions, self.target[which], self.of[which])


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
        self.free = torch.tensor([name in FREE for name in FAMILIES], device=device)
        self._lesions = lesion_weights(data.lesions[:, [0, 2]].astype(np.int64), data.families)
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
        return Crops(image_, hole_, 1 - inside_, region_, conditions, target, image)

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
        exact = F.grid_sample(pixels, grid_of(corner, side, SIDE), align_corners=False)
        fine = F.grid_sample(pixels, grid_of(corner, side, 2 * SIDE), align_corners=False)
        native = (side == SIDE).view(-1, 1, 1, 1)
        labels = self.labels[image].float()
        grid = grid_of(corner, side, SIDE)
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
        """Mirrored, turned where the family allows it, a little brighter or darker."""
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


def grid_of(corner: Tensor, side: Tensor, count: int) -> Tensor:
    """Where `count` x `count` pixels of each crop lie on the canvas, for `grid_sample`."""
    at = (torch.arange(count, device=corner.device) + 0.5) / count
    y = 2 * (corner[:, :1] + side[:, None] * at) / CANVAS - 1
    x = 2 * (corner[:, 1:] + side[:, None] * at) / CANVAS - 1
    across = x[:, None, :].expand(-1, count, -1)
    return torch.stack([across, y[:, :, None].expand(-1, -1, count)], -1)


def lesion_weights(lesions: NDArray[np.int64], families: NDArray[np.int64]) -> NDArray[np.float64]:
    """How often each lesion is drawn: by its family and name, and evenly over its images."""
    groups = Groups.of([(int(families[image]), int(target)) for image, target in lesions], _POWER)
    weights = np.zeros(len(lesions))
    for rows, share in zip(groups.rows, groups.share, strict=True):
        images, count = np.unique(lesions[rows, 0], return_counts=True)
        each: Mapping[int, int] = dict(zip(images.tolist(), count.tolist(), strict=True))
        weights[rows] = [share / (len(images) * each[int(image)]) for image in lesions[rows, 0]]
    return weights
