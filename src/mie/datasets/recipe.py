"""The recipe file: YAML read into models that refuse unknown keys and suggest the near one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Union

from pydantic import (
    BaseModel,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from mie.core.hashing import stable_hash
from mie.core.registry import nearest_name, suggestion
from mie.core.yaml_files import expanded, read_mapping
from mie.errors import ConfigError
from mie.perspectives import (
    PERSPECTIVES,
    GateConfig,
    Perspective,
    PerspectiveConfig,
    SourceFacts,
    StrictModel,
)
from mie.records import Case, Unit
from mie.sources import catalog
from mie.sources.catalog import Entry
from mie.vocabulary import BINS

_DEFAULT: Final = "perception"  # the perspective of a recipe that names none


class SplitConfig(StrictModel):
    """Shares for data sets without a split of their own; patients, not images, are drawn."""

    val: float = Field(0.0, ge=0, lt=1)
    test: float = Field(0.2, ge=0, le=1)

    @model_validator(mode="after")
    def _leaves_training(self) -> SplitConfig:
        if self.val + self.test > 1:
            raise ValueError(f"val + test must be at most 1, got {self.val + self.test:g}")
        return self


class SourceConfig(StrictModel):
    """A data set: a catalogue entry (with changes, if any) or a whole entry, and where it lies."""

    entry: Entry
    root: Path | None = None
    limit: int | None = Field(None, ge=1, description="at most this many images or volumes")


def _perspective_config(value: Any) -> Any:
    """The config of the perspective that `kind` names; a recipe may give the name alone."""
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, dict):
        return value
    value = {"kind": _DEFAULT, **value}
    if not isinstance(value["kind"], str):
        raise ConfigError("a perspective is a name", expected=", ".join(PERSPECTIVES), found=value["kind"])
    return PERSPECTIVES[value["kind"]].config.model_validate(value)


def _perspective_configs() -> list[type[PerspectiveConfig]]:
    configs = []
    for name in PERSPECTIVES:
        with suppress(ConfigError):  # a plug-in that cannot be imported
            configs.append(PERSPECTIVES[name].config)
    return configs


class _AnyPerspective:
    """The JSON schema of `recipe:`: one alternative for each perspective that is installed."""

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        union: Any = Annotated[Union[tuple(_perspective_configs())], Field(discriminator="kind")]  # noqa: UP007
        return handler(TypeAdapter(union).core_schema)


class RecipeConfig(StrictModel):
    """A whole recipe file."""

    name: str = Field(min_length=1, max_length=96)
    description: str = ""
    seed: int = Field(0, ge=0, lt=2**31)
    recipe: Annotated[SerializeAsAny[PerspectiveConfig], _AnyPerspective()] = Field(
        default_factory=lambda: _perspective_config(_DEFAULT)
    )
    split: SplitConfig = SplitConfig()
    bins: tuple[int, ...] = BINS
    gates: GateConfig = GateConfig()
    keep_names: bool = Field(False, description="of patients and files, instead of pseudonyms")
    sources: tuple[SourceConfig, ...] = Field(min_length=1)

    @field_validator("name")
    @classmethod
    def _safe_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("a name has letters, digits, '.', '_' and '-' only")
        return value

    @field_validator("recipe", mode="before")
    @classmethod
    def _of_its_perspective(cls, value: Any) -> Any:
        return _perspective_config(value)

    @field_validator("sources", mode="after")
    @classmethod
    def _distinct(cls, value: tuple[SourceConfig, ...]) -> tuple[SourceConfig, ...]:
        names = [s.entry.name for s in value]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"data set listed twice: {', '.join(twice)}")
        return value

    @model_validator(mode="after")
    def _suits_the_sources(self) -> RecipeConfig:
        self.perspective.check(self.recipe, [source_facts(source.entry) for source in self.sources])
        return self

    @property
    def perspective(self) -> Perspective:
        """What makes the samples."""
        return PERSPECTIVES[self.recipe.kind]

    def limited(self, limit: int) -> RecipeConfig:
        """The same recipe over at most `limit` images or volumes of each data set."""
        sources = [s.model_copy(update={"limit": min(limit, s.limit or limit)}) for s in self.sources]
        return self.model_copy(update={"sources": tuple(sources)})

    def public(self) -> dict[str, Any]:
        """The recipe without the places on this machine's disk: what `dataset.json` keeps."""
        body = self.model_dump(mode="json", by_alias=True)
        for source in body["sources"]:
            del source["root"]
        return body


def source_facts(entry: Entry, root: Path | None = None, units: Iterable[Unit] = ()) -> SourceFacts:
    """What a perspective may know about a data set."""
    pairing = None if entry.pairing is None else entry.pairing.pairing
    if root is None:
        return SourceFacts(entry.name, entry.modality, pairing)
    return SourceFacts(
        entry.name, entry.modality, pairing, partial(catalog.deidentification, entry, root, units)
    )


def read_recipe(path: Path) -> RecipeConfig:
    """The recipe in a YAML file. Roots are relative to the file's folder; `${NAME}` is the environment's."""
    body = read_mapping(path, "recipe", expected="name:, sources:, ...")
    return parse_recipe(body, where=str(path), base=path.parent)


def parse_recipe(body: Mapping[str, Any], *, where: str, base: Path) -> RecipeConfig:
    sources = body.get("sources")
    if not isinstance(sources, list) or not sources:
        near = next((k for k in body if k != "sources" and nearest_name(str(k), ["sources"])), None)
        raise ConfigError(
            "the recipe lists no data sets",
            where=where,
            expected="sources: a list of {name, root}",
            found="an empty list" if sources == [] else None,
            fix=f"did you mean `sources` instead of {near!r}?"
            if near
            else "`mie sources list` shows what is known",
        )
    try:
        configs = [_source(item, where, base) for item in sources]
        return RecipeConfig.model_validate({**body, "sources": configs})
    except ValidationError as error:
        raise _explained(error, where) from None
    except ConfigError as error:  # a name that no registry knows
        if error.where is None:
            error.where = where
        raise


def _source(item: Any, where: str, base: Path) -> SourceConfig:
    if isinstance(item, str):
        item = {"name": item}
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ConfigError("a source has no name", where=where, expected="{name: ..., root: ...}", found=item)
    changes = {k: v for k, v in item.items() if k not in ("name", "root", "limit")}
    if "layout" in changes and item["name"] not in catalog.catalog():
        entry = Entry.model_validate({**changes, "name": item["name"]})
    else:
        entry = catalog.find(item["name"])
        entry = catalog.override(entry, changes) if changes else entry
    root = item.get("root")
    return SourceConfig(
        entry=entry,
        root=None if root is None else base / Path(expanded(str(root), where)).expanduser(),
        limit=item.get("limit"),
    )


def _known_keys() -> Iterator[str]:
    perspectives = _perspective_configs()
    models: list[type[BaseModel]] = [
        *perspectives,
        *(
            field.annotation
            for config in perspectives
            for field in config.model_fields.values()
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ),
        SplitConfig,
        GateConfig,
        SourceConfig,
        RecipeConfig,
        Entry,
    ]
    models += [
        catalog.TargetEntry,
        catalog.Window,
        catalog.License,
        catalog.FolderLayout,
        catalog.PairingEntry,
    ]
    models += [catalog.VolumeLayout, catalog.DicomLayout, catalog.PairedLayout, catalog.MedSegBenchLayout]
    for model in models:
        yield from model.model_fields


def _explained(error: ValidationError, where: str) -> ConfigError:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        return ConfigError(
            f"unknown key {key!r}",
            where=f"{where}: {place}",
            fix=suggestion(key, set(_known_keys()) - {key}) or "see docs/reference/recipes.md for the keys",
        )
    found = first.get("input")
    plain = isinstance(found, str | int | float | None)
    return ConfigError(
        first["msg"].removeprefix("Value error, "),
        where=f"{where}: {place}",
        found=repr(found)[:120] if plain else None,
    )


def split_of(case: Case, shares: SplitConfig, seed: int) -> str:
    """The data set's own split, else one drawn by a seeded hash of the patient.

    The same patient always falls on the same side; an image without a known patient stands for itself.
    """
    if case.split is not None:
        return case.split
    subject = case.patient_id if case.patient_id is not None else f"{case.source}//{case.case_id}"
    place = stable_hash("split", seed, subject) / 2**64
    if place < shares.test:
        return "test"
    return "val" if place < shares.test + shares.val else "train"
