"""What the main process writes down: status, log, TensorBoard, grids, checkpoints, the shipped weights."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mie.errors import MieError
from mie.images.files import atomic_path, atomic_write
from mie.images.png import encode_png
from mie.records import Pixels
from mie.training import machine
from mie.training.board import Board
from mie.training.checkpoint import (
    Tensors,
    amend_checkpoint,
    load_model,
    prune,
    read_ema,
    write_checkpoint,
)
from mie.training.config import TrainConfig
from mie.training.folder import Folder
from mie.training.journal import Journal
from mie.training.trainee import Trainee


class Keeper:
    """The OUT folder during one sitting; `body` becomes `train.json`."""

    def __init__(self, config: TrainConfig, folder: Folder, body: dict[str, Any]) -> None:
        self.config = config
        self.folder = folder
        self.body = body
        self.best: dict[str, Any] | None = None
        self.seconds = 0.0  # of earlier sittings, up to the checkpoint
        self._started = time.monotonic()

    def open(self, stack: contextlib.ExitStack, first: int) -> None:
        """Begin to write, from step `first` on."""
        event = "resume" if self.folder.log.exists() else "start"
        self._journal = Journal(self.folder.log)
        stack.callback(self._journal.close)
        self._journal.append(event, first, {"versions": machine.versions()})
        self._board = Board(self.folder.path / "tensorboard", first)
        stack.callback(self._board.close)
        self.status("running", first)

    def status(self, status: str, step: int | None = None) -> None:
        if step is not None:
            self.body["step"] = step
        self.body |= {"status": status, "best": self.best, "seconds": round(self.spent(), 1)}
        self.folder.write(self.body)

    def spent(self) -> float:
        """Seconds of all sittings together."""
        return self.seconds + time.monotonic() - self._started

    def line(self, event: str, done: int, facts: Mapping[str, Any]) -> None:
        """A line of the log; its numbers go to TensorBoard too."""
        self._journal.append(event, done, facts)
        self._board.scalars(event, facts.get("figures", facts), done)

    def grid(self, done: int, pixels: Pixels) -> None:
        path = self.folder.path / "grids" / f"step-{done:06d}.png"
        path.parent.mkdir(exist_ok=True)
        atomic_write(path, encode_png(pixels))
        self._board.image(pixels, done)

    def validation(self, done: int, score: str, figures: Mapping[str, float | None], seconds: float) -> None:
        """Log the figures, and remember the best. What is not a finite number is unscored."""
        known = {k: v if v is not None and math.isfinite(v) else None for k, v in figures.items()}
        self.line("validation", done, {"figures": known, "validation_seconds": round(seconds, 2)})
        if score not in known:
            raise MieError(
                "validation lacks the figure that chooses the best", expected=score, found=", ".join(known)
            )
        value = known[score]
        if value is not None and (self.best is None or value > self.best["value"]):
            self.best = {"step": done, "score": score, "value": value, "figures": known}
            self.folder.write_best(self.best)
        where = self.folder.checkpoints / f"step-{done:06d}"
        amend_checkpoint(where, {"best": self.best, "validated": True})
        self.status("running", done)

    def checkpoint(self, done: int, files: Mapping[str, Tensors], state: Mapping[str, Any]) -> None:
        """The checkpoint first; all else follows from it."""
        remembered = {**state, "seconds": round(self.spent(), 3), "best": self.best}
        write_checkpoint(self.folder.checkpoints, done, files, remembered)
        prune(self.folder.checkpoints, self.config.checkpoint.keep, self.best["step"] if self.best else None)
        self.status("running", done)

    def ship(self, trainee: Trainee) -> None:
        """The averaged weights of the best checkpoint, of the last where nothing could be scored."""
        step = self.best["step"] if self.best else self.config.steps
        where = self.folder.checkpoints / f"step-{step:06d}"
        model = trainee.model().eval()
        load_model(model, read_ema(where), where)
        facts = {
            "step": step,
            "config": without_folders(self.config.document()),
            "validation": self.best["figures"] if self.best else None,
            "data_digests": self.body["decisive"]["data_digests"],
            "versions": machine.versions(),
        }
        with atomic_path(self.folder.weights) as temporary:
            trainee.save(model, temporary, facts)
        self.status("complete", self.config.steps)


def without_folders(value: Any) -> Any:
    """A config whose absolute paths are names only: a file that travels says nothing of this machine."""
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
