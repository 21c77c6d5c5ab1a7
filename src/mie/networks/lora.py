"""LoRA (Hu et al. 2021): a linear layer W learns a change of low rank, y = W x + alpha / rank · B A x.

The factors A and B live in one small module, `LoraFactors`; the network itself stays frozen and is lent the
factors before each pass. So what is trained, averaged and saved is a few megabytes, and two sets of factors
can share one network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mie.core.registry import nearest_name
from mie.errors import ConfigError

_PEFT: Final = "base_model.model."  # as peft names what it saves


class LoraLinear(nn.Module):
    """A frozen linear layer and, where it has been lent factors, the change that they make."""

    def __init__(self, linear: nn.Linear, scale: float) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.scale = scale
        # In a tuple, where nn.Module does not look for parameters.
        self.factors: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if self.factors is None:
            return y
        a, b = (factor.to(x.dtype) for factor in self.factors)
        return y + self.scale * F.linear(F.linear(x, a), b)


class LoraFactors(nn.Module):
    """`forward` is that of the network, with these factors in it. The state dict has the factors alone."""

    def __init__(
        self, net: nn.Module, places: Mapping[str, LoraLinear], factors: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self._lent_to = (net, dict(places))  # in a tuple: not a part of this module
        self.factors = nn.ParameterDict(dict(factors))

    @classmethod
    def fresh(cls, net: nn.Module, places: Mapping[str, LoraLinear], rank: int) -> LoraFactors:
        """Start as is usual: A random, B zero, so that nothing changes yet."""
        factors: dict[str, Tensor] = {}
        for name, place in places.items():
            out, into = place.linear.weight.shape
            a = torch.empty(rank, into)
            nn.init.kaiming_uniform_(a, a=math.sqrt(5))
            factors[f"{_flat(name)}/lora_A"], factors[f"{_flat(name)}/lora_B"] = a, torch.zeros(out, rank)
        return cls(net, places, factors)

    def __deepcopy__(self, memo: dict[int, Any]) -> LoraFactors:
        """Factors of its own, the same network."""
        net, places = self._lent_to
        return LoraFactors(net, places, {name: p.detach().clone() for name, p in self.factors.items()})

    @property
    def network(self) -> nn.Module:
        """The frozen network."""
        return self._lent_to[0]

    def lend(self) -> None:
        """Give the network these factors; they stay for a backward pass that runs it once more."""
        for name, place in self._lent_to[1].items():
            place.factors = (self.factors[f"{_flat(name)}/lora_A"], self.factors[f"{_flat(name)}/lora_B"])

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.lend()
        return self._lent_to[0](*inputs, **named)

    def tensors(self, prefix: str = _PEFT) -> dict[str, Tensor]:
        """By peft's names: `base_model.model.layers.0.attn.to_q.lora_A.weight`."""
        return {
            f"{prefix}{name.replace('/', '.')}.weight": p.detach().to("cpu", torch.float32).contiguous()
            for name, p in self.factors.items()
        }


def add_lora(
    net: nn.Module, rank: int, alpha: float, targets: Sequence[str], *, where: str = "model.lora.targets"
) -> dict[str, LoraLinear]:
    """Wrap every linear layer of `net` whose name ends with one of `targets`; return them by name.

    All of `net` is frozen. A target without a layer is an error at the setting `where`.
    """
    net.requires_grad_(False)
    linear = {name: module for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    places: dict[str, LoraLinear] = {}
    for target in targets:
        names = [name for name in linear if name == target or name.endswith(f".{target}")]
        if not names:
            near = nearest_name(target, {name.rpartition(".")[2] for name in linear} | linear.keys())
            raise ConfigError(
                f"no linear layer {target!r} for a LoRA",
                where=where,
                fix=f"did you mean {near!r}?" if near else None,
            )
        for name in names:
            parent, _, leaf = name.rpartition(".")
            places[name] = LoraLinear(linear[name], alpha / rank)
            setattr(net.get_submodule(parent), leaf, places[name])
    return dict(sorted(places.items()))


def adapter_config(rank: int, alpha: float, targets: Sequence[str]) -> dict[str, Any]:
    """What peft's `adapter_config.json` says."""
    return {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(targets),
        "bias": "none",
        "use_rslora": False,
    }


@contextmanager
def merged(places: Mapping[str, LoraLinear]) -> Iterator[None]:
    """Fold the lent factors into the weights; afterwards the very weights of before are back."""
    before: list[tuple[LoraLinear, Tensor, tuple[Tensor, Tensor]]] = []
    try:
        for place in places.values():
            if place.factors is None:
                continue
            weight, factors = place.linear.weight, place.factors
            before.append((place, weight.detach().clone(), factors))
            a, b = (factor.detach().to(weight.device, torch.float32) for factor in factors)
            with torch.no_grad():
                weight.copy_((weight.float() + place.scale * (b @ a)).to(weight.dtype))
            place.factors = None
        yield
    finally:
        with torch.no_grad():
            for place, weight, factors in before:
                place.linear.weight.copy_(weight)
                place.factors = factors


def plain_state(net: nn.Module) -> dict[str, Tensor]:
    """The state of a network as it was before `add_lora`: the names without the wrappers."""
    wrapped = [name for name, module in net.named_modules() if isinstance(module, LoraLinear)]
    inner = {f"{name}.linear.": f"{name}." for name in wrapped}
    state: dict[str, Tensor] = {}
    for name, value in net.state_dict().items():
        start = next((start for start in inner if name.startswith(start)), None)
        state[name if start is None else inner[start] + name.removeprefix(start)] = value
    return state


def _flat(name: str) -> str:
    return name.replace(".", "/")  # a ParameterDict takes no dots
