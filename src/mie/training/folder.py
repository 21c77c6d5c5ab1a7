"""The OUT folder of a training: whose it is, and `train.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mie.errors import ConfigError, MieError
from mie.images.files import atomic_write

_OURS: Final = re.compile(
    r"train\.json|log\.jsonl|best\.json|weights\.\w+|checkpoints|grids|tensorboard|\.lock|\..*\.tmp"
)


class Folder:
    """OUT, new or with a training of ours in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.log = path / "log.jsonl"
        self.weights = path / "weights.safetensors"

    def info(self) -> dict[str, Any] | None:
        """What `train.json` says, None in a new folder."""
        path = self.path / "train.json"
        if not path.exists():
            return None
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            return dict(body)
        except (ValueError, TypeError) as error:
            raise MieError("train.json is not a JSON object", where=path, found=error) from None

    def refuse_foreign(self) -> None:
        """Raise unless the folder is absent, empty or ours."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise MieError("the output is not a folder", where=self.path, found="a file")
        strange = sorted(p.name for p in self.path.iterdir() if not _OURS.fullmatch(p.name))
        if strange:
            raise MieError(
                "the output folder holds something else",
                where=self.path,
                expected="a new folder, or one with this training",
                found=", ".join(strange[:5]),
                fix="choose another folder",
            )

    def refuse_other(self, decisive: Mapping[str, Any]) -> None:
        """Raise when a training with other weights has begun here; the message says which keys differ."""
        info = self.info()
        if info is None:
            return
        known = info["decisive"]
        differ = [key for key in {**known, **decisive} if known.get(key) != decisive.get(key)]
        if differ:
            raise ConfigError(
                "this folder holds another training",
                where=self.path,
                expected="; ".join(_told(key, known.get(key), decisive.get(key)) for key in differ),
                found="; ".join(_told(key, decisive.get(key), known.get(key)) for key in differ),
                fix="choose another output folder, or the config that the run began with",
            )

    def write(self, body: Mapping[str, Any]) -> None:
        text = json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False)
        atomic_write(self.path / "train.json", text + "\n")

    def write_best(self, best: Mapping[str, Any]) -> None:
        atomic_write(self.path / "best.json", json.dumps(best, indent=2, allow_nan=False) + "\n")


def _told(key: str, value: Any, other: Any) -> str:
    """The key and its value; of a mapping only what differs."""
    if isinstance(value, dict) and isinstance(other, dict):
        parts = [k for k in {**value, **other} if value.get(k) != other.get(k)]
        return ", ".join(_told(f"{key}.{k}", value.get(k), other.get(k)) for k in parts)
    return f"{key} {json.dumps(value, ensure_ascii=False)[:80]}"
