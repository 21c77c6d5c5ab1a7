"""The flow expert: one network for all families that fills a hole, or paints a lesion by name."""

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
from mie.core.registry import unknown_name
from mie.errors import ConfigError
from mie.images.overlay import is_grey
from mie.images.resize import fitted_size
from mie.networks.shipped import FLOW, shipped_weights
from mie.perspectives.modification.inpainters import NoExpertError, check_hole
from mie.perspectives.modification.inpainters.holes import Neighbourhood, neighbourhood
from mie.records import Mask, Pixels

if TYPE_CHECKING:
    from mie.networks.flow import FlowNet

_Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

# Chosen on validation patients (examples/flow/results.md).
STEPS: Final = (6, 6)  # of the coarse and of the fine band
GUIDANCE: Final = 1.0
_FINE_STEPS: Final = 4  # of the second pass
_SIDE: Final = 128  # pixels of the window that the network was trained on
_FINEST: Final = 512  # a larger window is drawn at this scale and enlarged
_NEAR: Final = 24  # pixels around a large hole that its second pass sees
_TOGETHER: Final = 33  # pixels: holes that are nearer to each other are filled at once
_RIM: Final = 3  # pixels around a painted lesion that are drawn with it
_STRIDE: Final = 8
_SMALLEST: Final = 64  # pixels: the least side of a window
_NEEDS: Final = ("torch", "safetensors")


def open_flow(argument: str | None, options: Mapping[str, str], family: str) -> FlowInpainter:
    """`flow`: the expert that ships with the package; `flow:PATH`: one of your own; `flow,device=cuda`."""
    unknown = sorted(set(options) - {"device"})
    if unknown:
        raise ConfigError(f"the flow expert has no option {unknown[0]!r}", expected="device")
    device = options.get("device", "cpu")
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the flow expert needs {', '.join(missing)}", fix=install_hint("models"))
    if argument:
        return FlowInpainter(Path(argument).expanduser(), family, device=device)
    fix = "train one with `mie train examples/flow/train.yaml` and name it, as in flow:PATH"
    return FlowInpainter(shipped_weights(FLOW, fix=fix), family, device=device)


class FlowInpainter:
    """Any size. A window around each hole is drawn at the image's own scale. A hole that is too large for it
    is drawn small first; its fine band is then drawn once more at the image's own scale.
    """

    def __init__(self, path: Path, family: str, *, device: str = "cpu") -> None:
        self.name, self._device = "flow", device
        self._net, extents = _network(path, device)
        self.weights = digest(path)
        if family not in self._net.config.families:
            raise NoExpertError(
                f"the flow expert does not know {family}",
                where=path,
                expected=", ".join(self._net.config.families),
                fix="use exemplar for such images",
            )
        self._family = self._net.config.families.index(family)
        self._extents: Mapping[str, tuple[float, float]] = extents.get(family, {})

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the lesions that can be painted: those that it learnt in this family."""
        return tuple(self._extents)

    def extent(self, target: str) -> tuple[float, float]:
        """How long such lesions were in training, the middle 80%, as shares of the image's longer side."""
        low, high = self._extents[target]
        return float(low), float(high)

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        """The image with healthy tissue in its hole; what is under the hole is not looked at."""
        return self._drawn(image, mask, np.zeros_like(mask), "healthy", None, seed)

    def paint(
        self,
        image: Pixels,
        region: Mask,
        target: str,
        *,
        seed: int,
        contrast: float | None = None,
        hole: Mask | None = None,
    ) -> tuple[Pixels, Mask]:
        """The image with a lesion of that name in `region`, and what was drawn: the region and 3 pixels
        around it, or the `hole` that it lies in. `contrast`, where given, is its mean grey level above its
        surroundings', in [-1, 1].
        """
        if target not in self.targets:
            raise unknown_name("lesion of the flow expert", target, self.targets)
        if contrast is not None and not -1 <= contrast <= 1:
            raise ConfigError("no such contrast", expected="-1 to 1", found=contrast)
        if hole is None:
            kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * _RIM + 1,) * 2)
            hole = cv2.dilate(region.astype(np.uint8), kernel).astype(np.bool_)
        return self._drawn(image, hole, region, target, contrast, seed), hole

    def _drawn(
        self, image: Pixels, mask: Mask, lesion: Mask, target: str, contrast: float | None, seed: int
    ) -> Pixels:
        check_hole(image, mask)
        filled = image.copy()
        if not mask.any():
            return filled
        grey = is_grey(image[~mask][None])
        rng = np.random.default_rng(seed)
        # What lies under the hole is gone before anything looks at it.
        seen = np.where(mask[..., None], np.uint8(0), image)
        for hole in _holes(mask):
            window = neighbourhood(hole, size=_SIDE, multiple=_STRIDE)
            whole = self._window(window, seen, mask, lesion, target, contrast, rng, None)
            if window.scaled != (window.bottom - window.top, window.right - window.left):
                whole = self._window(_close(hole), seen, mask, lesion, target, contrast, rng, whole)
            filled[hole] = whole[hole]
        if grey:
            filled[mask] = filled[mask].mean(1, keepdims=True).round().astype(np.uint8)
        return filled

    def _window(
        self,
        window: Neighbourhood,
        image: Pixels,
        mask: Mask,
        lesion: Mask,
        target: str,
        contrast: float | None,
        rng: np.random.Generator,
        small: Pixels | None,
    ) -> Pixels:
        """The image with the window's holes drawn; of what was drawn small, the coarse band is kept."""
        import torch

        from mie.networks.flow import Bands, Conditions, Steps, draw, scene

        height, width = window.scaled
        sides = [max(_SMALLEST, -(-side // _STRIDE) * _STRIDE) for side in (height, width)]

        def tensor(values: _Floats, beyond: float = 0.0) -> torch.Tensor:
            """`(C, height, width)` with what lies beyond the image below and on the right."""
            whole = np.full((len(values), *sides), beyond, np.float32)
            whole[:, :height, :width] = values[:, :height, :width]
            return torch.from_numpy(whole)[None].to(self._device)

        def pixels(values: Pixels) -> torch.Tensor:
            return tensor(window.picture(values).transpose(2, 0, 1).astype(np.float32) / np.float32(255))

        def region(values: Mask) -> torch.Tensor:
            return tensor(window.hole(values)[None].astype(np.float32))

        conditions = Conditions(
            torch.tensor([self._family], device=self._device),
            torch.tensor([self._net.config.target(target)], device=self._device),
            torch.tensor(
                [np.nan if contrast is None else contrast], dtype=torch.float32, device=self._device
            ),
        )
        sizes = ([side // _STRIDE for side in sides], sides)
        drawn_noise = [torch.from_numpy(rng.standard_normal((1, 3, *size), np.float32)) for size in sizes]
        noises = [noise.to(self._device) for noise in drawn_noise]
        with torch.inference_mode():
            drawn = self._net.channels(conditions.family)
            beyond = tensor(np.zeros((1, height, width), np.float32), 1.0)
            spread = self._net.spread(conditions.family, conditions.target)
            around = scene(pixels(image), region(mask), beyond, region(lesion), spread)
            coarse = None if small is None else drawn * around.coarse(around.added(pixels(small)))
            bands = draw(
                self._net,
                around,
                conditions,
                Bands(*(drawn * noise for noise in noises)),
                steps=Steps(*STEPS) if small is None else Steps(0, _FINE_STEPS),
                guidance=GUIDANCE,
                coarse=coarse,
            )
            made = around.compose(bands)[0, :, :height, :width].permute(1, 2, 0).cpu().numpy()
        return window.put_back(image, (255 * made).round().astype(np.uint8))


def _close(hole: Mask) -> Neighbourhood:
    """A window just around a large hole, at the image's own scale up to the finest."""
    spans = []
    for axis in (1, 0):
        inside = np.flatnonzero(hole.any(axis))
        spans.append((max(0, int(inside[0]) - _NEAR), min(hole.shape[1 - axis], int(inside[-1]) + 1 + _NEAR)))
    (top, bottom), (left, right) = spans
    size = (bottom - top, right - left)
    scaled = size if max(size) <= _FINEST else fitted_size(*size, _FINEST)
    return Neighbourhood(top, left, bottom, right, scaled, (0, 0))


def _holes(mask: Mask) -> list[Mask]:
    """What is filled at once: holes that lie near each other."""
    near = cv2.dilate(mask.astype(np.uint8), np.ones((_TOGETHER, _TOGETHER), np.uint8))
    count, labels = cv2.connectedComponents(near)
    return [np.asarray(mask & (labels == k)) for k in range(1, count)]


@lru_cache(maxsize=2)
def _network(path: Path, device: str) -> tuple[FlowNet, Mapping[str, Mapping[str, tuple[float, float]]]]:
    """The network, and how large the lesions are that it learnt from, by family and name."""
    import torch

    from mie.networks import weights
    from mie.networks.flow import FORMAT, FlowConfig, FlowNet

    found = weights.load(path, format=FORMAT)
    net = weights.build(lambda: FlowNet(FlowConfig.from_json(found.config)), found, path)
    net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net.eval().requires_grad_(False), found.meta.get("extents", {})
