"""The compact experts: a small network per family that fills a hole with healthy tissue."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cv2
import numpy as np

from mie.errors import ConfigError
from mie.images.families import GREY
from mie.inpainters.base import check_hole
from mie.networks.shipped import shipped_weights
from mie.records import Mask, Pixels

if TYPE_CHECKING:
    from mie.inpainters.network import FillNet

FORMAT: Final = "inpainter 1"
_LEAST: Final = 128  # pixels: what surrounds a small hole
_LARGEST: Final = 512  # a larger window is scaled down
_AROUND: Final = 2.0  # a window's side, in extents of its hole
_NEEDS: Final = ("torch", "safetensors")


def open_compact(argument: str | None, options: Mapping[str, str], family: str) -> CompactInpainter:
    """`compact`: the family's expert that ships with the package; `compact:PATH`: one of your own."""
    if options:
        raise ConfigError("the compact expert has no options", found=", ".join(options))
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the compact expert needs {', '.join(missing)}", fix="pip install 'mie[models]'")
    if argument:
        return CompactInpainter(Path(argument).expanduser(), family)
    fix = f"train one with `mie train examples/inpainters/{family}.yaml` and name it, as in compact:PATH"
    return CompactInpainter(shipped_weights(f"inpainter-{family}.safetensors", fix=fix), family)


class CompactInpainter:
    """Any size: a window around the holes is filled at its own scale, or at 512 px where it is larger.

    Noise is drawn for the whole image, so that neighbouring slices with the same seed get the same grain.
    """

    def __init__(self, path: Path, family: str) -> None:
        self.name = "compact"
        self._path, self._grey = path, family in GREY
        self._net = _network(path)

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        """The image with its hole filled; what is under the hole is not looked at."""
        check_hole(image, mask)
        if not mask.any():
            return image.copy()
        noise = np.random.default_rng(seed).standard_normal(mask.shape, np.float32)
        filled = image.copy()
        for at, side in _windows(mask):
            filled = self._window(filled, mask, noise, at, side)
        return filled

    def _window(
        self, image: Pixels, mask: Mask, noise: np.ndarray[Any, Any], at: tuple[int, int], side: int
    ) -> Pixels:
        import torch

        from mie.inpainters.network import compose

        cut = _Cut(mask.shape, at, side)
        seen, hole = cut.take(image, cv2.BORDER_REFLECT_101), cut.take(mask.astype(np.uint8))
        grain = cut.take(noise, cv2.BORDER_REFLECT_101)
        work = min(side, _LARGEST)
        if work != side:
            seen = cv2.resize(seen, (work, work), interpolation=cv2.INTER_AREA)
            # A pixel that holds any of the hole is hole: what lies under it must not shine through.
            hole = np.ceil(cv2.resize(hole.astype(np.float32), (work, work), interpolation=cv2.INTER_AREA))
            grain = grain[:work, :work]
        pixels = torch.from_numpy(seen.transpose(2, 0, 1)[None].astype(np.float32) / 255)
        holes = torch.from_numpy(hole[None, None].astype(np.float32))
        with torch.inference_mode():
            mean, detail = self._net(pixels, holes, torch.from_numpy(np.ascontiguousarray(grain))[None, None])
            if self._grey:
                mean, detail = (x.mean(1, keepdim=True).expand(-1, 3, -1, -1) for x in (mean, detail))
            made = compose(pixels, holes, mean, detail)[0].permute(1, 2, 0).mul(255).round().byte().numpy()
        if work != side:
            made = cv2.resize(made, (side, side), interpolation=cv2.INTER_CUBIC)
        return cut.put(image, made, mask)


def _windows(mask: Mask) -> list[tuple[tuple[int, int], int]]:
    """(centre, side) of squares that together hold all holes: one for all where they fit, else one each."""
    found = _square(mask)
    if found[1] <= _LEAST:
        return [found]
    count, labels = cv2.connectedComponents(cv2.dilate(mask.astype(np.uint8), np.ones((33, 33), np.uint8)))
    return [_square(np.asarray(mask & (labels == k))) for k in range(1, count)]


def _square(mask: Mask) -> tuple[tuple[int, int], int]:
    rows, columns = np.nonzero(mask)
    extent = max(int(np.ptp(rows)), int(np.ptp(columns))) + 1
    side = max(_LEAST, -(-int(_AROUND * extent) // 8) * 8)
    return (int(rows.min() + rows.max()) // 2, int(columns.min() + columns.max()) // 2), side


class _Cut:
    """A square window of an image, which may reach beyond it."""

    def __init__(self, shape: tuple[int, ...], centre: tuple[int, int], side: int) -> None:
        self._shape, self._side = shape, side
        # Inside the image where it is large enough, in its middle where not.
        starts = [
            int(np.clip(c - side // 2, min(0, n - side) // (1 if n >= side else 2), max(0, n - side)))
            for c, n in zip(centre, shape, strict=False)
        ]
        self._y, self._x = starts

    def take(self, array: np.ndarray[Any, Any], border: int = cv2.BORDER_CONSTANT) -> np.ndarray[Any, Any]:
        (height, width), y, x, side = self._shape[:2], self._y, self._x, self._side
        edges = (max(0, -y), max(0, y + side - height), max(0, -x), max(0, x + side - width))
        inner = array[max(0, y) : y + side, max(0, x) : x + side]
        if not any(edges):
            return inner
        if max(edges) >= min(inner.shape[:2]) and border != cv2.BORDER_CONSTANT:
            border = cv2.BORDER_REPLICATE  # too thin to be mirrored
        return np.asarray(cv2.copyMakeBorder(inner, *edges, border, value=0))

    def put(self, image: Pixels, made: Pixels, mask: Mask) -> Pixels:
        """`image` with the window's pixels where `mask` says so."""
        y, x, side = self._y, self._x, self._side
        rows = slice(max(0, y), min(self._shape[0], y + side))
        columns = slice(max(0, x), min(self._shape[1], x + side))
        inner = made[rows.start - y : rows.stop - y, columns.start - x : columns.stop - x]
        out = image.copy()
        where = mask[rows, columns]
        out[rows, columns][where] = inner[where]
        return out


@lru_cache(maxsize=8)
def _network(path: Path) -> FillNet:
    from mie.inpainters.network import FillConfig, FillNet
    from mie.networks import weights

    found = weights.load(path, format=FORMAT)
    net = FillNet(FillConfig.from_json(found.config))
    weights.fit(net, found.state, path)
    return net.eval().requires_grad_(False)
