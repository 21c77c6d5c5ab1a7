"""GPU memory: how much is used, and what batch would fit when it runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch

from mie.errors import MieError


def peak_gib(device: torch.device) -> float | None:
    """The most memory that tensors have held since the last reset, None on a CPU."""
    return round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if device.type == "cuda" else None


def out_of_memory(
    attempt: Callable[[int], None], batch: int, world: int, device: torch.device, found: str
) -> MieError:
    """The error to raise: `attempt(share)` runs one step on a `share`th of the batch and may run out again.

    Nothing is changed silently: the batch that fits is only named.
    """
    peak = peak_gib(device)
    share, fits = 2, None
    while fits is None and batch % (world * share) == 0:
        release(device)
        try:
            attempt(share)
            fits = batch // share
        except torch.OutOfMemoryError:
            share *= 2
    used = "" if peak is None else f"; the peak was {peak} GiB"
    total = None
    if device.type == "cuda":
        total = f"at most {torch.cuda.get_device_properties(device).total_memory / 2**30:.1f} GiB"
    return MieError(
        f"out of memory at batch {batch}",
        where=device,
        expected=total,
        found=found.split("\n")[0][:200] + used,
        fix=f"batch: {fits} fits; set it, or gradient_checkpointing: true"
        if fits
        else "no smaller batch fits either: make the model or the images smaller",
    )


def release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
