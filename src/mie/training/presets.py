"""Published settings of trainings: `preset: NAME` in a training file stands for these keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mie.core.registry import unknown_name
from mie.errors import ConfigError

# MieDB-100k's fine-tune of OmniGen2: all parameters, 8 GPUs of 8 images.
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "miedb": {
        "trainee": "omnigen2",
        "seed": 2233,
        "steps": 20_000,
        "batch": 64,
        "optimizer": {
            "lr": 1e-4,
            "warmup": 500,
            "schedule": "constant",
            "betas": [0.9, 0.95],
            "weight_decay": 0.01,
            "clip": 1.0,
        },
        "ema": 0,
        "precision": "bf16",
        "channels_last": False,
        "gradient_checkpointing": True,
        "data": {"bins": [128, 256, 512], "caption_drop": 1e-4, "reference_drop": 0.5},
        "model": {"micro_batch": 8},
    },
}


def with_preset(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The training file with its preset's keys below its own. A list or number of the file replaces."""
    body = dict(body)
    name = body.pop("preset", None)
    if name is None:
        return body
    if not isinstance(name, str):
        raise ConfigError("not a preset", where=f"{where}: preset", expected=", ".join(PRESETS), found=name)
    if name not in PRESETS:
        raise unknown_name("preset", name, tuple(PRESETS))
    return _merged(PRESETS[name], body)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    whole = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(whole.get(key), Mapping)
        whole[key] = _merged(whole[key], value) if both else value
    return whole
