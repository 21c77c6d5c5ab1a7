"""What MedEBench needs of a sample, from its own records or from any other sample.

| MedEBench | elsewhere |
| --- | --- |
| `Organ` | anatomy |
| `Task` | task and target |
| `detailed_prompt`, the change description | description; where it is empty a judge writes one |
| `previous_mask`, soft | mask, every class inside |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from mie.protocols.decode import read_stored
from mie.records import Pixels

COLUMNS = ("input", "target_image", "mask", "params", "prompt", "description")


def organ_of(row: Mapping[str, Any]) -> str:
    return str(_own(row).get("organ") or row["anatomy"])


def task_of(row: Mapping[str, Any]) -> str:
    """The record's own task, else `structure: optic disc`."""
    return str(_own(row).get("task") or f"{row['task']}: {row['target']}")


def mask_of(row: Mapping[str, Any]) -> Pixels | None:
    """`(H, W) uint8`, 255 inside. MedEBench's masks are soft; class values of ours are all inside."""
    if row["mask"] is None:
        return None
    mask = read_stored(row["mask"]["bytes"])
    return mask if _own(row) else np.where(mask > 0, np.uint8(255), np.uint8(0))


def at_size(output: Pixels, size: tuple[int, int]) -> Pixels:
    """An output at (height, width), bicubic with antialiasing, as the released script has it (Pillow)."""
    if output.shape[:2] == size:
        return output
    return np.asarray(Image.fromarray(output).resize(size[::-1], Image.Resampling.BICUBIC))


def _own(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = json.loads(row["params"]).get("medebench")
    return found if isinstance(found, Mapping) else {}
