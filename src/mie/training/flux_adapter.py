"""The part of FLUX that is trained: LoRA factors as a module of their own, apart from the frozen transformer.

The loop copies, averages and saves the module it is given. So the module holds the factors alone, some
megabytes, and lends them to the one transformer in memory before each pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mie.errors import ConfigError

_NAME = "default"


def add_lora_layers(transformer: Any, rank: int, alpha: int, targets: Sequence[str]) -> dict[str, Any]:
    """Give the linear maps named in `targets` a LoRA, with peft; returns peft's config as JSON."""
    from peft import LoraConfig

    try:
        transformer.add_adapter(LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets)), _NAME)
    except ValueError as error:
        raise ConfigError(
            "no LoRA can be added to these layers",
            where="model.targets",
            found=str(error).split("\n")[0][:200],
        ) from None
    return {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(targets),
        "bias": "none",
    }


class LoraFactors(nn.Module):
    """`forward` is that of the transformer, with these factors in it.

    A key of the state dict is the layer's name with `/` for the dots, then `/lora_A` or `/lora_B`.
    """

    def __init__(self, transformer: nn.Module, factors: Mapping[str, Tensor]) -> None:
        super().__init__()
        # In a tuple, where nn.Module does not look for parts of itself.
        self._lent_to = (transformer, dict(_places(transformer)))
        self.factors = nn.ParameterDict(dict(factors))

    @classmethod
    def fresh(cls, transformer: nn.Module) -> LoraFactors:
        """As peft begins: the first factor random, the second zero, so that nothing changes yet."""
        factors = {}
        for name, linear in _places(transformer):
            value = torch.zeros(linear.weight.shape)
            if name.endswith("lora_A"):
                nn.init.kaiming_uniform_(value, a=math.sqrt(5))
            factors[name] = value
        return cls(transformer, factors)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoraFactors:
        """Factors of its own, the same transformer."""
        return LoraFactors(self._lent_to[0], {name: p.detach().clone() for name, p in self.factors.items()})

    def lend(self) -> None:
        """From now on the transformer has these factors; also while a backward pass runs it once more."""
        for name, linear in self._lent_to[1].items():
            linear._parameters["weight"] = self.factors[name]

    def forward(self, **inputs: Any) -> Tensor:
        self.lend()
        return self._lent_to[0](**inputs, return_dict=False)[0]

    def tensors(self) -> dict[str, Tensor]:
        """By the names that diffusers knows: `transformer_blocks.0.attn.to_q.lora_A.weight`."""
        return {f"{name.replace('/', '.')}.weight": p.detach() for name, p in self.factors.items()}


def _places(transformer: nn.Module) -> list[tuple[str, nn.Linear]]:
    """The maps that peft has put in, by key."""
    from peft.tuners.lora import LoraLayer

    return [
        (f"{name.replace('.', '/')}/{which}", getattr(layer, which)[_NAME])
        for name, layer in transformer.named_modules()
        if isinstance(layer, LoraLayer)
        for which in ("lora_A", "lora_B")
    ]
