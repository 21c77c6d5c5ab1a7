"""The recipe file: YAML read into models that refuse unknown keys and suggest the near one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Union

from pydantic import (
    BaseModel,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from mie.core.hashing import stable_hash
from mie.core.registry import nearest_name, suggestion
from mie.core.storage import url_of
from mie.core.yaml_files import expanded, read_mapping
from mie.errors import ConfigError
from mie.perspectives import (
    PERSPECTIVES,
    GateConfig,
    PerspectiveConfig,
    SourceFacts,
    StrictModel,
)
from mie.records import Case, Unit
from mie.sources import catalog
from mie.sources.catalog import Entry
from mie.vocabulary import BINS

_DEFAULT: Final = "perception"  # the perspective of a recipe that names none
Limit = Annotated[int, Field(ge=1)]


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
    limit: Limit | dict[str, Limit] | None = Field(
        None, description="at most this many images or volumes; by perspective where they differ"
    )
    perspectives: tuple[str, ...] | None = Field(
        None, min_length=1, description="the perspectives that use it; all by default"
    )

    @field_validator("limit", mode="before")
    @classmethod
    def _counts(cls, value: Any) -> Any:
        """One message for both forms."""
        for number in value.values() if isinstance(value, dict) else (value,):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise ValueError("a limit should be a whole number greater than or equal to 1")
        return value

    @model_serializer(mode="wrap")
    def _without_the_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As written before the key existed: a recipe without it is the same recipe as ever."""
        body: dict[str, Any] = handler(self)
        if self.perspectives is None:
            del body["perspectives"]
        return body

    def limit_for(self, perspective: str) -> int | None:
        """How many images or volumes a perspective may use; None: all, 0: the data set is not for it."""
        if self.perspectives is not None and perspective not in self.perspectives:
            return 0
        return self.limit.get(perspective) if isinstance(self.limit, dict) else self.limit

    def limited(self, limit: int, kinds: Sequence[str]) -> SourceConfig:
        """The same data set with at most `limit` images or volumes for each perspective of the recipe."""
        if isinstance(self.limit, dict):
            limits = {kind: min(limit, self.limit.get(kind, limit)) for kind in self.perspectives or kinds}
            return self.model_copy(update={"limit": limits})
        return self.model_copy(update={"limit": min(limit, self.limit or limit)})


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


_Config = Annotated[SerializeAsAny[PerspectiveConfig], _AnyPerspective()]


class RecipeConfig(StrictModel):
    """A whole recipe file: one perspective under `recipe`, or several under `perspectives`."""

    name: str = Field(min_length=1, max_length=96)
    description: str = ""
    seed: int = Field(0, ge=0, lt=2**31)
    recipe: _Config = Field(default_factory=lambda: _perspective_config(_DEFAULT))
    perspectives: tuple[_Config, ...] = ()
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

    @field_validator("perspectives", mode="before")
    @classmethod
    def _of_their_perspectives(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError("`perspectives` is a list: [perception, {kind: modification, ...}]")
        return tuple(_perspective_config(item) for item in value)

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
        if self.perspectives and "recipe" in self.model_fields_set:
            raise ValueError("a recipe has `recipe` for one perspective or `perspectives` for several")
        kinds = [maker.kind for maker in self.makers]
        twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        if twice:
            raise ValueError(f"perspective listed twice: {', '.join(twice)}")
        for source in self.sources:
            limits = source.limit if isinstance(source.limit, dict) else {}
            for kind in (*(source.perspectives or ()), *limits):
                if kind not in kinds:
                    hint = suggestion(kind, kinds) or f"the recipe has {', '.join(kinds)}"
                    raise ValueError(f"{source.entry.name} is for the perspective {kind!r}; {hint}")
        for maker in self.makers:
            facts = [source_facts(source.entry) for source in self.sources_of(maker)]
            if not facts:
                raise ValueError(f"no data set is for the perspective {maker.kind!r}")
            PERSPECTIVES[maker.kind].check(maker, facts)
        return self

    @property
    def makers(self) -> tuple[PerspectiveConfig, ...]:
        """The config of every perspective that makes samples, in the recipe's order."""
        return self.perspectives or (self.recipe,)

    def sources_of(self, maker: PerspectiveConfig) -> list[SourceConfig]:
        """The data sets that a perspective uses."""
        return [source for source in self.sources if source.limit_for(maker.kind) != 0]

    def limited(self, limit: int) -> RecipeConfig:
        """The same recipe over at most `limit` images or volumes of each data set."""
        kinds = [maker.kind for maker in self.makers]
        sources = tuple(source.limited(limit, kinds) for source in self.sources)
        return self.model_copy(update={"sources": sources})

    def public(self) -> dict[str, Any]:
        """The recipe without the places on this machine's disk: what `dataset.json` keeps."""
        body = self.model_dump(mode="json", by_alias=True)
        del body["recipe" if self.perspectives else "perspectives"]
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


def listed_sources(body: Mapping[str, Any], where: str) -> list[Any]:
    """What a recipe has under `sources:`; `ConfigError` where that is no list, or an empty one."""
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
    return sources


def parse_recipe(body: Mapping[str, Any], *, where: str, base: Path) -> RecipeConfig:
    sources = listed_sources(body, where)
    try:
        configs = [source_config(item, where, base) for item in sources]
        return RecipeConfig.model_validate({**body, "sources": configs})
    except ValidationError as error:
        raise explained(error, where) from None
    except ConfigError as error:  # a name that no registry knows
        if error.where is None:
            error.where = where
        raise


def source_config(item: Any, where: str, base: Path) -> SourceConfig:
    """One item of `sources:`."""
    if isinstance(item, str):
        item = {"name": item}
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ConfigError("a source has no name", where=where, expected="{name: ..., root: ...}", found=item)
    changes = {k: v for k, v in item.items() if k not in ("name", "root", "limit", "perspectives")}
    if "layout" in changes and item["name"] not in catalog.catalog():
        entry = Entry.model_validate({**changes, "name": item["name"]})
    else:
        entry = catalog.find(item["name"])
        entry = catalog.override(entry, changes) if changes else entry
    root = item.get("root")
    return SourceConfig(
        entry=entry,
        root=None if root is None else _root(expanded(str(root), where), base),
        limit=item.get("limit"),
        perspectives=_names(item.get("perspectives")),
    )


def _root(text: str, base: Path) -> Path:
    path = Path(text).expanduser()
    return base / path if url_of(text) is None else path


def _names(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


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


def explained(error: ValidationError, where: str) -> ConfigError:
    """The first problem of a recipe, in words."""
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
