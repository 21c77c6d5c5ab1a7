"""A pack of small skin-coloured pictures with lesions, and a LoRA training on the tiny FLUX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mie.training.config import TrainConfig, parse_config
from mie.training.pack import TRAIN, VALIDATION, Instruction, Pack, Row, Wording, write_pack
from tests.conftest import crop, ellipse

INSTRUCTIONS = [
    Instruction(
        "perception/lesion/skin lesion/dermoscopy", (Wording("Paint it RED", "Paint it RED", ("red",)),)
    )
]


def skin_row(number: int, fold: str, **changes: Any) -> Row:
    body: dict[str, Any] = {
        "id": f"row-{number}", "perspective": "perception", "task": "lesion", "target": "skin lesion",
        "key": None, "modality": "dermoscopy", "anatomy": "skin", "source": "skin", "patient_id": None,
        "license": "CC0-1.0", "fold": fold, "input": number, "goal": None, "mask": number, "classes": 1,
        "instruction": 0,
    }  # fmt: skip
    return Row(**body | changes)


def skin_pack() -> Pack:
    """Eight pictures of several sizes; the last two are for validation."""
    pack = Pack([], [], [], INSTRUCTIONS, {"made": "for a test"})
    for number in range(8):
        height, width = ((80, 96), (64, 64), (200, 90))[number % 3]
        pack.images.append(np.maximum(crop(4 * number + 1, height, width), 40))
        pack.masks.append(ellipse(number, height, width).astype(np.uint8))
        pack.rows.append(skin_row(number, VALIDATION if number > 5 else TRAIN))
    return pack


def write_skin_pack(path: Path) -> Path:
    write_pack(path, skin_pack())
    return path


def lora_body(pack: Path, base: Path, **changes: Any) -> dict[str, Any]:
    """A training file as a mapping."""
    body: dict[str, Any] = {
        "name": "lora",
        "trainee": "flux-fill-lora",
        "seed": 3,
        "steps": 4,
        "batch": 2,
        "optimizer": {"lr": 2e-2, "warmup": 1, "weight_decay": 0},
        "ema": 0.5,
        "precision": "fp32",
        "gradient_checkpointing": True,
        "checkpoint": {"every": 2},
        "validate": {"every": 4},
        "log_every": 1,
    }
    data = {
        "packs": [str(pack)],
        "family": "dermoscopy",
        "size": 64,
        "validate_rows": 2,
        **changes.pop("data", {}),
    }
    model = {
        "base": str(base),
        "rank": 4,
        "alpha": 8,
        "targets": ["to_q", "to_v", "to_out.0", "proj_out"],
        "grid_steps": 1,
        **changes.pop("model", {}),
    }
    return {**body, "data": data, "model": model, **changes}


def lora_config(pack: Path, base: Path, **changes: Any) -> TrainConfig:
    return parse_config(lora_body(pack, base, **changes))
