"""A user's own nnU-Net (v2, configuration 2d) as a detector, from its model folder.

The image is prepared as the plans say: cut to what is not black, normalised, seen in overlapping patches
with Gaussian weights, mirrored. It is not resampled: pixels come without a spacing, so the image should have
the pixel size that the network was trained at.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mie.detectors.base import Finding
from mie.detectors.looking import score_of
from mie.detectors.nnunet_folder import NnunetModel, read_model
from mie.errors import ConfigError
from mie.images.grey import is_grey
from mie.records import Mask, Pixels, Values

THRESHOLD: Final = 0.5
_OPTIONS: Final = ("fold", "checkpoint", "lesions", "low", "high", "mirror", "device")
_STEP: Final = 0.5  # of a patch
_TINY: Final = 1e-8


class NnunetDetector:
    """`lesions` are the labels that count (all but the background where it is empty).

    `window` says which values black and white stand for, where the network has seen Hounsfield units.
    """

    name = "nnunet"

    def __init__(
        self,
        model: NnunetModel,
        *,
        lesions: Sequence[str] = (),
        window: tuple[float, float] | None = None,
        mirror: bool = True,
        device: str = "cpu",
    ) -> None:
        self._model, self._window, self._device = model, window, torch.device(device)
        self.weights = model.weights
        self._axes = model.mirrored if mirror else ()
        known = [head.name for head in model.heads if not head.background]
        unknown = [name for name in lesions if name not in known]
        if unknown:
            raise ConfigError(f"no label {unknown[0]!r} in this nnU-Net", expected=", ".join(known))
        chosen = set(lesions or known)
        self._chosen = [at for at, head in enumerate(model.heads) if head.name in chosen]
        if model.channels not in (1, 3):
            raise ConfigError("an nnU-Net for several images at once", found=f"{model.channels} channels")
        if window is None and any(
            scheme == "CTNormalization" and found["percentile_00_5"] < 0
            for scheme, found in zip(model.schemes, model.intensities, strict=True)
        ):
            raise ConfigError(
                "this nnU-Net has seen Hounsfield units, and images have grey levels",
                fix="say which values black and white stand for, as in low=-160,high=240",
            )
        model.network.to(self._device)

    def find(self, image: Pixels) -> Finding:
        found = self.probabilities(image)
        return Finding(found >= THRESHOLD, score_of(found))

    def quality(self) -> Mapping[str, Any] | None:
        return None  # nobody has measured it here

    def probabilities(self, image: Pixels) -> Values:
        """`(H, W)` in [0, 1]: a lesion of any kind."""
        # nnU-Net fills holes in three dimensions: in a single slice that fills none.
        values, mask = self._channels(image), np.asarray(image.any(2), np.bool_)
        out = np.zeros(image.shape[:2], np.float32)
        if not mask.any():
            return out
        box = _bounds(mask)
        values = np.stack([channel[box] for channel in values])
        for c, scheme in enumerate(self._model.schemes):
            inside = mask[box] if self._model.masked[c] else None
            values[c] = normalised(values[c], scheme, self._model.intensities[c], inside)
        logits = self._logits(torch.from_numpy(values))
        if self._model.regions:
            out[box] = torch.sigmoid(logits)[self._chosen].amax(0).cpu().numpy()
        else:
            out[box] = torch.softmax(logits, 0)[self._chosen].sum(0).cpu().numpy()
        return out

    def _channels(self, image: Pixels) -> NDArray[np.float32]:
        """`(C, H, W)`: RGB, or grey."""
        if self._model.channels == 3:
            shown = image.transpose(2, 0, 1)
        else:
            shown = (image[..., 0] if is_grey(image) else cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[None]
        values = np.asarray(shown, np.float32)
        if self._window is not None:
            low, high = self._window
            values = low + values * ((high - low) / 255)
        return values

    @torch.inference_mode()
    def _logits(self, values: Tensor) -> Tensor:
        """`(heads, H, W)` of prepared values `(C, H, W)`, patch by patch."""
        height, width = values.shape[1:]
        patch = self._model.patch
        more = [max(0, size - length) for size, length in zip(patch, (height, width), strict=True)]
        top, left = more[0] // 2, more[1] // 2
        padded = torch.nn.functional.pad(values, (left, more[1] - left, top, more[0] - top)).to(self._device)
        weight = _gaussian(patch).to(self._device)
        total = torch.zeros(len(self._model.heads), *padded.shape[1:], device=self._device)
        seen = torch.zeros(padded.shape[1:], device=self._device)
        places = itertools.product(*(starts(n, p) for n, p in zip(padded.shape[1:], patch, strict=True)))
        for y, x in places:
            here = (slice(y, y + patch[0]), slice(x, x + patch[1]))
            total[:, *here] += self._mirrored(padded[:, *here][None])[0] * weight
            seen[here] += weight
        return (total / seen)[:, top : top + height, left : left + width]

    def _mirrored(self, patch: Tensor) -> Tensor:
        """The mean over all ways to mirror the patch."""
        ways = [
            tuple(axis + 2 for axis in some)
            for count in range(len(self._axes) + 1)
            for some in itertools.combinations(self._axes, count)
        ]
        parts = [torch.flip(self._model.network(torch.flip(patch, way)), way) for way in ways]
        return torch.stack(parts).mean(0)


def open_nnunet(argument: str | None, options: Mapping[str, str], family: str) -> NnunetDetector:
    """`nnunet:FOLDER,fold=0,checkpoint=checkpoint_final.pth,lesions='tumour,cyst',low=-160,high=240`."""
    if not argument:
        raise ConfigError("detector 'nnunet' needs a model folder", expected="nnunet:FOLDER")
    unknown = [key for key in options if key not in _OPTIONS]
    if unknown:
        raise ConfigError(f"detector 'nnunet' has no option {unknown[0]!r}", expected=", ".join(_OPTIONS))
    if ("low" in options) != ("high" in options):
        raise ConfigError("low and high go together", found=", ".join(options))
    try:
        window = (float(options["low"]), float(options["high"])) if "low" in options else None
    except ValueError as error:
        raise ConfigError("low and high are numbers", found=error) from None
    model = read_model(
        Path(argument), options.get("fold", "0"), options.get("checkpoint", "checkpoint_final.pth")
    )
    return NnunetDetector(
        model,
        lesions=[name.strip() for name in options.get("lesions", "").split(",") if name.strip()],
        window=window,
        mirror=options.get("mirror", "true") == "true",
        device=options.get("device", "cpu"),
    )


def normalised(values: Values, scheme: str, intensities: Mapping[str, float], inside: Mask | None) -> Values:
    """One channel by a normalisation scheme of nnU-Net; `inside` limits it to that part."""
    if scheme == "ZScoreNormalization":
        part = np.ones(values.shape, np.bool_) if inside is None else inside
        known = values[part]
        scaled = (values - known.mean()) / max(float(known.std()), _TINY)
        return np.where(part, scaled, values).astype(np.float32)
    if scheme == "CTNormalization":
        clipped = values.clip(intensities["percentile_00_5"], intensities["percentile_99_5"])
        return np.asarray((clipped - intensities["mean"]) / max(intensities["std"], _TINY), np.float32)
    if scheme == "RescaleTo01Normalization":
        lowest = values - values.min()
        return np.asarray(lowest / max(float(lowest.max()), _TINY), np.float32)
    if scheme == "RGBTo01Normalization":
        return np.asarray(values / 255, np.float32)
    if scheme == "NoNormalization":
        return values
    raise ConfigError("a normalisation that is not supported", found=scheme)


def starts(length: int, patch: int) -> list[int]:
    """Where patches begin: evenly, at most half a patch apart, the last one at the end.

    >>> starts(110, 64)
    [0, 23, 46]
    """
    steps = int(np.ceil((length - patch) / (patch * _STEP))) + 1
    apart = (length - patch) / (steps - 1) if steps > 1 else 0.0
    return [round(apart * k) for k in range(steps)]


def _gaussian(patch: tuple[int, int]) -> Tensor:
    """Weights of a patch's pixels: sigma an eighth of its side, nowhere zero."""
    lines = [torch.exp(-0.5 * ((torch.arange(n) - n // 2) / (n / 8)) ** 2) for n in patch]
    return (lines[0][:, None] * lines[1][None]).clamp(min=1e-7)


def _bounds(mask: Mask) -> tuple[slice, slice]:
    x, y, width, height = cv2.boundingRect(mask.view(np.uint8))
    return slice(y, y + height), slice(x, x + width)
