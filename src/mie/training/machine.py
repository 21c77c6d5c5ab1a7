"""The device and the processes, through Accelerate: one process, or several by `accelerate launch`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

import mie
from mie.errors import ConfigError
from mie.running.facts import environment
from mie.training.config import TrainConfig

_PACKAGES: Final = ("torch", "accelerate", "safetensors", "transformers", "numpy")


def rank() -> int:
    """Of this process among those that a launcher has started; known before any device is touched."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def open_accelerator(config: TrainConfig, device: str | None) -> Accelerator:
    """Accelerate on `device` ("cpu", "cuda"; None: a GPU where there is one) at the config's precision."""
    if device not in (None, "cpu", "cuda"):
        raise ConfigError("no such device", expected="cpu or cuda", found=device)
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ConfigError("no GPU is to be seen from here", expected="cuda", fix="say --device cpu")
    if config.precision == "bf16" and device != "cpu" and cuda and not torch.cuda.is_bf16_supported():
        raise ConfigError("this GPU has no bfloat16", expected="precision: fp32", found="precision: bf16")
    # Accelerate keeps one state per process; a second training in it may have another precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    precision = "bf16" if config.precision == "bf16" else "no"
    accelerator = Accelerator(mixed_precision=precision, cpu=device == "cpu" or not cuda)
    if accelerator.device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 where float32 is left
        torch.backends.cudnn.benchmark = True
    return accelerator


def versions() -> dict[str, str]:
    """Of what the weights depend on; a package that is not installed is left out."""
    found = {"mie": mie.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def facts(device: torch.device) -> dict[str, Any]:
    """Versions and the machine, for `train.json`."""
    return {"versions": versions(), "environment": {**environment(), "device": device.type}}
