"""A case becomes samples. One recipe per perspective, found by its kind."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any, Final, Protocol

from mie.records import Case, Refusal, Sample

_RECIPES: Final = {
    "perception": "mie.recipes.perception:Perception",
    "transformation": "mie.recipes.transformation:Transformation",
}


class Recipe(Protocol):
    def samples(self, case: Case, split: str, build_seed: int) -> Iterator[Sample | Refusal]:
        """The samples of one case, and why some of it, or all of it, gives none."""
        ...


def make_recipe(kind: str, **options: Any) -> Recipe:
    """The recipe of that kind. Imported by name: painting regions never costs an import of physics."""
    module, name = _RECIPES[kind].split(":")
    recipe: Recipe = getattr(importlib.import_module(module), name)(**options)
    return recipe
