"""The file of an experiment: YAML read into strict models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, Field, PrivateAttr, field_validator

from mie.core.yaml_files import expanded, read_mapping
from mie.training.config import Strict, parse_section
from mie.vocabulary import PERSPECTIVES

M = TypeVar("M", bound=BaseModel)
STEPS: Final = "steps"
SAMPLES: Final = "samples"


class TestConfig(Strict):
    """What the trained editors are measured on."""

    split: Literal["val", "test"] = "test"
    limit: int | None = Field(None, ge=1, description="samples of each dataset")


class ExperimentConfig(Strict):
    """What all experiments that train have in common."""

    name: str = Field(min_length=1, max_length=96, pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*")
    datasets: dict[str, str] = Field(min_length=1, description="a dataset's folder by perspective")
    train: dict[str, Any] = Field(description="a training file without name, seed and datasets")
    seeds: list[int] = Field([1, 2], min_length=1)
    editor_options: str = Field("", description="added to the trained editor's spec, as in steps=20")
    test: TestConfig = TestConfig()

    _base: Path = PrivateAttr(default_factory=Path)

    @field_validator("datasets")
    @classmethod
    def _known(cls, value: dict[str, str]) -> dict[str, str]:
        wrong = [name for name in value if name not in PERSPECTIVES]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is none of {', '.join(PERSPECTIVES)}")
        return value

    @field_validator("train")
    @classmethod
    def _not_here(cls, value: dict[str, Any]) -> dict[str, Any]:
        given = [key for key in ("name", "seed") if key in value]
        if given:
            raise ValueError(f"{given[0]} is set by the experiment")
        return value

    @field_validator("seeds")
    @classmethod
    def _different(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value):
            raise ValueError("each seed once")
        return value

    def path(self, text: str | Path) -> Path:
        """Return a path of the file: relative ones start at the file's folder."""
        return self._base / Path(text).expanduser()


class AblationConfig(ExperimentConfig):
    """Which perspective helps which."""

    shares: dict[str, float] = Field({}, description="of the arm that has all; equal by default")
    match: list[Literal["steps", "samples"]] = Field([STEPS, SAMPLES], min_length=1)

    @field_validator("datasets")
    @classmethod
    def _several(cls, value: dict[str, str]) -> dict[str, str]:
        if len(value) < 2:
            raise ValueError("datasets of at least two perspectives")
        return value


class HoldoutConfig(ExperimentConfig):
    """A lesion that is kept out of one perspective and kept in another."""

    lesion: str = Field(description="the target's name, as the datasets have it")
    out_of: str = "modification"
    kept_in: str = "perception"
    detector: str | None = Field(None, description="as in recipes, to look for the lesion in the edits")


class FewShotConfig(Strict):
    """Fine-tuning on a few samples against showing them as examples."""

    name: str = Field(min_length=1, max_length=96, pattern=r"[A-Za-z0-9][A-Za-z0-9._-]*")
    dataset: str
    tasks: list[str] = Field([], description="the dataset's tasks; by default its six most frequent")
    shots: list[int] = Field([0, 4, 8, 16], min_length=1, description="samples to train on")
    steps_per_shot: int = Field(50, ge=1)
    train: dict[str, Any] | None = Field(
        None, description="a training file without name, seed, steps and data"
    )
    base: str | None = Field(None, description="spec of the editor before any training")
    in_context: str | None = Field(None, description="spec of an editor that takes several images")
    demonstrations: list[int] = Field([0, 1, 2, 3], min_length=1)
    editor_options: str = ""
    judge: str | None = Field(None, description="for EA, CP and VQ; without it they are unscored")
    seed: int = 0
    test: TestConfig = TestConfig()

    _base: Path = PrivateAttr(default_factory=Path)

    def path(self, text: str | Path) -> Path:
        return self._base / Path(text).expanduser()


def read_experiment(kind: type[M], path: Path) -> M:
    """Read the file of an experiment. `${NAME}` in a string comes from the environment."""
    body = read_mapping(path, "experiment's file", expected="name:, datasets:, train:, ...")
    config = parse_section(kind, expanded(body, str(path)), where=str(path))
    config._base = path.parent  # type: ignore[attr-defined]
    return config
