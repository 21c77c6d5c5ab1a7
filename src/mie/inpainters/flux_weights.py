"""The file of a LoRA for `flux-fill`: written as diffusers writes it, checked before diffusers reads it.

diffusers pads, drops or half-loads a LoRA of another model with a warning. Here it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mie.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

_FACTS: Final = "mie"  # our key in the header, beside those of diffusers
_ADAPTER: Final = "lora_adapter_metadata"
_PREFIX: Final = "transformer."
_SHOWN: Final = 3


def save_lora(
    path: Path, tensors: Mapping[str, Tensor], adapter: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """`tensors`: `<layer>.lora_A.weight` (rank, in) and `.lora_B.weight` (out, rank) by layer.

    `adapter` is peft's LoraConfig as JSON (diffusers needs it to know alpha), `facts` are ours.
    """
    from safetensors.torch import save_file

    header = {
        "format": "pt",
        _ADAPTER: json.dumps({_PREFIX + key: value for key, value in adapter.items()}, sort_keys=True),
        _FACTS: json.dumps(facts, sort_keys=True),
    }
    save_file({_PREFIX + name: value.contiguous() for name, value in tensors.items()}, path, metadata=header)


def read_facts(path: Path) -> dict[str, Any]:
    """What `save_lora` was told; empty for a LoRA of somebody else."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get(_FACTS, "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(
            "the LoRA cannot be read", where=path, expected="a safetensors file", found=error
        ) from None


def load_lora(pipe: Any, path: Path, family: str) -> dict[str, Any]:
    """The LoRA of `path` into the transformer of `pipe`; returns `read_facts`.

    Refused: one of another model, and one that was trained for another family.
    """
    from diffusers.utils import logging

    facts = read_facts(path)
    if facts.get("family", family) != family:
        raise ConfigError(
            "the LoRA was trained for another family", where=path, expected=family, found=facts["family"]
        )
    found = pipe.lora_state_dict(str(path), use_safetensors=True, local_files_only=True)
    wrong = _misfits(pipe.transformer, found)
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ConfigError(
            "the LoRA does not fit the base model",
            where=path,
            expected="a LoRA of this very transformer",
            found="; ".join(wrong[:_SHOWN]) + more,
            fix="give the base model that the LoRA was trained on",
        )
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # it would warn that the text encoders, which are not there, get no LoRA
    try:
        pipe.load_lora_weights(str(path), use_safetensors=True, local_files_only=True, adapter_name="mie")
    finally:
        logging.set_verbosity(level)
    return facts


def _misfits(transformer: nn.Module, tensors: Mapping[str, Tensor]) -> list[str]:
    """What diffusers' form of a LoRA has that the transformer has no place for."""
    maps = {name: tuple(module.weight.shape) for name, module in _linear(transformer)}
    wrong = [] if tensors else ["no tensors"]
    for name, value in tensors.items():
        layer, dot, which = name.removeprefix(_PREFIX).partition(".lora_")
        if not (name.startswith(_PREFIX) and dot and layer in maps):
            wrong.append(f"{name} is of no layer here")
            continue
        out, into = maps[layer]
        have, need = (value.shape[-1], into) if which.startswith("A") else (value.shape[0], out)
        if value.ndim != 2 or have != need:
            wrong.append(f"{name} is {tuple(value.shape)}, the layer's weight {(out, into)}")
    return wrong


def _linear(transformer: nn.Module) -> list[tuple[str, nn.Linear]]:
    from torch import nn

    return [(name, module) for name, module in transformer.named_modules() if isinstance(module, nn.Linear)]
