"""What the region detector learns from: lesions in their outlines, and the same outlines on healthy tissue.

A healthy place must not be told by its shape, size or whereabouts. So it has the outline of a lesion, and
lies beside that lesion, mirrored across the image, anywhere in the same image, or at the same spot of another
image of the data set, clear of every marked lesion. Cut on the device.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mie.images.families import FAMILIES
from mie.networks.region import AROUND, NARROWEST, SIDE
from mie.training.flow_crops import CANVAS, FREE, OUTSIDE, FlowData, grid_of, lesion_weights

_OUTLINE: Final = 64  # side of a stored outline
_WIDER: Final = 1.15  # an outline's window, in extents
_CLEAR: Final = 0.02  # share of an outline that may lie on a lesion and still be healthy
_INSIDE: Final = 0.9  # share of it that lies inside the image
_AIR: Final = 0.02  # a darker place shows nothing
_APART: Final = (1.1, 2.5)  # extents between a lesion and a place beside it


class Squares(NamedTuple):
    """A batch `(B, C, SIDE, SIDE)`: `valid (B,)` is 0 where no healthy place was found."""

    image: Tensor  # RGB in [0, 1]
    outline: Tensor
    family: Tensor  # (B,)
    lesion: Tensor  # (B,): 1 for lesions, 0 for healthy places
    valid: Tensor
    of: Tensor  # (B,): the lesion that gave the outline


class SquareCutter:
    """Cuts squares of some of the lesions, by number.

    `held_out (N,) bool` are images of patients who are not trained on: a healthy place for a lesion of one
    side never lies in an image of the other.
    """

    def __init__(self, data: FlowData, device: torch.device, held_out: NDArray[np.bool_]) -> None:
        self.data, self.device = data, device
        self.images = torch.from_numpy(data.images).to(device)
        self.labels = torch.from_numpy(data.labels).to(device)[:, None]
        self.sizes = torch.from_numpy(data.sizes).to(device).float()
        self.families = torch.from_numpy(data.families).to(device)
        self.points = torch.from_numpy(data.points).to(device)
        self.lesions = torch.from_numpy(data.lesions).to(device)
        self.free = torch.tensor([name in FREE for name in FAMILIES], device=device)
        self.outlines = self._own_outlines()
        # Images of the same data set and side: where another patient shows the same spot.
        _, sources = np.unique(data.sources, return_inverse=True)
        numbers = 2 * sources + held_out
        order = np.argsort(numbers, kind="stable")
        starts = np.searchsorted(numbers[order], np.arange(numbers.max() + 2))
        self._order = torch.from_numpy(order).to(device)
        self._first = torch.from_numpy(starts[:-1][numbers]).to(device)
        self._count = torch.from_numpy(np.diff(starts)[numbers]).to(device)

    def weights(self, chosen: np.ndarray) -> Tensor:
        """How often each of the chosen lesions is drawn; 0 for the others."""
        chances = np.zeros(len(self.data.lesions))
        rows = self.data.lesions[chosen][:, [0, 2]].astype(np.int64)
        chances[chosen] = lesion_weights(rows, self.data.families)
        return torch.from_numpy(chances).to(self.device)

    def draw(self, weights: Tensor, count: int, seed: int) -> Squares:
        """Half of them lesions, half healthy places, changed as other scanners might show them."""
        random = torch.Generator(self.device).manual_seed(seed)
        of = torch.multinomial(weights, count, True, generator=random)
        lesion = (torch.arange(count, device=self.device) < count // 2).float()
        around = AROUND * torch.exp(0.35 * (2 * self._uniform(count, random) - 1))
        shift = 0.2 * (torch.rand(count, 2, generator=random, device=self.device) - 0.5)
        squares = self._cut(of, lesion, around, shift, random)
        return self._changed(squares, random)

    def held_out(self, of: Tensor, lesion: float, seed: int) -> Squares:
        """The squares of these lesions, or a healthy place for each, as a build would see them."""
        random = torch.Generator(self.device).manual_seed(seed)
        flags = torch.full((len(of),), lesion, device=self.device)
        around = torch.full((len(of),), AROUND, device=self.device)
        return self._cut(of, flags, around, torch.zeros(len(of), 2, device=self.device), random)

    def _cut(
        self, of: Tensor, lesion: Tensor, around: Tensor, shift: Tensor, random: torch.Generator
    ) -> Squares:
        rows = self.lesions[of]
        own, middle, extent = rows[:, 0].long(), rows[:, 3:5], rows[:, 5]
        image, place = self._healthy_place(own, middle, extent, random)
        healthy = lesion == 0
        image = torch.where(healthy, image, own)
        middle = torch.where(healthy[:, None], place, middle)
        side = (around * extent).clamp(min=NARROWEST)
        corner = middle - side[:, None] / 2 + shift * side[:, None]
        pixels = self.images[image].float() / 255
        # Beyond the image its edge is repeated, as `networks.region.square` does.
        most = (2 * self.sizes[image] - 1) / CANVAS - 1
        grid = grid_of(corner, side, 2 * SIDE)
        grid = torch.minimum(grid.clamp(min=1 / CANVAS - 1), most.flip(1)[:, None, None])
        shown = F.avg_pool2d(F.grid_sample(pixels, grid, align_corners=False), 2)
        labels = 255 - F.grid_sample(
            255 - self.labels[image].float(), grid_of(corner, side, SIDE), mode="nearest", align_corners=False
        )
        marked = (labels > 0) & (labels < OUTSIDE)
        window = (_WIDER * extent).clamp(min=1)
        at = (torch.arange(SIDE, device=self.device) + 0.5) / SIDE
        y = (corner[:, :1] + side[:, None] * at - middle[:, :1]) / (window[:, None] / 2)
        x = (corner[:, 1:] + side[:, None] * at - middle[:, 1:]) / (window[:, None] / 2)
        grid = torch.stack([x[:, None, :].expand(-1, SIDE, -1), y[:, :, None].expand(-1, -1, SIDE)], -1)
        outline = (F.grid_sample(self.outlines[of], grid, align_corners=False) > 0.5).float()
        # A grown outline at times: that of a hole is wider than its lesion.
        grown = self._uniform(len(of), random) < 0.5
        outline = torch.where(grown.view(-1, 1, 1, 1), F.max_pool2d(outline, 5, 1, 2), outline)
        area = outline.sum((1, 2, 3)).clamp(min=1)
        inside = (outline * (labels < OUTSIDE)).sum((1, 2, 3)) / area
        on_lesion = (outline * marked).sum((1, 2, 3)) / area
        bright = (outline * shown.mean(1, keepdim=True)).sum((1, 2, 3)) / area
        clear = (inside >= _INSIDE) & (on_lesion <= _CLEAR) & (bright > _AIR)
        valid = (torch.where(healthy, clear, torch.ones_like(clear)) & (area > 4)).float()
        return Squares(shown, outline, self.families[image], lesion, valid, of)

    def _healthy_place(
        self, own: Tensor, middle: Tensor, extent: Tensor, random: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """An image and a place in it: beside, mirrored, anywhere, or at the same spot of another image."""
        count = len(own)
        angle = 2 * torch.pi * self._uniform(count, random)
        low, high = _APART
        apart = extent * (low + (high - low) * self._uniform(count, random))
        beside = middle + apart[:, None] * torch.stack([angle.sin(), angle.cos()], 1)
        mirrored = torch.stack([middle[:, 0], self.sizes[own, 1] - middle[:, 1]], 1)
        spot = torch.randint(self.points.shape[1], (count,), generator=random, device=self.device)
        anywhere = self.points[own, spot].nan_to_num(-CANVAS)
        step = (self._uniform(count, random) * self._count[own]).long()
        other = self._order[self._first[own] + step]
        same = middle / self.sizes[own] * self.sizes[other]
        kind = self._uniform(count, random)
        place = torch.where((kind < 0.4)[:, None], beside, mirrored)
        place = torch.where((kind > 0.55)[:, None], anywhere, place)
        moved = kind > 0.75
        place = torch.where(moved[:, None], same, place)
        return torch.where(moved, other, own), place

    def _changed(self, squares: Squares, random: torch.Generator) -> Squares:
        """Mirrored, turned where the family allows it, brighter or darker, noisier or smoother."""
        count = len(squares.image)
        whole = torch.cat([squares.image, squares.outline], 1)
        free = self.free[squares.family]
        for axes, allowed in (((3,), None), ((2,), free), ((2, 3), free)):
            turn = (self._uniform(count, random) < 0.5) & (True if allowed is None else allowed)
            other = whole.transpose(2, 3) if len(axes) == 2 else whole.flip(axes)
            whole = torch.where(turn.view(-1, 1, 1, 1), other, whole)
        u, v, w, s = (self._uniform(count, random).view(-1, 1, 1, 1) for _ in range(4))
        image = whole[:, :3] ** torch.exp(0.8 * (u - 0.5)) * (0.85 + 0.3 * v)
        soft = F.avg_pool2d(image, 3, 1, 1, count_include_pad=False)
        image = torch.where(s < 0.25, soft, image)
        noise = torch.randn(image.shape, generator=random, device=self.device)
        image = image + 0.04 * (w - 0.6).clamp(min=0) * noise.mean(1, keepdim=True)
        return squares._replace(image=image.clamp(0, 1), outline=whole[:, 3:4])

    def _own_outlines(self) -> Tensor:
        """Each lesion's outline `(M, 1, 64, 64)`, in a window a little wider than its extent."""
        found = []
        for start in range(0, len(self.lesions), 256):
            rows = self.lesions[start : start + 256]
            side = (_WIDER * rows[:, 5]).clamp(min=1)
            grid = grid_of(rows[:, 3:5] - side[:, None] / 2, side, _OUTLINE)
            labels = self.labels[rows[:, 0].long()].float()
            part = F.grid_sample(labels, grid, mode="nearest", align_corners=False)
            found.append((part == rows[:, 1].view(-1, 1, 1, 1)).float())
        return torch.cat(found)

    def _uniform(self, count: int, random: torch.Generator) -> Tensor:
        return torch.rand(count, generator=random, device=self.device)
