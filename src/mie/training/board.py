"""TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mie.records import Pixels


class Board:
    """Scalars and images under `folder`; does nothing without tensorboard."""

    def __init__(self, folder: Path, step: int) -> None:
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        # What a killed run wrote after its last checkpoint is hidden.
        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def scalars(self, group: str, values: Mapping[str, Any], step: int) -> None:
        if self._writer is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(f"{group}/{name}", value, step)

    def image(self, pixels: Pixels, step: int) -> None:
        if self._writer is not None:
            self._writer.add_image("grid", pixels, step, dataformats="HWC")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
