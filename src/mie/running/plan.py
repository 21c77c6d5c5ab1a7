"""What a run is: the same plan, and nothing else, may go on in the same folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mie.editors import Editor, Spec, parse_spec
from mie.errors import ConfigError, MieError
from mie.running.turns import FREE, TURNS
from mie.store.dataset import Dataset
from mie.store.runs import Run, refuse_foreign
from mie.vocabulary import SPLITS, nearest_name


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Which samples, and how often."""

    attempts: int = 1
    split: str | None = None
    limit: int | None = None
    turns: str = FREE

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in SPLITS:
            near = nearest_name(self.split, SPLITS)
            raise ConfigError(
                f"no split named {self.split!r}",
                expected=", ".join(SPLITS),
                fix=f"did you mean {near!r}?" if near else None,
            )
        if self.turns not in TURNS:
            near = nearest_name(self.turns, TURNS)
            raise ConfigError(
                f"no way to run turns named {self.turns!r}",
                expected=", ".join(TURNS),
                fix=f"did you mean {near!r}?" if near else None,
            )
        for name, value in (("attempts", self.attempts), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} does not make sense", expected="1 or more", found=value)


@dataclass(frozen=True, slots=True)
class Plan:
    """A dataset, an editor, a choice of samples, and the folder for the result."""

    dataset: Dataset
    editor: Editor
    spec: Spec
    config: RunConfig
    folder: Path

    def document(self) -> dict[str, Any]:
        """The part of `run.json` that is known before the first edit."""
        path = self.dataset.folder.resolve()
        editor = self.editor
        return {
            "dataset": {
                "path": str(path),
                "relative_path": os.path.relpath(path, self.folder.resolve()),
                "name": self.dataset.name,
                "digest": self.dataset.digest,
                "samples": len(self.dataset),
            },
            "editor": {
                "spec": str(self.spec.masked()),
                "name": self.spec.name,
                "meta": {
                    "batch_size": editor.batch_size,
                    "deterministic": editor.deterministic,
                    "native_sizes": editor.native_sizes,
                    **editor.about(),
                },
            },
            "config": asdict(self.config),
        }

    def refuse_other(self) -> None:
        """Raise when the folder holds anything but this very run."""
        refuse_foreign(self.folder)
        if not (self.folder / "run.json").exists():
            return
        found, wanted = self._identity(Run.open(self.folder).info), self._identity(self.document())
        other = [key for key in wanted if found.get(key) != wanted[key]]
        if other:
            raise MieError(
                "this folder holds another run",
                where=self.folder,
                expected=", ".join(f"{key} {wanted[key]}" for key in other),
                found=", ".join(f"{key} {found.get(key)}" for key in other),
                fix="choose another folder",
            )

    def _identity(self, document: Mapping[str, Any]) -> dict[str, Any]:
        spec = parse_spec(document["editor"]["spec"]).without(self.editor.tuning)
        return {
            "dataset": document["dataset"]["digest"],
            "editor": str(spec),
            "turns": FREE,
            **document["config"],
        }
