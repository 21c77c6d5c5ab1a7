"""A user's own nnU-Net (v2, configuration 2d) as a detector, from its model folder.

FOLDER/ (`nnUNetTrainer__nnUNetPlans__2d`)
  dataset.json, plans.json                 channels, labels, preprocessing, architecture
  fold_0/checkpoint_final.pth              weights, and the trainer's own state

Nothing that is in the folder is run. A checkpoint is a pickle, which can run code when it is opened. It is
opened with `weights_only`, where only tensors, plain values and NumPy's numbers may appear (the trainer's log
has such numbers). The network's class is one of the few named here, whatever the plans say.

The image is prepared as the plans say: cut to what is not black, normalised, seen in overlapping patches with
Gaussian weights, mirrored. It is not resampled: pixels come without a spacing, so the image should have the
pixel size that the network was trained at.
"""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import torch
from numpy._core.multiarray import _reconstruct, scalar
from numpy.typing import NDArray
from torch import Tensor, nn

from mie.core.files import digest
from mie.errors import ConfigError, MieError
from mie.images.overlay import is_grey
from mie.networks import weights
from mie.networks.pretrained import read_pth
from mie.networks.unet import score_of
from mie.perspectives.modification.detectors import Finding
from mie.records import Mask, Pixels, Values

_PLAIN: Final[list[Any]] = [
    np.ndarray,
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("f8", "f4", "f2", "i8", "i4", "u1", "b1")),
    # NumPy 2 has moved its modules; files of both kinds are about.
    *((scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((_reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]
_MODULE: Final = "dynamic_network_architectures.architectures.unet"
_CLASSES: Final = ("PlainConvUNet", "ResidualEncoderUNet", "ResidualUNet")
_INSTALL: Final = (
    "run `pip install dynamic-network-architectures`, or install nnU-Net: `pip install nnunetv2`"
)


@dataclass(frozen=True, slots=True)
class Head:
    """One output of the network; with labels they exclude each other, regions may overlap."""

    name: str
    background: bool = False


@dataclass(frozen=True, slots=True)
class NnunetModel:
    """A network of the 2d configuration and how its images are prepared."""

    network: nn.Module  # (B, C, H, W) to logits (B, heads, H, W)
    patch: tuple[int, int]
    channels: int
    schemes: tuple[str, ...]  # the normalisation of each channel
    masked: tuple[bool, ...]  # of each channel: only where the image is not black
    intensities: tuple[Mapping[str, float], ...]  # of each channel, over the training set's foreground
    heads: tuple[Head, ...]
    regions: bool
    mirrored: tuple[int, ...]  # axes of the image that may be mirrored, 0 is height
    weights: str  # SHA-256 of the checkpoint


def read_model(folder: Path, fold: str = "0", checkpoint: str = "checkpoint_final.pth") -> NnunetModel:
    """The model in `folder`. `ConfigError` or `MieError` with what is missing or not supported."""
    dataset, plans = _json(folder / "dataset.json"), _json(folder / "plans.json")
    where = folder / f"fold_{fold}" / checkpoint
    state = _checkpoint(where)
    name = str(state["init_args"]["configuration"])
    configuration = _configuration(plans, name, folder / "plans.json")
    if len(configuration["patch_size"]) != 2 or configuration.get("previous_stage") is not None:
        raise ConfigError(
            "not a two-dimensional nnU-Net",
            where=folder,
            expected="the configuration 2d",
            found=name,
            fix="train it with `nnUNetv2_train DATASET 2d FOLD`",
        )
    if list(plans.get("transpose_forward", (0, 1, 2))) != [0, 1, 2]:
        raise ConfigError(
            "an nnU-Net whose slices lie in another plane than its images",
            where=folder / "plans.json",
            expected="transpose_forward [0, 1, 2]",
            found=plans["transpose_forward"],
        )
    channels = len(dataset.get("channel_names") or dataset["modality"])
    heads, regions = _heads(dataset["labels"])
    network = _network(configuration["architecture"], channels, len(heads), folder / "plans.json")
    # nnU-Net wraps compiled and distributed networks; the names inside are the same.
    tensors = {key.removeprefix("module."): value for key, value in state["network_weights"].items()}
    weights.fit(network, tensors, where)
    intensities = plans["foreground_intensity_properties_per_channel"]
    height, width = configuration["patch_size"]
    return NnunetModel(
        network=network.eval().requires_grad_(False),
        patch=(int(height), int(width)),
        channels=channels,
        schemes=tuple(configuration["normalization_schemes"]),
        masked=tuple(bool(m) for m in configuration["use_mask_for_norm"]),
        intensities=tuple(intensities[str(c)] for c in range(channels)),
        heads=heads,
        regions=regions,
        mirrored=tuple(state.get("inference_allowed_mirroring_axes") or ()),
        weights=digest(where),
    )


def _checkpoint(path: Path) -> dict[str, Any]:
    if not path.is_file():
        beside = sorted(str(p.relative_to(path.parents[1])) for p in path.parents[1].glob("fold_*/*.pth"))
        raise ConfigError(
            "no such checkpoint", where=path, found=", ".join(beside) or "none", fix="say fold=, checkpoint="
        )
    state = read_pth(path, _PLAIN)
    missing = {"network_weights", "init_args"} - set(state if isinstance(state, dict) else ())
    if missing:
        raise MieError("not a checkpoint of nnU-Net v2", where=path, expected=", ".join(sorted(missing)))
    return dict(state)


def _configuration(plans: Mapping[str, Any], name: str, where: Path) -> dict[str, Any]:
    """A configuration of the plans, with all that it inherits."""
    known = plans["configurations"]
    if name not in known:
        raise MieError(f"no configuration {name!r} in the plans", where=where, found=", ".join(known))
    found = dict(known[name])
    parent = found.pop("inherits_from", None)
    if parent is not None:
        found = {**_configuration(plans, parent, where), **found}
    if "architecture" not in found:
        raise ConfigError(
            "plans of an old nnU-Net",
            where=where,
            expected="an entry `architecture`, as nnU-Net writes it since 2.4",
            fix="plan and train again with a newer nnU-Net",
        )
    return found


def _network(architecture: Mapping[str, Any], channels: int, heads: int, where: Path) -> nn.Module:
    asked = str(architecture["network_class_name"])
    name = asked.rpartition(".")[2]
    if name not in _CLASSES:
        raise ConfigError(
            "an architecture that is not supported", where=where, expected=", ".join(_CLASSES), found=asked
        )
    try:
        module = importlib.import_module(_MODULE)
    except ModuleNotFoundError as error:
        raise ConfigError(f"nnU-Net's networks need the package {error.name}", fix=_INSTALL) from None
    options = dict(architecture["arch_kwargs"])
    for key in architecture["_kw_requires_import"]:
        options[key] = _layer(options[key], where)
    made: nn.Module = getattr(module, name)(
        input_channels=channels, num_classes=heads, deep_supervision=False, **options
    )
    return made


def _layer(name: str | None, where: Path) -> type[nn.Module] | None:
    """A class of `torch.nn` by its full name."""
    if name is None:
        return None
    found = getattr(nn, name.rpartition(".")[2], None)
    if not name.startswith("torch.nn.") or not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(
            "a layer that is not supported", where=where, expected="one of torch.nn", found=name
        )
    return found


def _heads(labels: Mapping[str, Any]) -> tuple[tuple[Head, ...], bool]:
    """The outputs in the network's order, and whether they are regions."""
    known = {name: value for name, value in labels.items() if name != "ignore"}
    if any(isinstance(value, list) and len(value) > 1 for value in known.values()):
        return tuple(Head(name) for name, value in known.items() if value not in (0, [0])), True
    number = {name: int(value[0] if isinstance(value, list) else value) for name, value in known.items()}
    ordered = sorted(number, key=number.__getitem__)
    return tuple(Head(name, background=number[name] == 0) for name in ordered), False


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            "not a model folder of nnU-Net v2",
            where=path.parent,
            expected="dataset.json, plans.json and fold_0/checkpoint_final.pth",
            found=f"no {path.name}",
        ) from None
    except ValueError as error:
        raise MieError(f"{path.name} is not valid JSON", where=path, found=error) from None
    return found


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
