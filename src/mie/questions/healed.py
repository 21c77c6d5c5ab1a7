"""Counterfactual controls: the same image without its lesion, by the experts of modification."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mie.core.hashing import stable_hash
from mie.perspectives import PERSPECTIVES, BuildFacts, Recipe
from mie.perspectives.modification import ModificationConfig
from mie.perspectives.perspective import SourceFacts, Weights
from mie.questions.recipe import HealedConfig
from mie.questions.views import View
from mie.records import Case, Rejection, Sample


def _config(config: HealedConfig) -> ModificationConfig:
    return ModificationConfig(
        kinds=("removal",),
        inpainter=config.inpainter,
        candidates=config.candidates,
        detector=config.detector,
    )


def prepare(config: HealedConfig, modalities: dict[str, str]) -> Weights | None:
    """The weights that healing uses, by family; None where nothing is healed. `modalities`: by data set."""
    if not config.share:
        return None
    sources = tuple(SourceFacts(name, modality) for name, modality in modalities.items())
    return PERSPECTIVES["modification"].prepare(_config(config), BuildFacts("questions", (), sources))


class Healer:
    """Takes the lesions out of some images."""

    def __init__(self, config: HealedConfig, seed: int) -> None:
        self._share = config.share
        self._seed = seed
        self._recipe: Recipe | None = None
        if config.share:
            self._recipe = PERSPECTIVES["modification"].samples(_config(config), BuildFacts("questions", ()))

    def healed(self, view: View, case: Case) -> View | Rejection | None:
        """The view without its lesions; why it cannot be healed; None where it is not to be.

        `case` is the view's, at the size that is stored.
        """
        lesions = tuple(target.name for target in view.lesions())
        chosen = stable_hash("healed", self._seed, view.source, view.case_id) / 2**64 < self._share
        if self._recipe is None or not lesions or not chosen:
            return None
        # "test": the modification perspective keeps the size of such images.
        outcome = next(iter(self._recipe.samples(case, "test", self._seed)), None)
        if not isinstance(outcome, Sample):
            return outcome
        hole = None if outcome.mask is None else outcome.mask > 0
        if hole is None or not np.array_equal(outcome.input, view.image) or (view.unhealthy & ~hole).any():
            return Rejection(view.source, view.case_id, "healed", "the lesion was not taken out as a whole")
        return replace(
            view,
            image=outcome.target_image,
            masks={name: mask for name, mask in view.masks.items() if name not in lesions},
            healed=lesions,
            hole=hole,
        )
