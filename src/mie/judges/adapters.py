"""A LoRA for a local judge: one safetensors file with peft's config and ours in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mie.errors import ConfigError

NAME: Final = "judge"  # of peft's adapter
_FORMAT: Final = "mie judge lora 1"


def save_adapter(path: Path, tensors: Mapping[str, Any], config: Mapping[str, Any], facts: Any) -> None:
    """`tensors`: `<layer>.lora_A.weight` and `.lora_B.weight`; `config`: rank, alpha and targets."""
    from safetensors.torch import save

    header = {"mie": json.dumps({"format": _FORMAT, "config": config, "facts": facts}, sort_keys=True)}
    path.write_bytes(save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, header))


def attach_adapter(model: Any, path: Path) -> dict[str, Any]:
    """Give the model the LoRA of the file; returns what the trainer had to say."""
    from peft import LoraConfig
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("mie", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError("not a LoRA of a judge", where=path, found=error) from None
    if header.get("format") != _FORMAT:
        raise ConfigError("not a LoRA of a judge", where=path, expected=_FORMAT, found=header.get("format"))
    config = header["config"]
    model.add_adapter(
        LoraConfig(r=config["r"], lora_alpha=config["lora_alpha"], target_modules=config["target_modules"]),
        NAME,
    )
    places = {
        f"{name}.{which}.weight": getattr(layer, which)[NAME]
        for name, layer in model.named_modules()
        if hasattr(layer, "lora_A") and NAME in getattr(layer, "lora_A", {})
        for which in ("lora_A", "lora_B")
    }
    if set(places) != set(tensors):
        apart = sorted(set(places) ^ set(tensors))
        raise ConfigError("the LoRA is that of another model", where=path, found=apart[0])
    for name, linear in places.items():
        if linear.weight.shape != tensors[name].shape:
            raise ConfigError("the LoRA is that of another model", where=path, found=name)
        linear.weight.data.copy_(tensors[name])
    facts: dict[str, Any] = header["facts"]
    return facts
