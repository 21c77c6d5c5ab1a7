"""A case becomes samples: one folder per perspective, found by its name in `PERSPECTIVES`."""

from mie.perspectives.perspective import (
    PERSPECTIVES,
    BuildFacts,
    Card,
    Gate,
    GateConfig,
    Perspective,
    PerspectiveConfig,
    Recipe,
    SourceFacts,
    StrictModel,
    VolumeRecipe,
    WholeVolumeRecipe,
    find_perspective,
    unnamed_words,
)

__all__ = [
    "PERSPECTIVES",
    "BuildFacts",
    "Card",
    "Gate",
    "GateConfig",
    "Perspective",
    "PerspectiveConfig",
    "Recipe",
    "SourceFacts",
    "StrictModel",
    "VolumeRecipe",
    "WholeVolumeRecipe",
    "find_perspective",
    "unnamed_words",
]
