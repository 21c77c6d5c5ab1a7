"""The recipe file: YAML read into models that refuse unknown keys and suggest the near one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mie.core.hashing import stable_hash
from mie.core.registry import nearest_name, suggestion, unknown_name
from mie.core.spec import parse_spec
from mie.core.yaml_files import expanded, read_mapping
from mie.errors import ConfigError
from mie.images.windows import find_ct_window
from mie.perspectives.modification.detectors import DETECTORS
from mie.perspectives.modification.inpainters import INPAINTERS
from mie.perspectives.transformation.targets import TARGETS, check_pairing, find_target
from mie.records import Case
from mie.sources import catalog
from mie.sources.catalog import Entry
from mie.vocabulary import BINS, OPACITY, TASKS


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Recipe(_Strict):
    def options(self) -> dict[str, Any]:
        """What `make_recipe` wants."""
        return self.model_dump()


class PerceptionConfig(_Recipe):
    """Paint the ground-truth region: structures, lesions, and all classes together."""

    kind: Literal["perception"] = "perception"
    tasks: tuple[Literal["structure", "lesion", "holistic"], ...] = TASKS["perception"]  # type: ignore[assignment]
    opacity: float = Field(OPACITY, gt=0.5, le=1)


class TransformationConfig(_Recipe):
    """Image to image: denoising, artifact removal, modality transfer, contrast and resolution."""

    kind: Literal["transformation"]
    targets: tuple[str, ...] = Field(tuple(TARGETS), min_length=1)
    per_case: int | None = Field(2, ge=1, description="at most this many simulated samples of one image")
    windows: tuple[str, ...] = Field((), description="CT windows; none: those that suit the anatomy")
    severity: dict[str, dict[str, Any]] = Field({}, description="by target: what is not to be drawn")
    # Not named `register`: that is a method of every pydantic model.
    registering: bool = Field(False, alias="register", description="bring pairs onto each other first")

    @model_validator(mode="after")
    def _known(self) -> TransformationConfig:
        for name in self.windows:
            find_ct_window(name)
        for key in (*self.targets, *self.severity):
            find_target(key)
        for key, fixed in self.severity.items():
            target = TARGETS[key]
            if target.effect is None:
                raise ConfigError(f"{key} has no severity", expected="a simulated target")
            # Drawn once, so that a severity out of range stops the build before it begins.
            target.simulator().draw(np.random.default_rng(0), **{**target.fixed, **fixed})
        return self


class LimitsConfig(_Strict):
    """Lesions that cannot be removed believably."""

    min_pixels: int = Field(24, ge=1, description="of the lesion, at the stored size")
    max_fraction: float | None = Field(None, gt=0, lt=1, description="of the body in the picture, filled")
    inside: float = Field(0.5, ge=0, le=1, description="share of the lesion that lies inside the body")


class BoundsConfig(_Strict):
    """How far a fill may be from its surroundings."""

    mean_shift: float = Field(45.0, gt=0, description="grey levels")
    variance_ratio: tuple[float, float] = Field((0.05, 4.0), description="lowest and highest")
    gradient_distance: float = Field(0.4, gt=0, le=1)
    spectrum_distance: float = Field(3.0, gt=0)
    seam: float = Field(0.5, gt=0)

    @field_validator("variance_ratio")
    @classmethod
    def _around_one(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] < 1 < value[1]:
            raise ValueError("the lowest ratio lies between 0 and 1, the highest above 1")
        return value


class ModificationConfig(_Recipe):
    """Lesions taken out of images by an inpainting expert, checked, as four kinds of triplets."""

    kind: Literal["modification"]
    kinds: tuple[Literal["removal", "addition", "inpainting", "simulation"], ...] = Field(
        TASKS["modification"],  # type: ignore[arg-type]
        min_length=1,
    )
    inpainter: str | Annotated[tuple[str, ...], Field(min_length=1)] = ("compact", "exemplar")
    candidates: int = Field(4, ge=1, le=64)
    blend: Literal["none", "feather", "poisson", "laplacian"] | None = None
    margin: float | None = Field(None, ge=0, le=1, description="share of a lesion's diameter")
    per_case: int | None = Field(1, ge=1, description="at most this many pairs of one image")
    allow_nearest: bool = False
    detector: str | None = "compact"
    detector_required: bool = False
    min_sensitivity: float = Field(0.5, ge=0, le=1, description="below it a detector is not trusted")
    judge: str | None = None
    limits: LimitsConfig = LimitsConfig()
    bounds: BoundsConfig = BoundsConfig()

    @model_validator(mode="after")
    def _known(self) -> ModificationConfig:
        inpainters = (self.inpainter,) if isinstance(self.inpainter, str) else self.inpainter
        for noun, spec, known in (
            *(("inpainter", spec, INPAINTERS.names()) for spec in inpainters),
            ("detector", self.detector, DETECTORS.names()),
        ):
            name = None if spec is None else parse_spec(spec, noun=noun).name
            if name is not None and name not in known:
                raise unknown_name(noun, name, known)
        if self.judge is not None:
            parse_spec(self.judge, noun="judge")
        return self

    def options(self) -> dict[str, Any]:
        from mie.perspectives.modification.counterfactual import Bounds  # needs what perception does without
        from mie.perspectives.modification.lesions import LesionLimits

        return {
            **self.model_dump(exclude={"judge"}),
            "limits": LesionLimits(**self.limits.model_dump()),
            "bounds": Bounds(**self.bounds.model_dump()),
        }


class SplitConfig(_Strict):
    """Shares for data sets without a split of their own; patients, not images, are drawn."""

    val: float = Field(0.0, ge=0, lt=1)
    test: float = Field(0.2, ge=0, le=1)

    @model_validator(mode="after")
    def _leaves_training(self) -> SplitConfig:
        if self.val + self.test > 1:
            raise ValueError(f"val + test must be at most 1, got {self.val + self.test:g}")
        return self


class GateConfig(_Strict):
    min_pixels: int = Field(24, ge=1)
    min_fraction: float = Field(0.0002, ge=0, lt=1)
    max_fraction: float = Field(0.9, gt=0, le=1)
    max_shift: float = Field(3.0, gt=0, description="pixels between the two images of a pair")


class SourceConfig(_Strict):
    """A data set: a catalogue entry (with changes, if any) or a whole entry, and where it lies."""

    entry: Entry
    root: Path | None = None
    limit: int | None = Field(None, ge=1, description="at most this many images or volumes")


class RecipeConfig(_Strict):
    """A whole recipe file."""

    name: str = Field(min_length=1, max_length=96)
    description: str = ""
    seed: int = Field(0, ge=0, lt=2**31)
    recipe: Annotated[
        PerceptionConfig | TransformationConfig | ModificationConfig, Field(discriminator="kind")
    ] = PerceptionConfig()
    split: SplitConfig = SplitConfig()
    bins: tuple[int, ...] = BINS
    gates: GateConfig = GateConfig()
    sources: tuple[SourceConfig, ...] = Field(min_length=1)

    @field_validator("name")
    @classmethod
    def _safe_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("a name has letters, digits, '.', '_' and '-' only")
        return value

    @field_validator("recipe", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        return {"kind": "perception", **value} if isinstance(value, dict) else value

    @field_validator("sources", mode="after")
    @classmethod
    def _distinct(cls, value: tuple[SourceConfig, ...]) -> tuple[SourceConfig, ...]:
        names = [s.entry.name for s in value]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"data set listed twice: {', '.join(twice)}")
        return value

    @model_validator(mode="after")
    def _pairs_lead_somewhere(self) -> RecipeConfig:
        for source in self.sources:
            if source.entry.pairing is not None:
                check_pairing(source.entry.pairing.pairing, source.entry.name)
        return self

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
        return RecipeConfig(**{**body, "sources": configs})
    except ValidationError as error:
        raise _explained(error, where) from None


def _source(item: Any, where: str, base: Path) -> SourceConfig:
    if isinstance(item, str):
        item = {"name": item}
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        raise ConfigError("a source has no name", where=where, expected="{name: ..., root: ...}", found=item)
    changes = {k: v for k, v in item.items() if k not in ("name", "root", "limit")}
    if "layout" in changes and item["name"] not in catalog.catalog():
        entry = Entry(name=item["name"], **changes)
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
    models: list[type[BaseModel]] = [
        PerceptionConfig,
        TransformationConfig,
        ModificationConfig,
        LimitsConfig,
        BoundsConfig,
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
    # pydantic puts the kind between a recipe and its keys; the file has no such level.
    path = [p for at, p in enumerate(first["loc"]) if (at, first["loc"][0]) != (1, "recipe")]
    place = ".".join(map(str, path))
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        return ConfigError(
            f"unknown key {key!r}",
            where=f"{where}: {place}",
            fix=suggestion(key, set(_known_keys()) - {key}) or "see docs/reference/recipes.md for the keys",
        )
    found = first.get("input")
    return ConfigError(
        first["msg"],
        where=f"{where}: {place}",
        found=None if isinstance(found, dict | BaseModel) else repr(found)[:120],
    )


# Who is in which split: the data set's own word first, else a seeded hash of the patient.


def split_of(case: Case, shares: SplitConfig, seed: int) -> str:
    """The same patient always falls on the same side; an image without a known patient stands for itself."""
    if case.split is not None:
        return case.split
    subject = case.patient_id if case.patient_id is not None else f"{case.source}//{case.case_id}"
    place = stable_hash("split", seed, subject) / 2**64
    if place < shares.test:
        return "test"
    return "val" if place < shares.test + shares.val else "train"
