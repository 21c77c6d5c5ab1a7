"""Which samples a run edits, how often, and what each edit is shown: `config` of `run.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mie.core.registry import unknown_name
from mie.datasets.dataset import Where
from mie.editors.requests import FREE, TURNS
from mie.errors import ConfigError
from mie.vocabulary import SPLITS


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Which samples, and how many attempts each."""

    attempts: int = 1
    split: str | None = None
    limit: int | None = None
    turns: str = FREE
    where: Where | None = None  # the filters of a subset
    demonstrations: int = 0  # other samples that each edit is shown

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in SPLITS:
            raise unknown_name("split", self.split, SPLITS)
        if self.turns not in TURNS:
            raise unknown_name("way to run turns", self.turns, TURNS)
        for name, value in (("attempts", self.attempts), ("limit", self.limit)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1", found=value)
        if self.demonstrations < 0:
            raise ConfigError("demonstrations must be at least 0", found=self.demonstrations)

    def document(self) -> dict[str, Any]:
        """What `run.json` keeps under `config`."""
        body = asdict(self)
        if not self.demonstrations:
            del body["demonstrations"]
        if self.where is None:
            del body["where"]
        else:
            body["where"] = {name: list(values) for name, values in self.where.items()}
        return body
