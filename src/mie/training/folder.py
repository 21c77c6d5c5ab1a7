"""The OUT folder of a training: whose it is, `train.json`, the log, TensorBoard, and what comes out."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_path, atomic_write, refuse_foreign
from mie.core.journal import Journal
from mie.errors import ConfigError, MieError
from mie.images.png import encode_png
from mie.records import Pixels
from mie.training import machine
from mie.training.checkpoints import amend_checkpoint, load_model, prune, read_ema
from mie.training.config import TrainConfig
from mie.training.trainee import Trainee

_NAMES: Final = re.compile(
    r"train\.json|log\.jsonl|best\.json|weights\.\w+|model|lora|checkpoints|grids|tensorboard"
)


class TrainingFolder:
    """OUT: new, or with a training in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.log = path / "log.jsonl"

    def info(self) -> dict[str, Any] | None:
        """Return the content of `train.json`, None in a new folder."""
        path = self.path / "train.json"
        if not path.exists():
            return None
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            return dict(body)
        except (ValueError, TypeError) as error:
            raise MieError("train.json is not a JSON object", where=path, found=error) from None

    def refuse_foreign(self) -> None:
        """Raise unless the folder is absent, empty or a training's."""
        refuse_foreign(self.path, "this training", lambda path: _NAMES.fullmatch(path.name) is not None)

    def refuse_other(self, decisive: Mapping[str, Any]) -> None:
        """Raise when a training with other weights was started here; the message says which keys differ."""
        info = self.info()
        if info is None:
            return
        known = info["decisive"]
        differ = [key for key in {**known, **decisive} if known.get(key) != decisive.get(key)]
        if differ:
            raise ConfigError(
                "this folder contains another training",
                where=self.path,
                expected="; ".join(_described(key, known.get(key), decisive.get(key)) for key in differ),
                found="; ".join(_described(key, decisive.get(key), known.get(key)) for key in differ),
                fix="choose another output folder, or the config that the run started with",
            )

    def write(self, body: Mapping[str, Any]) -> None:
        text = json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False)
        atomic_write(self.path / "train.json", text + "\n")

    def write_best(self, best: Mapping[str, Any]) -> None:
        atomic_write(self.path / "best.json", json.dumps(best, indent=2, allow_nan=False) + "\n")


def _described(key: str, value: Any, other: Any) -> str:
    """Describe a key and its value; of a mapping only what differs."""
    if isinstance(value, dict) and isinstance(other, dict):
        parts = [k for k in {**value, **other} if value.get(k) != other.get(k)]
        return ", ".join(_described(f"{key}.{k}", value.get(k), other.get(k)) for k in parts)
    return f"{key} {json.dumps(value, ensure_ascii=False)[:80]}"


class TrainingLog:
    """`log.jsonl`: one line per event, never rewritten.

    A killed run may have logged steps that its last checkpoint does not know. They stay in the file; the line
    `{"event": "resume", "step": s}` says that lines after step `s` above it are superseded. A run that was
    killed in a validation repeats it: the later line counts.
    """

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self.begun = self._journal.size > 0  # a run that could not write its first line has not begun

    def append(self, event: str, step: int, facts: Mapping[str, Any]) -> None:
        body = {"event": event, "step": step, **facts}
        self._journal.append(json.dumps(body, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        self._journal.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the lines that count, in order: without those that a resume has superseded, and the resumes.

    Warnings are left out, too: some speak of time, which differs between runs.
    """
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise MieError("a line of the log is not JSON", where=f"{path}:{number}", found=error) from None
        if line["event"] == "resume":
            lines = [earlier for earlier in lines if earlier["step"] <= line["step"]]
            continue
        if line["event"] == "warning":
            continue
        if line["event"] == "validation":
            lines = [one for one in lines if (one["event"], one["step"]) != ("validation", line["step"])]
        lines.append(line)
    return lines


def _without_disk_errors(thread: threading.ExceptHookArgs) -> None:
    """Print no traceback for a disk that is full: TensorBoard's thread raises it again in ours."""
    if not isinstance(thread.exc_value, OSError):
        threading.__excepthook__(thread)


class TensorBoard:
    """Scalars and images under `folder`; does nothing where tensorboard is not installed."""

    def __init__(self, folder: Path, step: int) -> None:
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        threading.excepthook = _without_disk_errors
        # Hides what a killed run wrote after its last checkpoint.
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


class Recorder:
    """Writes the OUT folder during one run, in the main process; `body` becomes `train.json`."""

    def __init__(self, config: TrainConfig, folder: TrainingFolder, body: dict[str, Any]) -> None:
        self.config = config
        self.folder = folder
        self.body = body
        self.best: dict[str, Any] | None = None
        self.seconds = 0.0  # of earlier runs, up to the checkpoint
        self._started = time.monotonic()

    def open(self, stack: contextlib.ExitStack, first: int) -> None:
        """Start to write, from step `first` on."""
        self._log = TrainingLog(self.folder.log)
        stack.callback(self._log.close)
        self._log.append("resume" if self._log.begun else "start", first, {"versions": machine.versions()})
        self._board = TensorBoard(self.folder.path / "tensorboard", first)
        stack.callback(self._board.close)
        self.status("running", first)

    def status(self, status: str, step: int | None = None) -> None:
        if step is not None:
            self.body["step"] = step
        self.body |= {"status": status, "best": self.best, "seconds": round(self.spent(), 1)}
        self.folder.write(self.body)

    def spent(self) -> float:
        """Return the seconds of all runs together."""
        return self.seconds + time.monotonic() - self._started

    def line(self, event: str, done: int, facts: Mapping[str, Any]) -> None:
        """Append a line to the log; its numbers go to TensorBoard too."""
        self._log.append(event, done, facts)
        self._board.scalars(event, facts.get("figures", facts), done)

    def grid(self, done: int, pixels: Pixels) -> None:
        path = self.folder.path / "grids" / f"step-{done:06d}.png"
        path.parent.mkdir(exist_ok=True)
        atomic_write(path, encode_png(pixels))
        self._board.image(pixels, done)

    def validation(self, done: int, score: str, figures: Mapping[str, float | None], seconds: float) -> None:
        """Log the figures and keep the best. What is not a finite number is unscored."""
        finite = {k: v if v is not None and math.isfinite(v) else None for k, v in figures.items()}
        self.line("validation", done, {"figures": finite, "validation_seconds": round(seconds, 2)})
        if score not in finite:
            raise MieError(
                "validation lacks the figure that chooses the best", expected=score, found=", ".join(finite)
            )
        value = finite[score]
        if value is not None and (self.best is None or value > self.best["value"]):
            self.best = {"step": done, "score": score, "value": value, "figures": finite}
            self.folder.write_best(self.best)
        where = self.folder.checkpoints / f"step-{done:06d}"
        amend_checkpoint(where, {"best": self.best, "validated": True})
        self.status("running", done)

    def written(self, done: int) -> None:
        """Call it when a checkpoint is on disk: older ones are removed, `train.json` says so."""
        prune(self.folder.checkpoints, self.config.checkpoint.keep, self.best["step"] if self.best else None)
        self.status("running", done)

    def ship(self, trainee: Trainee) -> None:
        """Write the averaged weights of the best checkpoint, of the last where nothing could be scored."""
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
        product = self.folder.path / trainee.product
        if product.is_dir():  # a run was killed between writing it and saying so
            shutil.rmtree(product)
        with atomic_path(product) as temporary:
            trainee.save(model, temporary, facts)
        self.status("complete", self.config.steps)


def without_folders(value: Any) -> Any:
    """Reduce absolute paths in a config to names: a file that travels says nothing of this machine."""
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
