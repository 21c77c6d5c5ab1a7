"""The recipe of a question set: data sets, templates, healed controls, splits and curation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, field_validator

from mie.core.yaml_files import read_mapping
from mie.datasets.recipe import SourceConfig, SplitConfig, explained, listed_sources, source_config
from mie.errors import ConfigError
from mie.perspectives import StrictModel
from mie.questions.templates import find_template

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class HealedConfig(StrictModel):
    """Counterfactual controls: the same image without its lesion."""

    share: float = Field(0.0, ge=0, le=1, description="of the images with a lesion; 0: none")
    inpainter: str = Field("compact", description="as in a modification recipe")
    candidates: int = Field(2, ge=1, le=16, description="fills to choose from")
    detector: str | None = Field("compact", description="must find the lesion before, and not after")


class CurateConfig(StrictModel):
    """What of the candidates is kept."""

    domain: tuple[str, ...] = Field((), description="parts of the body to keep; all by default")
    near_duplicates: bool = Field(True, description="drop the same question about nearly equal images")
    most_same_answer: float = Field(
        0.6, gt=0, le=1, description="share of one answer among questions of one template and subject"
    )
    most_above_chance: float = Field(
        2.0, ge=1, description="times that an option may be right as often as by chance, where it is offered"
    )
    keep: int | None = Field(None, ge=1, description="so many questions, spread over tasks and modalities")
    strata: tuple[Literal["task", "phase", "modality", "anatomy", "template", "source", "split"], ...] = (
        "split",
        "task",
        "modality",
    )
    blind: Literal["mark", "refuse", "off"] = Field(
        "mark", description="what to do with questions that a text-only baseline answers"
    )


class QuestionRecipe(StrictModel):
    """A whole recipe file of `mie vqa build`."""

    name: str = Field(min_length=1, max_length=96)
    description: str = ""
    seed: int = Field(0, ge=0, lt=2**31)
    size: int = Field(512, ge=64, le=4096, description="longer side of stored images; larger ones are scaled")
    least: int = Field(64, ge=16, le=4096, description="shorter side below which an image is not asked about")
    per_image: int = Field(8, ge=1, le=64, description="at most so many questions about one image alone")
    templates: tuple[str, ...] | None = Field(None, min_length=1, description="all by default")
    open: float = Field(0.2, ge=0, le=1, description="share without options, of templates that allow it")
    split: SplitConfig = SplitConfig()
    healed: HealedConfig = HealedConfig()
    curate: CurateConfig = CurateConfig()
    keep_names: bool = Field(False, description="of patients and files, instead of pseudonyms")
    sources: tuple[SourceConfig, ...] = Field(min_length=1)

    @field_validator("name")
    @classmethod
    def _safe_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("a name has letters, digits, '.', '_' and '-' only")
        return value

    @field_validator("templates")
    @classmethod
    def _known(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in value or ():
            find_template(name)
        return value

    @field_validator("sources", mode="after")
    @classmethod
    def _distinct(cls, value: tuple[SourceConfig, ...]) -> tuple[SourceConfig, ...]:
        names = [source.entry.name for source in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"data set listed twice: {', '.join(twice)}")
        return value

    def limited(self, limit: int) -> QuestionRecipe:
        """The same recipe over at most `limit` images or volumes of each data set."""
        sources = tuple(source.limited(limit, ()) for source in self.sources)
        return self.model_copy(update={"sources": sources})

    def public(self) -> dict[str, Any]:
        """The recipe without the places on this machine's disk."""
        body = self.model_dump(mode="json")
        for source, item in zip(body["sources"], self.sources, strict=True):
            del source["root"]
            source["submodality"] = item.entry.submodality
        return body


def read_question_recipe(path: Path) -> QuestionRecipe:
    """The recipe in a YAML file. Roots are relative to the file's folder; `${NAME}` is the environment's."""
    body = read_mapping(path, "recipe", expected="name:, sources:, ...")
    return parse_question_recipe(body, where=str(path), base=path.parent)


def parse_question_recipe(body: Mapping[str, Any], *, where: str, base: Path) -> QuestionRecipe:
    """The recipe that a mapping describes."""
    try:
        sources = [source_config(item, where, base) for item in listed_sources(body, where)]
        return QuestionRecipe.model_validate({**body, "sources": sources})
    except ValidationError as error:
        raise explained(error, where) from None
    except ConfigError as error:
        error.where = error.where or where
        raise
