"""A pack of a dozen small pictures and a compact editor narrow enough to train on a CPU in a test.

Run by the tests in a process of its own: `compact_tiny.py PACK OUT` trains, and with `KILL_AT=n` in the
environment kills itself, as `kill -9` would, in the middle of step n. `CHANGES` is JSON for `compact_config`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from mie.networks import text
from mie.training import compact, compact_data
from mie.training.config import TrainConfig, parse_config
from mie.training.loop import train
from mie.training.pack import (
    TRAIN,
    VALIDATION,
    Instruction,
    Pack,
    Row,
    Wording,
    one_channel_if_grey,
    write_pack,
)
from tests import forked_python
from tests.conftest import crop, ellipse
from tests.editors.compact.tiny import Words

ROOT = Path(__file__).parents[2]
SMALL = 64  # the side of the training views, 256 in earnest


class Encoder(Words):
    """Text without a language model, as the cache on disk wants it."""

    digest = "0" * 64

    def __init__(self, device: str = "cpu") -> None:
        pass


class Killed(compact.Compact):
    """Dies where the environment says, once its gradients are half way."""

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        loss, parts = super().loss(model, batch, step)
        if os.environ.get("KILL_AT") == str(step):
            loss.backward()
            os.kill(os.getpid(), signal.SIGKILL)
        return loss, parts


def said(text: str, *colours: str) -> Wording:
    return Wording(text, text, colours)


INSTRUCTIONS = [
    Instruction(
        "perception/structure/optic disc/fundus",
        (said("Paint the optic disc GREEN", "green"), said("Mark the optic disc in RED", "red")),
        (said("Where is the optic disc? Show it in BLUE", "blue"),),
    ),
    Instruction(
        "perception/holistic//microscopy",
        (said("Nuclei RED and stroma BLUE", "red", "blue"),),
        (said("Colour stroma GREEN, nuclei RED", "red", "green"),),
    ),
    Instruction(
        "perception/structure/left lung/X-ray",
        (said("Paint the left lung BLUE", "blue"),),
    ),
    Instruction(
        "transformation/mri_noise/MRI/brain",
        (said("Remove the noise"), said("Denoise this MRI slice")),
        (said("Make it less grainy"),),
    ),
    Instruction(
        "modification/removal/polyp/endoscopy", (said("Remove the polyp"), said("Take away the polyp"))
    ),
    Instruction("modification/addition/polyp/endoscopy", (said("Add a polyp in the upper left quadrant"),)),
    Instruction(
        "modification/inpainting/polyp/endoscopy", (said("Fill the white area with healthy mucosa"),)
    ),
    Instruction("modification/simulation/polyp/endoscopy", (said("Draw a polyp into the white area"),)),
]


def _row(number: int, fold: str, ask: int, image: int, **changes: Any) -> Row:
    perspective, task, target, modality = INSTRUCTIONS[ask].key.split("/")
    body: dict[str, Any] = {
        "id": f"row-{number}", "perspective": perspective, "task": task, "target": target, "key": None,
        "modality": modality, "anatomy": "unknown", "source": modality, "patient_id": f"p{number}",
        "license": "CC0-1.0", "fold": fold, "input": image, "goal": None, "mask": None, "classes": 0,
        "instruction": ask,
    }  # fmt: skip
    return Row(**body | changes)


def tiny_pack(*, pairs: bool = True) -> Pack:
    """Three kinds of pictures to paint on, some larger than a view; and grey pairs, each other's negative."""
    pack = Pack([], [], [], INSTRUCTIONS, {"made": "for a test"})

    def kept(array: np.ndarray, into: list[np.ndarray]) -> int:
        into.append(array)
        return len(into) - 1

    for number in range(12):
        fold = VALIDATION if number % 4 == 3 else TRAIN
        ask = number % 3
        height, width = ((48, 64), (96, 120), (64, 40))[ask]
        picture = crop(number, height, width)
        mask = ellipse(number, height, width).astype(np.uint8)
        if ask == 1:
            mask[: height // 5] = 2
        place = kept(picture if ask != 2 else picture[..., 1].copy(), pack.images)
        region = {"mask": kept(mask, pack.masks), "classes": int(mask.max())}
        pack.rows.append(_row(number, fold, ask, place, **region))
    for number in range(12, 18) if pairs else ():
        fold = VALIDATION if number >= 16 else TRAIN
        side = 64 if number % 2 else 90
        picture = crop(number, side, side)[..., 1].copy()
        places = {"image": kept(picture, pack.images), "goal": kept(255 - picture, pack.images)}
        wanted = {"perspective": "transformation", "task": "denoising", "target": "noise", "modality": "MRI"}
        pack.rows.append(_row(number, fold, 3, key="mri_noise", source="MRI", **places, **wanted))
    return pack


def changed_pack() -> Pack:
    """`tiny_pack`, its ellipses lesions, and the four kinds of modification of six more pictures.

    Lesion L, counterfactual H, both with a white hole: they differ in an ellipse only. One of two is grey.
    """
    pack = tiny_pack()
    pack.rows = [replace(row, task="lesion") if row.task == "structure" else row for row in pack.rows]
    for number in range(20, 26):
        fold = VALIDATION if number >= 24 else TRAIN
        side = 64 if number % 2 else 100
        healthy = np.minimum(crop(number, side, side), 250)
        if number % 4 == 1:
            healthy = np.repeat(healthy[..., 1:2], 3, axis=2)
        area = ellipse(number, side, side)
        lesion, hole = healthy.copy(), healthy.copy()
        lesion[area] = 255 - lesion[area] // 2
        hole[area] = 255
        shown = [one_channel_if_grey(picture) for picture in (lesion, healthy, hole)]
        first = len(pack.images)
        pack.images += shown
        pack.masks.append(area.astype(np.uint8))
        for ask, (input_, goal) in enumerate(((0, 1), (1, 0), (2, 1), (2, 0)), start=4):
            places = {"goal": first + goal, "mask": len(pack.masks) - 1, "classes": 1}
            pack.rows.append(_row(number, fold, ask, first + input_, id=f"row-{number}-{ask}", **places))
    return pack


def compact_config(pack: Path, **changes: Any) -> TrainConfig:
    body: dict[str, Any] = {
        "name": "compact",
        "trainee": "tests.training.compact_tiny:Killed",
        "seed": 5,
        "steps": 4,
        "batch": 5,
        "optimizer": {"lr": 2e-3, "warmup": 1},
        "precision": "fp32",
        "checkpoint": {"every": 2},
        "validate": {"every": 3},
        "log_every": 1,
    }
    data = {"packs": [str(pack)], "validate_rows": 2, "absent": 0.3, **changes.pop("data", {})}
    model = {"widths": [8, 8, 16, 16], "down": [1, 1, 1, 1], "up": [1, 1, 1], **changes.pop("model", {})}
    return parse_config({**body, "data": data, "model": model, **changes})


# All three perspectives, transformation by a restoration network, by the name that older training files use.
RESTORATION = {
    "batch": 6,
    "data": {"shares": {"perception": 2, "transformation": 2, "modification": 2}, "holes": 0.5},
    "model": {"mender": [8, 8, 8, 16], "dropout": 0.1},
}


def train_tiny(
    pack: Path, out: Path, kill_at: int | None = None, changes: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Train in a process of its own with one thread."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "MIE_CACHE": str(out.parent / "cache"),
        "KILL_AT": str(kill_at),
        "CHANGES": json.dumps(changes or {}),
    }
    command = [sys.executable, __file__, str(pack), str(out)]
    return forked_python.run(command, env=environment)


def digests(out: Path) -> dict[str, str]:
    files = [out / "weights.safetensors", *(out / "checkpoints/step-000004").glob("*.safetensors")]
    assert len(files) == 4
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_tiny_pack(path: Path) -> Path:
    write_pack(path, tiny_pack())
    return path


def use_small_views() -> None:
    compact_data.SIDE, compact_data.LARGE = SMALL, 2 * SMALL  # type: ignore[misc]


if __name__ == "__main__":
    use_small_views()
    compact.TextEncoder = text.TextEncoder = Encoder  # type: ignore[misc, assignment]
    changes = json.loads(os.environ.get("CHANGES", "{}"))
    trained = train(compact_config(Path(sys.argv[1]), **changes), Path(sys.argv[2]), device="cpu")
    sys.exit(0 if trained.complete else 3)
