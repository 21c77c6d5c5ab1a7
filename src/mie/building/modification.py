"""What a modification build needs besides its recipe: experts that are there, a judge that may be asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mie.building.config import ModificationConfig, RecipeConfig
from mie.images.families import family_of, nearest_family
from mie.records import Unit
from mie.sources.catalog import Entry
from mie.sources.deidentified import deidentification

if TYPE_CHECKING:
    from mie.judges import Judge

# A data set, where it lies, and its units.
Listed = tuple[Entry, Path, Iterable[Unit]]


def learnt_weights(config: RecipeConfig, entries: Iterable[Entry]) -> dict[str, dict[str, str]]:
    """Family -> inpainter or "detector" -> SHA-256 of its weights; `ConfigError` where they are missing.

    Another file of weights is another dataset: a build does not go on with it, and `dataset.json` names it.
    """
    recipe = config.recipe
    if not isinstance(recipe, ModificationConfig):
        return {}
    from mie.recipes.experts import expert, inpainter_specs, watcher

    find = nearest_family if recipe.allow_nearest else family_of
    found: dict[str, dict[str, str]] = {}
    for family in sorted({name for entry in entries if (name := find(entry.modality)) is not None}):
        used = [expert(spec, family) for spec in inpainter_specs(recipe.inpainter)]
        digests = {one.name: one.weights for one in used if one.weights is not None}
        detector = watcher(recipe.detector, family, recipe.min_sensitivity).detector
        found[family] = digests if detector is None else {**digests, "detector": detector.weights}
    return found


def check_judge(config: RecipeConfig, sources: Iterable[Listed]) -> None:
    """Before any image is read: a judge that may not see the images is refused."""
    recipe = config.recipe
    if isinstance(recipe, ModificationConfig) and recipe.judge is not None:
        from mie.judges.clients import open_client
        from mie.judges.privacy import check_may_leave

        check_may_leave(open_client(recipe.judge), _statement(config, sources), acknowledged=False)


@contextmanager
def part_judge(config: RecipeConfig, sources: Iterable[Listed], folder: Path) -> Iterator[Judge | None]:
    """The recipe's judge with its replies in `folder`, so that a part made again asks nothing twice."""
    recipe = config.recipe
    spec = recipe.judge if isinstance(recipe, ModificationConfig) else None
    listed = [] if spec is None else _photographs(sources)
    if spec is None or not listed:
        yield None
        return
    from mie.judges import JudgeOptions, open_judge

    with open_judge(JudgeOptions(spec), folder, dataset=_statement(config, listed)) as judge:
        yield judge


def _photographs(sources: Iterable[Listed]) -> list[Listed]:
    """The data sets whose images a judge would see."""
    from mie.recipes.lesion_judge import PHOTO_LIKE

    return [item for item in sources if nearest_family(item[0].modality) in PHOTO_LIKE]


def _statement(config: RecipeConfig, sources: Iterable[Listed]) -> Mapping[str, Any]:
    """What `dataset.json` will say about those who may be recognised in the images."""
    stated = {
        entry.name: deidentification(entry, root, units) for entry, root, units in _photographs(sources)
    }
    return {
        "name": config.name,
        "deidentified": all(yes for yes, _ in stated.values()),
        "deidentification": {name: reason for name, (_, reason) in stated.items()},
    }
