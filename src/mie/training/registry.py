"""Trainees by name, or by `module:Class`; imported only when asked for."""

from __future__ import annotations

import importlib
from typing import Final, cast

from mie.errors import ConfigError
from mie.training.config import TrainConfig
from mie.training.trainee import Trainee
from mie.vocabulary import nearest_name

_OURS: Final = {
    "compact": "mie.training.compact:Compact",
    "flux-fill-lora": "mie.training.flux_lora:FluxFillLora",
    "inpainter": "mie.training.inpainter:Inpainter",
    "segmenter": "mie.training.segmenter:Segmenter",
}


def trainee_names() -> list[str]:
    return sorted(_OURS)


def make_trainee(config: TrainConfig) -> Trainee:
    """The trainee that the config names, made from the config."""
    return trainee_class(config.trainee)(config)


def trainee_class(name: str) -> type[Trainee]:
    """The class behind a name of ours or `module:Class`, imported now."""
    place = _OURS.get(name, name)
    module, colon, attribute = place.partition(":")
    if not colon:
        near = nearest_name(name, _OURS)
        raise ConfigError(
            f"nothing named {name!r} to train",
            expected=f"{', '.join(_OURS)}, or module:Class",
            fix=f"did you mean {near!r}?" if near else None,
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"trainee {name!r} cannot be imported", where=place, found=error) from error
    missing = [part for part in ("model", "batch", "loss", "validate", "save") if not hasattr(found, part)]
    if not isinstance(found, type) or missing:
        raise ConfigError(
            f"{name!r} is no trainee",
            where=place,
            expected="a class that inherits mie.training.trainee.Trainee",
            found=f"no {', '.join(missing)}" if missing else type(found).__name__,
        )
    return cast("type[Trainee]", found)
