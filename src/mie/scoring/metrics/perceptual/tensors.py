"""Pixels to tensors, weights from files, and the settings under which networks give the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from mie.errors import MetricError, MieError
from mie.networks.pretrained import read_pth_tensors
from mie.records import Pixels

T = TypeVar("T")


def choose_device(device: str | None) -> torch.device:
    """The device named, else a GPU where there is one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


@contextmanager
def exactly() -> Iterator[None]:
    """Inference in whole float32, the same way every time.

    cuDNN's convolutions otherwise drop to TF32, which keeps ten bits of the mantissa.
    """
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with torch.inference_mode(), flags:
        yield


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """A `.pth` file's tensors by name. Nothing else may be in it."""
    try:
        return read_pth_tensors(path)
    except MieError as error:
        expected = "tensors by name, as torch.save writes them"
        raise MetricError("not a file of weights", where=path, expected=expected, found=error.found) from None


def fill(module: torch.nn.Module, state: dict[str, torch.Tensor], *, where: object = None) -> None:
    """Load `state` into `module`; every parameter must be there in its shape, what is more is ignored."""
    own = module.state_dict()
    # A counter that only training uses; files of older PyTorch versions lack it.
    needed = {name for name in own if not name.endswith("num_batches_tracked")}
    missing = sorted(needed - set(state))
    wrong = sorted(name for name in needed & set(state) if own[name].shape != state[name].shape)
    if missing or wrong:
        names = ", ".join([*missing, *wrong][:3])
        raise MetricError(
            "weights of another network",
            where=where,
            expected=f"{len(needed)} tensors",
            found=f"{len(missing)} missing, {len(wrong)} of another shape: {names}",
        )
    module.load_state_dict({name: state[name] for name in needed}, strict=False)
    module.eval().requires_grad_(False)


def check_pixels(image: Pixels) -> Pixels:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise MetricError(
            "not an 8-bit RGB image", expected="(H, W, 3) uint8", found=f"{image.shape} {image.dtype}"
        )
    return image


def to_tensor(values: Sequence[NDArray[Any]], device: torch.device) -> torch.Tensor:
    """Images `(H, W, 3)` of one size as `(N, 3, H, W) float32`."""
    stacked = torch.from_numpy(np.ascontiguousarray(np.stack(list(values))))
    return stacked.to(device).permute(0, 3, 1, 2).float()


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
