"""The model folder of nnU-Net v2, read without running anything that is in it.

FOLDER/ (`nnUNetTrainer__nnUNetPlans__2d`)
  dataset.json, plans.json                 channels, labels, preprocessing, architecture
  fold_0/checkpoint_final.pth              weights, and the trainer's own state

A checkpoint is a pickle, which can run code when it is opened. It is opened with `weights_only`, where only
tensors, plain values and NumPy's numbers may appear (the trainer's log has such numbers). The network's class
is one of the few named here, whatever the plans say.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

import numpy as np
import torch
from numpy._core.multiarray import _reconstruct, scalar
from torch import nn

from mie.errors import ConfigError, MieError
from mie.images.files import digest
from mie.networks import weights

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
    try:
        with torch.serialization.safe_globals(_PLAIN):
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, OSError) as error:
        reason = str(error).partition("WeightsUnpickler error:")[2] or str(error)
        raise MieError(
            "the checkpoint cannot be opened safely",
            where=path,
            expected="tensors and plain values, as nnU-Net v2 writes them",
            found=reason.strip().partition("\n")[0][:200],
            fix="save it again with network_weights, init_args, inference_allowed_mirroring_axes and no more",
        ) from None
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
