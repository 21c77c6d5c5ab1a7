"""A network's weights as a file: eight bits per weight, one scale per output channel.

A safetensors file. The weights of convolutions and linear layers are int8 with a float16 scale per output
channel beside them (`<name>.scale`), w = scale * q with q in -127..127; everything else is float16. The
header's entry `mie` is a JSON object: the format, the network's shape (`config`), what the trainer had to
say (`meta`), and the SHA-256 of all tensors, so that a flipped bit is found wherever the file came from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from mie.core.files import atomic_path
from mie.errors import ConfigError, MieError

_SCALE: Final = ".scale"
_LEVELS: Final = 127
_SHOWN: Final = 4  # differences that are named
_BLOCKS: Final = ("down", "up", "detail")  # numbers of blocks in a config, each with tensors of its own

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Weights:
    """What a file holds: the state in float32, the network's shape, and what the trainer had to say."""

    state: dict[str, Tensor]
    config: dict[str, Any]
    meta: dict[str, Any]


def save(
    path: Path,
    state: Mapping[str, Tensor],
    *,
    format: str,
    config: Mapping[str, Any],
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write a network's `state_dict` to `path`, whole or not at all. The same state gives the same bytes."""
    bad = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise MieError("weights that are not finite", where=path, found=_listed(bad))
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("weight") and tensor.ndim >= 2:
            tensors[name], tensors[name + _SCALE] = quantise(tensor)
        else:
            tensors[name] = tensor.detach().to("cpu", torch.float16).contiguous()
    header = {
        "format": format,
        "config": dict(config),
        "meta": dict(meta or {}),
        "sha256": tensors_digest(tensors),
    }
    with atomic_path(path) as temporary:
        # One entry: safetensors writes several in no fixed order. Through bytes of our own: its own writer
        # hides the error number of a full disk, and leaves a file of its own when it is killed.
        temporary.write_bytes(to_bytes(tensors, {"mie": json.dumps(header, sort_keys=True)}))


def load(path: Path, *, format: str) -> Weights:
    """The weights of that format in a file. `MieError` for one that is damaged or not ours."""
    if not path.is_file():
        raise ConfigError("no such weights file", where=path)
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("mie")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise MieError("the weights file is damaged", where=path, found=error) from None
    header = _header(text, path, format)
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8 and tensors.get(name + _SCALE, tensor).shape != tensor.shape[:1]:
            raise MieError("the weights file is damaged", where=path, expected=f"scales of {name}")
    if tensors_digest(tensors) != header.get("sha256"):
        raise MieError(
            "the weights file is damaged",
            where=path,
            expected=f"tensors with SHA-256 {header.get('sha256')}",
            found=tensors_digest(tensors),
            fix="get the file again",
        )
    state = {
        name: dequantise(tensor, tensors[name + _SCALE]) if tensor.dtype == torch.int8 else tensor.float()
        for name, tensor in tensors.items()
        if not name.endswith(_SCALE)
    }
    return Weights(state, header["config"], header["meta"])


def fit(net: nn.Module, state: Mapping[str, Tensor], where: Path) -> None:
    """Give the state to the network, which must be of the very shape that the state was saved from."""
    _check_shapes(net, state, where)
    net.load_state_dict(state, assign=True)


def _check_shapes(net: nn.Module, state: Mapping[str, Tensor], where: Path) -> None:
    known = net.state_dict()
    differing = [
        f"{name}: {_shape(known.get(name))} here, {_shape(state.get(name))} in the file"
        for name in sorted({*known, *state})
        if _shape(known.get(name)) != _shape(state.get(name))
    ]
    if differing:
        raise MieError(
            "the weights are those of another architecture",
            where=where,
            found=_listed(differing),
            fix="use the version of mie that trained them, or train again",
        )


def build(make: Callable[[], Network], weights: Weights, where: Path) -> Network:
    """The network that `make` makes of the file's config, with the file's state.

    A few bytes of config can ask for millions of layers. So it is made without memory first, and must have
    the very tensors that the file holds before any is made for it.
    """
    _check_counts(weights, where)
    try:
        with torch.device("meta"):
            plan = make()
    except (TypeError, ValueError, LookupError, RuntimeError) as error:
        raise MieError(
            "the weights are those of another architecture", where=where, found=str(error)[:200]
        ) from None
    _check_shapes(plan, weights.state, where)
    net = make()
    fit(net, weights.state, where)
    return net


def _check_counts(weights: Weights, where: Path) -> None:
    """No number of the config may be above what a network with so many tensors, or so wide, can have."""
    most = max(1024, len(weights.state), *(max(t.shape, default=0) for t in weights.state.values()), 0)
    for name, value in weights.config.items():
        numbers = value if isinstance(value, list | tuple) else [value]
        limit = len(weights.state) if name in _BLOCKS else most
        if len(numbers) > limit or any(isinstance(n, int) and abs(n) > limit for n in numbers):
            raise MieError(
                "the weights are those of another architecture",
                where=where,
                expected=f"{name} of at most {limit}",
                found=str(value)[:200],
            )


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`(out, ...)` as int8, and float16 scales `(out,)`: per channel, symmetric, rounded to nearest.

    The error is at most half a scale: the scale is rounded up to a float16, so that the largest weight fits.
    """
    weight = weight.detach().to("cpu", torch.float32)
    rows = weight.flatten(1)
    exact = rows.abs().amax(1) / _LEVELS
    scale = exact.half()
    scale = torch.where(scale.float() < exact, _next_up(scale), scale)
    divisor = torch.where(scale > 0, scale, 1).float()
    whole = (rows / divisor[:, None]).round().clamp(-_LEVELS, _LEVELS).to(torch.int8)
    return whole.view(weight.shape), scale


def dequantise(whole: Tensor, scale: Tensor) -> Tensor:
    return whole.float() * scale.float().view(-1, *[1] * (whole.ndim - 1))


def _next_up(scale: Tensor) -> Tensor:
    """The next larger float16 of values that are not negative: their bits, plus one."""
    return (scale.view(torch.int16) + 1).view(torch.float16)


def _header(text: str | None, path: Path, format: str) -> dict[str, Any]:
    try:
        header = json.loads(text or "{}")
    except (ValueError, RecursionError):
        header = {}
    header = header if isinstance(header, dict) else {}
    whole = all(isinstance(header.get(name), dict) for name in ("config", "meta"))
    if header.get("format") == format and not whole:
        raise MieError("the weights file is damaged", where=path, expected="config and meta")
    if header.get("format") != format:
        raise MieError(
            f"not a weights file of the {format.rpartition(' ')[0]}",
            where=path,
            expected=f"a file of the format {format!r}, as `mie train` writes it",
            found=header.get("format") or "no such header",
        )
    return dict(header)


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and values."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        whole.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return whole.hexdigest()


def _shape(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else "×".join(map(str, tensor.shape)) or "one number"


def _listed(names: list[str]) -> str:
    more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(names[:_SHOWN]) + more
