"""What a perspective is: one object that says everything in which perspectives differ.

Building, verifying, cards, training and scoring read this object, so a perspective that another package
offers (entry-point group `mie.perspectives`) works wherever ours do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from mie.core import scratch
from mie.core.registry import Registry, found_in
from mie.records import Case, Pairing, Rejection, Sample

# What of the input an edit changes: "overlay" paints a region and leaves the anatomy, "area" changes what is
# shown inside a region, "image" maps the whole image to another.
EditKind: TypeAlias = Literal["overlay", "area", "image"]
EDIT_KINDS: Final[tuple[EditKind, ...]] = ("overlay", "area", "image")

# Name of a network family -> what was used of it -> SHA-256 of its weights.
Weights: TypeAlias = Mapping[str, Mapping[str, str]]
# Stored samples without their images: column -> value.
Rows: TypeAlias = Iterable[Mapping[str, Any]]
# (check, reason): one thing that is wrong with a stored sample.
Problem: TypeAlias = tuple[str, str]


class StrictModel(BaseModel):
    """A part of a recipe: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PerspectiveConfig(StrictModel):
    """What a recipe may say under `recipe:`. Each perspective has a subclass; `kind` is its name."""

    kind: str
    wordings: Literal["plain", "wide"] = Field("plain", description="wide: with synonyms, in more sentences")

    @model_serializer(mode="wrap")
    def _without_the_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As written before the key existed: a recipe without it is the same recipe as ever."""
        body: dict[str, Any] = handler(self)
        if self.wordings == "plain":
            body.pop("wordings", None)
        return body


class GateConfig(StrictModel):
    """Limits of the gates, the key `gates:` of a recipe."""

    min_pixels: int = Field(24, ge=1)
    min_fraction: float = Field(0.0002, ge=0, lt=1)
    max_fraction: float = Field(0.9, gt=0, le=1)
    max_shift: float = Field(3.0, gt=0, description="pixels between the two images of a pair")


class Recipe(Protocol):
    """Makes samples of cases, as one recipe file says."""

    def samples(self, case: Case, split: str, build_seed: int) -> Iterator[Sample | Rejection]:
        """The samples of one case, and why some of it, or all of it, gives none."""
        ...


@runtime_checkable
class VolumeRecipe(Protocol):
    """A recipe that wants the slices of a volume together."""

    def volume(self, cases: Sequence[Case], split: str, build_seed: int) -> Iterator[Sample | Rejection]:
        """The samples of a volume's slices, all in one split."""
        ...


@runtime_checkable
class WholeVolumeRecipe(Protocol):
    """A recipe that makes samples of whole volumes, of which a data set gives every slice."""

    def whole_volume(
        self, cases: Sequence[Case], split: str, build_seed: int
    ) -> Iterator[Sample | Rejection]:
        """The samples of all slices, volume by volume, each in the order of its slices (`stacked`)."""
        ...


class Gate(Protocol):
    """Decides whether a sample is kept."""

    def __call__(self, sample: Sample) -> Rejection | None:
        """Why the sample is rejected; None where it is kept."""
        ...


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What a perspective may know about a data set before any image is read."""

    name: str
    modality: str
    pairing: Pairing | None = None
    # (whether it counts as de-identified, why); may read the headers of its files.
    deidentification: Callable[[], tuple[bool, str]] = lambda: (False, "not stated")


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """What a perspective may know about the build that its recipe works for."""

    dataset: str  # its name
    bins: tuple[int, ...]
    sources: tuple[SourceFacts, ...] = ()
    folder: Path | None = None  # for what must outlive the build, such as replies that were paid for
    resources: ExitStack = field(default_factory=ExitStack)  # closed when the recipe has made its samples
    case_name: Callable[[Case], str] = lambda case: case.case_id  # as the dataset shows it
    allow_remote: bool = False  # the user's consent to a recipe's judge on another machine


@dataclass(frozen=True, slots=True)
class Card:
    """A perspective's part of the data card.

    `settings` and `details` are (label, key of the recipe) pairs: rows after the seed, and the last rows.
    """

    summary: str = ""  # ends the first sentence, where the dataset has no other perspective
    making: str = ""  # how a sample comes about
    settings: tuple[tuple[str, str], ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    gates: Mapping[str, str] = field(default_factory=dict)  # its own gates: what each rejects
    title: str = ""  # of the section about `Perspective.facts`
    section: Callable[[Mapping[str, Any]], str] | None = None


@dataclass(frozen=True, slots=True)
class Perspective:
    """Everything in which perspectives differ.

    Args:
        name: As samples and recipes say it.
        tasks: What may be asked for inside the perspective.
        edit: What of the input an edit changes.
        config: The model of a recipe's `recipe:` mapping.
        samples: Opens the recipe that makes samples as a config says.
        gates: Every gate that a new sample must pass, in order.
        prove: Everything that is wrong with one stored sample by itself, for `mie verify`.
        prove_together: (where, reason) for what is wrong among the stored samples of this perspective. A row
            holds a sample's columns without prompts and parameters and, as `pixels`, the digests of its
            images.
        prove_group: Everything that is wrong with all stored turns of one conversation, which may come in any
            order. None: its samples belong to no conversations.
        metrics: The names of the metrics that apply.
        card: What the data card says.
        check: Raises `ConfigError` where the config does not suit the data sets.
        prepare: Called before any image is read; raises where the build cannot work. The weights that it
            returns become part of the dataset's identity; None where no network is used.
        facts: What `dataset.json` says under the perspective's name, from the rows that were kept, the
            rejections, and the modality of each data set. None: nothing.

    """

    name: str
    tasks: tuple[str, ...]
    edit: EditKind
    config: type[PerspectiveConfig]
    samples: Callable[[Any, BuildFacts], Recipe]
    gates: Callable[[Any, GateConfig], Sequence[Gate]]
    prove: Callable[[Sample], list[Problem]]
    metrics: tuple[str, ...] = ()
    card: Card = field(default_factory=Card)
    prove_together: Callable[[Rows], list[Problem]] = lambda _: []
    prove_group: Callable[[Sequence[Sample]], list[Problem]] | None = None
    check: Callable[[Any, Sequence[SourceFacts]], None] = lambda _config, _sources: None
    prepare: Callable[[Any, BuildFacts], Weights | None] = lambda _config, _build: None
    facts: Callable[[Rows, Iterable[Rejection], Mapping[str, str]], Mapping[str, Any]] | None = None

    @property
    def needs_mask(self) -> bool:
        """Whether every sample says where it changes the image."""
        return self.edit != "image"

    @property
    def patient_images(self) -> tuple[str, ...]:
        """The columns that show a patient's image of their own; an overlay's target repeats its input."""
        return ("input",) if self.edit == "overlay" else ("input", "target_image")


def _wrong_object(thing: object) -> str | None:
    return None if isinstance(thing, Perspective) else "a mie.perspectives.Perspective"


PERSPECTIVES: Final[Registry[Perspective]] = Registry(
    "perspective",
    found_in("mie.perspectives", "PERSPECTIVE"),
    group="mie.perspectives",
    check=_wrong_object,
)


@lru_cache(maxsize=32)
def find_perspective(name: str) -> Perspective | None:
    """None for one that is not installed here. Remembered: a look among the entry points takes a while."""
    return PERSPECTIVES[name] if name in PERSPECTIVES else None  # noqa: SIM401 (a registry has no `get`)


def unnamed_words(sample: Sample) -> list[Problem]:
    """The words of `params["named"]`, without which the prompt asks for something else, that it lacks."""
    return [
        ("prompt", f"does not name {word!r}: {sample.prompt!r}")
        for word in sample.params.get("named", [])
        if str(word).casefold() not in sample.prompt.casefold()
    ]


@dataclass(frozen=True, slots=True)
class TrivialGate:
    """Limits on the painted region, measured at the size that is stored."""

    min_pixels: int = 24
    min_fraction: float = 0.0002
    max_fraction: float = 0.9

    @classmethod
    def of(cls, limits: GateConfig) -> TrivialGate:
        return cls(limits.min_pixels, limits.min_fraction, limits.max_fraction)

    def __call__(self, sample: Sample) -> Rejection | None:
        if _one_colour(sample.input):
            return _reject(sample, "blank", "the image has a single colour")
        if sample.mask is None:
            return None
        total = sample.mask.size
        n_classes = len(sample.params.get("classes", [0]))
        for k in range(1, n_classes + 1):
            value = round(255 * k / n_classes)
            area = scratch.counted(lambda mask, value=value: mask == value, sample.mask)
            numbers = {"pixels": area, "fraction": area / total, "class": k}
            if area == 0:
                return _reject(sample, "area", "the region is empty", numbers)
            if area < self.min_pixels or area < self.min_fraction * total:
                limit = max(self.min_pixels, self.min_fraction * total)
                return _reject(
                    sample, "area", f"the region is too small: {area} px, at least {limit:.0f}", numbers
                )
        filled = np.count_nonzero(sample.mask) / total
        if filled > self.max_fraction:
            reason = f"the region fills {filled:.1%} of the image, at most {self.max_fraction:.0%}"
            return _reject(sample, "area", reason, {"fraction": filled})
        return None


def _one_colour(image: np.ndarray) -> bool:
    first = image[0, 0]
    # Most images differ from their corner within the first rows.
    return bool((image[:8] == first).all()) and all(
        (image[at] == first).all() for at in scratch.blocks(image)
    )


def _reject(sample: Sample, gate: str, reason: str, numbers: dict[str, float] | None = None) -> Rejection:
    return Rejection(sample.source, sample.case_id, gate, reason, sample.target, numbers or {})
