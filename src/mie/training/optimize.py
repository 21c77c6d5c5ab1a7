"""AdamW with clipping, and a guard: a step whose loss or gradient is not finite changes nothing.

The guard lives on the device. The fused kernel reads `found_inf` there and leaves the weights as they are, so
no step waits for the host; the counts are read when a line is logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from mie.training.config import OptimizerConfig

BETAS = (0.9, 0.99)


class Optimizer:
    """Descends the gradients that a backward pass has left on `model`."""

    def __init__(
        self, model: nn.Module, config: OptimizerConfig, slower: Mapping[str, float] | None = None
    ) -> None:
        """`slower`: by the beginning of a parameter's name, the share of the rate that it learns at."""
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, p in self.named.items():
            # Norms and biases are not weights of a map: decay would only shrink what they scale.
            decay = config.weight_decay if p.ndim > 1 else 0.0
            share = next((v for start, v in (slower or {}).items() if name.startswith(start)), 1.0)
            groups.setdefault((decay, share), []).append(p)
        self._shares = [share for _, share in groups]
        made = [{"params": params, "weight_decay": decay} for (decay, _), params in groups.items()]
        self.adamw = torch.optim.AdamW(made, lr=config.lr, betas=BETAS, fused=True)
        self._clip = config.clip
        # Batch norm takes a bad batch into its running mean during the forward pass.
        self._buffers = [b for b in model.buffers() if b.is_floating_point()]
        self._kept = [b.clone() for b in self._buffers]
        device = next(iter(self.named.values())).device
        self.skipped = torch.zeros((), device=device)
        self.in_a_row = torch.zeros((), device=device)

    def step(self, loss: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """One step at rate `lr`, or none; the gradient's norm and whether the step was skipped (0 or 1)."""
        params = list(self.named.values())
        norm = nn.utils.clip_grad_norm_(params, self._clip, foreach=True)
        bad = ~(torch.isfinite(norm) & torch.isfinite(loss.detach()))
        skip = _any_rank(bad.float())
        for group, share in zip(self.adamw.param_groups, self._shares, strict=True):
            group["lr"] = lr * share
        self.adamw.found_inf = skip  # type: ignore[attr-defined]
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        with torch.no_grad():
            for kept, buffer in zip(self._kept, self._buffers, strict=True):
                buffer.copy_(torch.where(skip > 0, kept, buffer))
                kept.copy_(buffer)
            self.skipped += skip
            self.in_a_row = (self.in_a_row + 1) * skip
        return norm, skip

    def remember(self, skipped: int, in_a_row: int) -> None:
        """Go on counting, with the model's buffers as they have been loaded."""
        self.skipped.fill_(skipped)
        self.in_a_row.fill_(in_a_row)
        for kept, buffer in zip(self._kept, self._buffers, strict=True):
            kept.copy_(buffer)

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """The state as `exp_avg/<parameter>` and so on."""
        for name, parameter in self.named.items():
            for key, value in self.adamw.state.get(parameter, {}).items():
                yield f"{key}/{name}", value

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, value in tensors:
            key, _, parameter = name.partition("/")
            p = self.named[parameter]
            # In the parameter's own memory format: the fused kernel wants the same strides everywhere.
            mine = (
                torch.empty_like(p) if value.shape == p.shape else torch.empty(value.shape, device=p.device)
            )
            self.adamw.state[p][key] = mine.copy_(value)


def _any_rank(skip: Tensor) -> Tensor:
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(skip, op=torch.distributed.ReduceOp.MAX)
    return skip
