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
from mie.networks.shipped import shipped_weights
from mie.perspectives.modification.inpainters import check_hole
from mie.perspectives.modification.inpainters.holes import Neighbourhood, neighbourhood
from mie.records import Mask, Pixels

if TYPE_CHECKING:
    from mie.networks.flow import FlowNet

_Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

STEPS: Final = 8
_SIDE: Final = 128  # pixels of the window that the network was trained on
_FINEST: Final = 512  # a larger window is drawn at this scale and enlarged
# A hole that is too large for the window is drawn small first. Its fine texture is then drawn at the image's
# own scale, from the time when coarse structure is settled.
_SETTLED: Final = 0.6
_FINE_STEPS: Final = 4
_TOGETHER: Final = 33  # pixels: holes that are nearer to each other are filled at once
_RIM: Final = 3  # pixels around a painted lesion that are drawn with it
_STRIDE: Final = 8
_SMALLEST: Final = 64  # pixels: the least side of a window
_NEEDS: Final = ("torch", "safetensors")


def open_flow(argument: str | None, options: Mapping[str, str], family: str) -> FlowInpainter:
    """`flow`: the expert that ships with the package; `flow:PATH`: one of your own."""
    if options:
        raise ConfigError("the flow expert has no options", found=", ".join(options))
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the flow expert needs {', '.join(missing)}", fix=install_hint("models"))
    if argument:
        return FlowInpainter(Path(argument).expanduser(), family)
    fix = "train one with `mie train examples/flow/train.yaml` and name it, as in flow:PATH"
    return FlowInpainter(shipped_weights("flow.safetensors", fix=fix), family)


class FlowInpainter:
    """Any size. A window around each hole is drawn at the image's own scale, a large one coarse to fine."""

    def __init__(self, path: Path, family: str) -> None:
        self.name = "flow"
        self._net = _network(path)
        self.weights = digest(path)
        if family not in self._net.config.families:
            raise unknown_name("family of the flow expert", family, self._net.config.families)
        self._family = self._net.config.families.index(family)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the lesions that can be painted."""
        return self._net.config.targets

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        """The image with healthy tissue in its hole; what is under the hole is not looked at."""
        return self._drawn(image, mask, np.zeros_like(mask), "healthy", None, seed)

    def paint(
        self, image: Pixels, region: Mask, target: str, *, seed: int, contrast: float | None = None
    ) -> tuple[Pixels, Mask]:
        """The image with a lesion of that name in `region`, and what was drawn: the region and 3 pixels
        around it. `contrast`, where given, is its mean grey level above its surroundings', in [-1, 1].
        """
        if target not in self.targets:
            raise unknown_name("lesion of the flow expert", target, self.targets)
        if contrast is not None and not -1 <= contrast <= 1:
            raise ConfigError("no such contrast", expected="-1 to 1", found=contrast)
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
            coarse = neighbourhood(hole, size=_SIDE, multiple=_STRIDE)
            whole = self._window(coarse, seen, mask, lesion, target, contrast, rng, None)
            if coarse.scaled != (coarse.bottom - coarse.top, coarse.right - coarse.left):
                fine = neighbourhood(hole, size=_needed(coarse), multiple=_STRIDE)
                whole = self._window(fine, seen, mask, lesion, target, contrast, rng, whole)
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
        coarse: Pixels | None,
    ) -> Pixels:
        """The image with the window's holes drawn, from noise or from what was drawn at a coarser scale."""
        import torch

        from mie.networks.flow import Conditions, draw, scene

        def tensor(values: _Floats) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, np.float32))[None]

        height, width = (s + p for s, p in zip(window.scaled, window.padding, strict=True))
        # As in training, what lies beyond the image belongs to the hole.
        edges = ((0, 0), (0, max(0, _SMALLEST - height)), (0, max(0, _SMALLEST - width)))

        def pixels(values: Pixels) -> torch.Tensor:
            return tensor(np.pad(window.picture(values).transpose(2, 0, 1).astype(np.float32) / 255, edges))

        def region(values: Mask, beyond: float) -> torch.Tensor:
            part = window.hole(values)[None].astype(np.float32)
            return tensor(np.pad(part, edges, constant_values=beyond))

        holes, lesions = region(mask, 1), region(lesion, 0)
        conditions = Conditions(
            torch.tensor([self._family]),
            torch.tensor([self._net.config.target(target)]),
            torch.tensor([np.nan if contrast is None else contrast], dtype=torch.float32),
        )
        noise = tensor(rng.standard_normal((3, *holes.shape[2:]), np.float32))
        with torch.inference_mode():
            around = scene(pixels(image), holes, lesions)
            noise = noise * self._net.channels(conditions.family)
            if coarse is None:
                drawn = draw(self._net, around, conditions, noise, steps=STEPS)
            else:
                start = around.residual(pixels(coarse)) * self._net.channels(conditions.family)
                drawn = draw(
                    self._net, around, conditions, noise, steps=_FINE_STEPS, start=start, since=_SETTLED
                )
            made = around.compose(drawn)[0, :, :height, :width].permute(1, 2, 0).numpy()
        return window.put_back(image, (255 * made).round().astype(np.uint8))


def _needed(window: Neighbourhood) -> int:
    """The side of a window that shows the same at the image's own scale, up to the finest."""
    side = max(window.bottom - window.top, window.right - window.left)
    return min(_FINEST, -(-side // _STRIDE) * _STRIDE)


def _holes(mask: Mask) -> list[Mask]:
    """What is filled at once: holes that lie near each other."""
    near = cv2.dilate(mask.astype(np.uint8), np.ones((_TOGETHER, _TOGETHER), np.uint8))
    count, labels = cv2.connectedComponents(near)
    return [np.asarray(mask & (labels == k)) for k in range(1, count)]


@lru_cache(maxsize=2)
def _network(path: Path) -> FlowNet:
    import torch

    from mie.networks import weights
    from mie.networks.flow import FORMAT, FlowConfig, FlowNet

    found = weights.load(path, format=FORMAT)
    net = weights.build(lambda: FlowNet(FlowConfig.from_json(found.config)), found, path)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net.eval().requires_grad_(False)
