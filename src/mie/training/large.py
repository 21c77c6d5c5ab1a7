"""Large models: float32 weights beside what computes, in one process or shared out over several.

Several processes share a model with FSDP2: each holds some rows of every parameter, blocks are gathered one
by one while they compute. One process holds all weights and, at bf16, a copy in bfloat16 that computes.
Optimizer, average and checkpoints work on the float32 weights (`Weights`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim.swa_utils import get_ema_multi_avg_fn


def shard(model: nn.Module, blocks: Sequence[nn.Module], device: torch.device, *, half: bool) -> None:
    """Share out the parameters of each block, then the rest, over all processes; in place."""
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    # Inputs are not cast: angles and times need float32, and the model casts the others itself.
    kinds: dict[str, Any] = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if half else {}
    policy = MixedPrecisionPolicy(**kinds, cast_forward_inputs=False)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


class Weights(Protocol):
    """Float32 weights of a model that computes with something else: what is optimised, averaged and saved."""

    named: dict[str, nn.Parameter]

    def clip_gradients(self, most: float) -> Tensor:
        """Take the model's gradients over and scale them to a norm of at most `most`; return the norm."""
        ...

    def clear_gradients(self) -> None: ...

    def publish(self) -> None:
        """Let the model compute with the weights as they are now."""
        ...


class Shards:
    """A process's own rows of a sharded model's parameters, as parameters of their own."""

    def __init__(self, model: nn.Module) -> None:
        self._whole: dict[str, Any] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.named = {name: nn.Parameter(_local(p)) for name, p in self._whole.items()}

    def clip_gradients(self, most: float) -> Tensor:
        gradients = []
        for name, piece in self.named.items():
            local = _local(self._whole[name])
            if local.data_ptr() != piece.data_ptr():  # FSDP may move its pieces once, before the first step
                piece.data = local
            gradient = self._whole[name].grad
            piece.grad = None if gradient is None else _local(gradient)
            if piece.grad is not None:
                gradients.append(piece.grad)
        square = torch.stack(torch._foreach_norm(gradients)).square().sum()
        torch.distributed.all_reduce(square)
        return _clip(gradients, square.sqrt(), most)

    def clear_gradients(self) -> None:
        for name, p in self._whole.items():
            p.grad = self.named[name].grad = None

    def publish(self) -> None:
        return  # the pieces are the model's own


class Masters:
    """Float32 copies of a model that is turned to bfloat16; gradients add up in float32, too.

    Each gradient goes over as soon as it is there, so that no second set of them is in memory.
    """

    def __init__(self, model: nn.Module) -> None:
        self.named = {name: nn.Parameter(p.detach().float()) for name, p in model.named_parameters()}
        model.to(torch.bfloat16)
        self._halves = dict(model.named_parameters())
        for name, half in self._halves.items():
            half.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._taker(self.named[name])
            )

    @staticmethod
    def _taker(master: nn.Parameter) -> Callable[[Tensor], None]:
        def take(half: Tensor) -> None:
            if half.grad is None:
                return
            if master.grad is None:
                master.grad = half.grad.float()
            else:
                master.grad.add_(half.grad)
            half.grad = None

        return take

    def clip_gradients(self, most: float) -> Tensor:
        gradients = [p.grad for p in self.named.values() if p.grad is not None]
        return _clip(gradients, torch.stack(torch._foreach_norm(gradients)).square().sum().sqrt(), most)

    def clear_gradients(self) -> None:
        for p in self.named.values():
            p.grad = None

    def publish(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(self._halves.values()), list(self.named.values()))


def _clip(gradients: list[Tensor], norm: Tensor, most: float) -> Tensor:
    torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp(max=1.0))
    return norm


class WeightsAverage:
    """The moving average of such weights: as many tensors more; with a decay of 0 none."""

    def __init__(self, weights: Weights, decay: float) -> None:
        self.kept, self._decay, self._weights = decay > 0, decay, weights
        self.averaged = {n: p.detach().clone() for n, p in weights.named.items()} if self.kept else {}

    @torch.no_grad()
    def update(self, done: int) -> None:
        if self.kept:
            decay = min(self._decay, (1 + done) / (10 + done))
            current = list(self._weights.named.values())
            get_ema_multi_avg_fn(decay)(list(self.averaged.values()), current, done)  # type: ignore[no-untyped-call]

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Put the average in place of the weights for a while."""
        if not self.kept:
            yield
            return
        current = {name: p.detach().clone() for name, p in self._weights.named.items()}
        load_weights(self._weights, self.averaged)
        try:
            yield
        finally:
            load_weights(self._weights, current)


def load_weights(weights: Weights, tensors: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, p in weights.named.items():
            p.copy_(tensors[name])
    weights.publish()


def _local(tensor: Any) -> Tensor:
    return tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor.detach()
