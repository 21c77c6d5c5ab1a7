"""A case becomes samples. One recipe per perspective, found by its kind."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from mie.records import Case, Refusal, Sample

_RECIPES: Final = {
    "modification": "mie.perspectives.modification.samples:Modification",
    "perception": "mie.perspectives.perception.samples:Perception",
    "transformation": "mie.perspectives.transformation.samples:Transformation",
}


class Recipe(Protocol):
    def samples(self, case: Case, split: str, build_seed: int) -> Iterator[Sample | Refusal]:
        """The samples of one case, and why some of it, or all of it, gives none."""
        ...


@runtime_checkable
class VolumeRecipe(Protocol):
    """A recipe that wants the slices of a volume together."""

    def volume(self, cases: Sequence[Case], split: str, build_seed: int) -> Iterator[Sample | Refusal]:
        """The samples of a volume's slices, all in one split."""
        ...


def make_recipe(kind: str, **options: Any) -> Recipe:
    """The recipe of that kind. Imported by name: painting regions never costs an import of physics."""
    module, name = _RECIPES[kind].split(":")
    recipe: Recipe = getattr(importlib.import_module(module), name)(**options)
    return recipe
