"""What a step does with a loss: learning rate, optimizer, moving average, and the means that are logged."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from mie.errors import ConfigError
from mie.training.config import OptimizerConfig
from mie.training.large import Weights


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """Rate of a step from 0: up to `lr` over `warmup` steps, down to `floor * lr` at the last one.

    With a constant schedule it stays at `lr`.
    """
    if step < config.warmup:
        return config.lr * (step + 1) / (config.warmup + 1)
    if config.schedule == "constant":
        return config.lr
    way = (step - config.warmup) / max(1, steps - 1 - config.warmup)
    return config.lr * (config.floor + (1 - config.floor) * (1 + math.cos(math.pi * min(1.0, way))) / 2)


class Meter:
    """Mean losses between two lines of the log, summed on the device and read all at once.

    Only finite values count. A step may lack some names.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}  # (2, names): sums and counts

    def add(self, values: Mapping[str, Tensor]) -> None:
        if not values:  # a loss of one part has none to name
            return
        now = torch.stack([value.detach().float().reshape(()) for value in values.values()])
        finite = torch.isfinite(now)
        both = torch.stack([torch.where(finite, now, 0.0), finite.float()])
        names = tuple(values)
        self._sums[names] = self._sums[names] + both if names in self._sums else both

    def read(self, *others: Tensor) -> tuple[dict[str, float | None], list[float]]:
        """Means since the last reading, None where nothing was finite; and the values of `others`.

        This is the one place where the host waits for the device.
        """
        parts = [s.reshape(-1) for s in self._sums.values()] + [o.detach().float().reshape(1) for o in others]
        flat = torch.cat(parts).tolist() if parts else []
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        at = 0
        for names in self._sums:
            middle, end = at + len(names), at + 2 * len(names)
            for name, value, count in zip(names, flat[at:middle], flat[middle:end], strict=True):
                sums[name] = sums.get(name, 0.0) + value
                counts[name] = counts.get(name, 0.0) + count
            at = end
        self._sums.clear()
        return {name: sums[name] / counts[name] if counts[name] else None for name in sums}, flat[at:]


class Optimizer:
    """AdamW with clipping; a step whose loss or gradient is not finite changes nothing.

    That test stays on the device: the fused kernel reads `found_inf` there and leaves the weights as they
    are. So no step waits for the host; the counts are read when a line is logged.
    """

    def __init__(
        self,
        model: nn.Module,
        config: OptimizerConfig,
        slower: Mapping[str, float] | None = None,
        weights: Weights | None = None,
    ) -> None:
        """`slower`: by the prefix of a parameter's name, the share of the learning rate that it gets.

        `weights`: of a large model, what is optimised in place of its own parameters.
        """
        self._weights = weights
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.named: Mapping[str, nn.Parameter] = trained if weights is None else weights.named
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, p in self.named.items():
            # Norms and biases are not weights of a map: decay would only shrink what they scale.
            decay = config.weight_decay if p.ndim > 1 else 0.0
            share = next((v for start, v in (slower or {}).items() if name.startswith(start)), 1.0)
            groups.setdefault((decay, share), []).append(p)
        self._shares = [share for _, share in groups]
        options = [{"params": params, "weight_decay": decay} for (decay, _), params in groups.items()]
        self._eight = config.bits == 8
        if self._eight:
            self.adamw = eight_bit(options, config)
        else:
            self.adamw = torch.optim.AdamW(options, lr=config.lr, betas=config.betas, fused=True)
        self._clip = config.clip
        # Batch norm takes a bad batch into its running mean during the forward pass.
        self._buffers = [b for b in model.buffers() if b.is_floating_point()]
        self._last_buffers = [b.clone() for b in self._buffers]
        device = next(iter(self.named.values())).device
        self.skipped = torch.zeros((), device=device)
        self.in_a_row = torch.zeros((), device=device)

    def step(self, loss: Tensor, lr: float) -> tuple[Tensor, Tensor]:
        """One step at rate `lr`, or none; the gradient's norm and whether the step was skipped (0 or 1)."""
        if self._weights is None:
            norm = nn.utils.clip_grad_norm_(list(self.named.values()), self._clip, foreach=True)
        else:
            norm = self._weights.clip_gradients(self._clip)
        bad = ~(torch.isfinite(norm) & torch.isfinite(loss.detach()))
        skip = _any_rank(bad.float())
        for group, share in zip(self.adamw.param_groups, self._shares, strict=True):
            group["lr"] = lr * share
        if self._eight:  # it cannot skip on the device
            if not bool(skip):
                self.adamw.step()
        else:
            self.adamw.found_inf = skip  # type: ignore[attr-defined]
            self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        if self._weights is not None:
            self._weights.clear_gradients()
            self._weights.publish()
        with torch.no_grad():
            for last, buffer in zip(self._last_buffers, self._buffers, strict=True):
                buffer.copy_(torch.where(skip > 0, last, buffer))
                last.copy_(buffer)
            self.skipped += skip
            self.in_a_row = (self.in_a_row + 1) * skip
        return norm, skip

    def restore_counts(self, skipped: int, in_a_row: int) -> None:
        """Continue counting, with the model's buffers as they have been loaded."""
        self.skipped.fill_(skipped)
        self.in_a_row.fill_(in_a_row)
        for last, buffer in zip(self._last_buffers, self._buffers, strict=True):
            last.copy_(buffer)

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Yield the state as `exp_avg/<parameter>` and so on."""
        for name, parameter in self.named.items():
            for key, value in self.adamw.state.get(parameter, {}).items():
                yield f"{key}/{name}", value if isinstance(value, Tensor) else torch.tensor(value)

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, value in tensors:
            key, _, parameter = name.partition("/")
            p = self.named[parameter]
            if self._eight:  # of types and sizes of its own; a count is a plain number there
                self.adamw.state[p][key] = value.item() if value.ndim == 0 else value.to(p.device)
                continue
            # In the parameter's own memory format: the fused kernel wants the same strides everywhere.
            state = (
                torch.empty_like(p) if value.shape == p.shape else torch.empty(value.shape, device=p.device)
            )
            self.adamw.state[p][key] = state.copy_(value)


def eight_bit(options: Any, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW with moments of eight bits each, from the package bitsandbytes."""
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise ConfigError(
            "an optimizer of 8 bits needs the package bitsandbytes",
            where="optimizer.bits",
            found=str(error)[:200],
            fix="run `pip install bitsandbytes`, or set bits: 32",
        ) from None
    return AdamW8bit(options, lr=config.lr, betas=config.betas)


def _any_rank(skip: Tensor) -> Tensor:
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(skip, op=torch.distributed.ReduceOp.MAX)
    return skip


class MovingAverage:
    """A copy of `model` on its device whose weights follow: what is validated, shown and shipped.

    Buffers are copied, not averaged. `AveragedModel` gives the same bits, but its loop over the parameters
    takes the host 6 ms a step instead of 2 (437 parameters), and the host is what limits a GPU.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """With a `decay` of 0 the average is the model itself, and no copy is made."""
        self.kept = decay > 0
        self._decay = decay
        self.module = copy.deepcopy(model).eval().requires_grad_(False) if self.kept else model
        self._averaged, self._current = list(self.module.parameters()), list(model.parameters())
        self._buffers = list(zip(self.module.buffers(), model.buffers(), strict=True))

    @torch.no_grad()
    def update(self, done: int) -> None:
        """Follow the model after its `done`th step. The first steps count less: they are soon far off."""
        if not self.kept:
            return
        decay = min(self._decay, (1 + done) / (10 + done))
        get_ema_multi_avg_fn(decay)(self._averaged, self._current, done)  # type: ignore[no-untyped-call]
        for averaged, current in self._buffers:
            averaged.copy_(current)
