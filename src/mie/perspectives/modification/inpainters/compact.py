"""The compact experts: a small network per family that fills a hole with healthy tissue."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import cv2
import numpy as np

from mie.core.environment import install_hint
from mie.core.files import digest
from mie.errors import ConfigError
from mie.images.families import GREY
from mie.networks.shipped import shipped_weights
from mie.perspectives.modification.inpainters import NoExpertError, check_hole
from mie.perspectives.modification.inpainters.blend import harmonic
from mie.perspectives.modification.inpainters.exemplar import Exemplar
from mie.perspectives.modification.inpainters.grain import GRAIN, graft
from mie.records import Mask, Pixels

if TYPE_CHECKING:
    from mie.networks.fill import FillNet

_Array: TypeAlias = np.ndarray[Any, Any]

FORMAT: Final = "inpainter 1"
_LEAST: Final = 128  # pixels: what surrounds a small hole
_AROUND: Final = 2.0  # a window's side, in extents of its hole
# Experts learnt from windows of 256 px with holes up to 170: the mean of a wider one is drawn at that scale.
_TRAINED: Final = 256
_WIDE: Final = 160
_AROUND_WIDE: Final = 1.5
_LARGEST: Final = 768  # drawn grain comes at the image's own scale, in a larger window at this one
_COPIED_FROM: Final = 3.0  # a window's side that grain is copied from, in extents of its hole, and at least
_AT_LEAST: Final = 256  # pixels
# Weights in the slow part: the harmonic fill's against the network's, then the exemplar fill's against both.
# Where much of the image is edges, `exemplar` continues them; the other two blur them.
_SLOW: Final[dict[str, tuple[float, float]]] = {
    "dermoscopy": (0.8, 0),
    "endoscopy": (0.6, 0),
    "ultrasound": (0.6, 0),
    "mri": (0.6, 0.5),
    "ct": (0.6, 0.5),
    "fundus": (0.6, 0),
    "xray": (0.6, 0),
}
EXPERTS: Final = tuple(_SLOW)  # the families that there are experts for
_COPIED_BLUR: Final = 1.5  # standard deviation in pixels: of `exemplar` the grain is left out
_VIEWS: Final = ("endoscopy", "fundus")  # pictures in a dark frame
_FRAME: Final = 24  # grey level: frames are not quite black
_NEEDS: Final = ("torch", "safetensors")


def open_compact(argument: str | None, options: Mapping[str, str], family: str) -> CompactInpainter:
    """`compact`: the family's expert that ships with the package; `compact:PATH`: one of your own."""
    if options:
        raise ConfigError("the compact expert has no options", found=", ".join(options))
    if family not in EXPERTS:
        raise NoExpertError(f"there is no compact expert for {family}", fix="use exemplar for such images")
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the compact expert needs {', '.join(missing)}", fix=install_hint("models"))
    if argument:
        return CompactInpainter(Path(argument).expanduser(), family)
    fix = f"train one with `mie train examples/inpainters/{family}.yaml` and name it, as in compact:PATH"
    return CompactInpainter(shipped_weights(f"inpainter-{family}.safetensors", fix=fix), family)


class CompactInpainter:
    """Any size: a window around each hole is filled at its own scale.

    The slow part lies between what the network expects and the harmonic fill, in MRI and CT the exemplar fill
    too: their errors differ. Of a hole wider than 160 px the network's comes from the scale that experts
    learnt at. The grain is copied from around the hole; where there is no room for that, the network draws
    it. The dark frame of a view is not tissue: like the hole, it is not looked at.
    """

    def __init__(self, path: Path, family: str) -> None:
        self.name = "compact"
        self._family, self._grey, self._view = family, family in GREY, family in _VIEWS
        self._smooth, self._copied = _SLOW[family]
        self._net, learnt = _network(path)
        self.weights = digest(path)
        if learnt not in (family, None):
            raise ConfigError("the expert is for other images", where=path, expected=family, found=learnt)

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        """The image with its hole filled; what is under the hole is not looked at."""
        check_hole(image, mask)
        if not mask.any():
            return image.copy()
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal(mask.shape, np.float32)
        unknown = mask | _frame(image, mask) if self._view else mask
        values = image.astype(np.float32)
        holes = [(hole, *_extent(hole)) for hole in _holes(mask)]
        windows = []
        for hole, at, extent in holes:
            wide = extent > _WIDE
            side = max(_LEAST, -(-int((_AROUND_WIDE if wide else _AROUND) * extent) // 8) * 8)
            cut = _Cut(mask.shape, at, side)
            window = cut.take(image), cut.take(unknown.astype(np.uint8)), cut.take(noise)
            cut.put(values, self._parts(*window, _TRAINED if wide else side)[0], hole)
            windows.append((cut, window))
        if self._copied:
            copied = Exemplar().fill(image, mask, seed=seed).astype(np.float32)
            copied = cv2.GaussianBlur(copied, (0, 0), _COPIED_BLUR)
            values[mask] = (1 - self._copied) * values[mask] + self._copied * copied[mask]
        drawn = np.zeros_like(values)
        for (hole, at, extent), (cut, window) in zip(holes, windows, strict=True):
            near = _near(at, max(_AT_LEAST, int(_COPIED_FROM * extent)))
            part = values[near][..., :1] if self._grey else values[near]
            grain = graft(part, hole[near], unknown[near], GRAIN[self._family], rng)
            if grain is None:
                cut.put(drawn, self._parts(*window, min(len(window[0]), _LARGEST))[1], hole)
            else:
                drawn[near][hole[near]] = grain[hole[near]]
        values += drawn
        return np.where(mask[..., None], values.clip(0, 255).round().astype(np.uint8), image)

    def _parts(self, seen: _Array, hole: _Array, noise: _Array, work: int) -> tuple[_Array, _Array]:
        """Mean and drawn grain of a window `(S, S, 3)` at `work` pixels a side, in grey levels."""
        import torch

        side = len(seen)
        if work != side:
            seen = cv2.resize(seen, (work, work), interpolation=cv2.INTER_AREA)
            # A pixel that holds any of the hole is hole: what lies under it must not shine through.
            hole = cv2.resize(hole.astype(np.float32), (work, work), interpolation=cv2.INTER_AREA) > 0
            noise = cv2.resize(noise, (work, work), interpolation=cv2.INTER_NEAREST)
        pixels = torch.from_numpy(seen.transpose(2, 0, 1)[None].astype(np.float32) / 255)
        holes = torch.from_numpy(hole[None, None].astype(np.float32))
        with torch.inference_mode():
            parts = self._net(
                pixels.contiguous(memory_format=torch.channels_last),
                holes,
                torch.from_numpy(np.ascontiguousarray(noise))[None, None],
            )
            if self._grey:
                parts = [part.mean(1, keepdim=True).expand(-1, 3, -1, -1) for part in parts]
            mean, detail = (255 * np.ascontiguousarray(part[0].permute(1, 2, 0).numpy()) for part in parts)
        if not hole.all():
            smooth = harmonic(seen.astype(np.float32), hole > 0)
            mean = np.where(hole[..., None] > 0, (1 - self._smooth) * mean + self._smooth * smooth, mean)
        if work != side:
            mean, detail = (
                cv2.resize(part, (side, side), interpolation=cv2.INTER_CUBIC) for part in (mean, detail)
            )
        return mean, detail


def _frame(image: Pixels, mask: Mask) -> Mask:
    """The black around a view, and its blurred rim; what is under the hole is not looked at."""
    dark = cv2.morphologyEx(
        ((image.max(axis=2) <= _FRAME) & ~mask).astype(np.uint8), cv2.MORPH_OPEN, np.ones((9, 9), np.uint8)
    )
    return cv2.dilate(dark, np.ones((7, 7), np.uint8)).view(np.bool_)


def _holes(mask: Mask) -> list[Mask]:
    """What is filled at once: all holes where a small window holds them, else each."""
    if _AROUND * _extent(mask)[1] <= _LEAST:
        return [mask]
    count, labels = cv2.connectedComponents(cv2.dilate(mask.astype(np.uint8), np.ones((33, 33), np.uint8)))
    return [np.asarray(mask & (labels == k)) for k in range(1, count)]


def _near(centre: tuple[int, int], side: int) -> tuple[slice, slice]:
    """The part of a square window that lies in the image."""
    y, x = centre
    rows, columns = slice(max(0, y - side // 2), y + side // 2), slice(max(0, x - side // 2), x + side // 2)
    return rows, columns


def _extent(mask: Mask) -> tuple[tuple[int, int], int]:
    rows, columns = np.nonzero(mask)
    extent = max(int(np.ptp(rows)), int(np.ptp(columns))) + 1
    return (int(rows.min() + rows.max()) // 2, int(columns.min() + columns.max()) // 2), extent


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

    def take(self, array: _Array) -> _Array:
        """The window; beyond the image it is mirrored, holes too, as nothing under them may be seen."""
        (height, width), y, x, side = self._shape[:2], self._y, self._x, self._side
        edges = (max(0, -y), max(0, y + side - height), max(0, -x), max(0, x + side - width))
        inner = array[max(0, y) : y + side, max(0, x) : x + side]
        if not any(edges):
            return inner
        thin = max(edges) >= min(inner.shape[:2])  # too thin to be mirrored
        border = cv2.BORDER_REPLICATE if thin else cv2.BORDER_REFLECT_101
        return np.asarray(cv2.copyMakeBorder(inner, *edges, border))

    def put(self, image: _Array, made: _Array, mask: Mask) -> None:
        """The window's pixels go into `image` where `mask` says so."""
        y, x, side = self._y, self._x, self._side
        rows = slice(max(0, y), min(self._shape[0], y + side))
        columns = slice(max(0, x), min(self._shape[1], x + side))
        inner = made[rows.start - y : rows.stop - y, columns.start - x : columns.stop - x]
        where = mask[rows, columns]
        image[rows, columns][where] = inner[where]


@lru_cache(maxsize=8)
def _network(path: Path) -> tuple[FillNet, str | None]:
    """The network of a weights file, and the family that it learnt."""
    import torch

    from mie.networks import weights
    from mie.networks.fill import FillConfig, FillNet

    found = weights.load(path, format=FORMAT)
    net = weights.build(lambda: FillNet(FillConfig.from_json(found.config)), found, path)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # on a CPU a tenth faster
    return net.eval().requires_grad_(False), found.meta.get("family")
