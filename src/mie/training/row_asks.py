"""What a stored sample asks for: recovered from its dataset, and proved by saying its own prompt again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mie.recipes.lesions import spoken_targets
from mie.recipes.modification_phrasings import PHRASINGS as CHANGES
from mie.recipes.modification_phrasings import ask as say_change
from mie.recipes.modification_phrasings import words as change_words
from mie.recipes.phrasings import PHRASINGS, SEVERAL
from mie.recipes.transform_phrasings import PHRASINGS as TRANSFORMS
from mie.recipes.transform_phrasings import all_words, ask, places
from mie.records import Target
from mie.training.pack import Ask
from mie.training.wordings import (
    modification_ask,
    overlay_prompt,
    perception_ask,
    stored_ask,
    transformation_ask,
    transformation_words,
)
from mie.vocabulary import COLOURS, MODALITIES


def ask_for_row(
    row: Mapping[str, Any], params: Mapping[str, Any], recipe: Mapping[str, Any], limit: int
) -> Ask:
    """Every way to ask for what the row asks for; only its own prompt where that cannot be said again.

    `recipe` is what `dataset.json` says was built; an imported dataset's says nothing of targets and pairs.
    """
    entry = _entry(recipe, row["source"])
    template, colours = (
        row["prompt_template"],
        tuple((row["colour"] or "").split(",")) if row["colour"] else (),
    )
    found = None
    if row["modality"] in MODALITIES:
        if row["perspective"] == "perception" and template in PHRASINGS.get(row["task"], ()):
            found = _overlay(row, params, entry, colours, limit)
        elif row["perspective"] == "transformation" and template in TRANSFORMS.get(params.get("key", ""), ()):
            found = _transformation(row, params, entry, limit)
        elif row["perspective"] == "modification" and template in CHANGES.get(row["task"], ()):
            found = _modification(row, params, entry, limit)
    return found or stored_ask(row["prompt"], template, colours)


def _overlay(
    row: Mapping[str, Any],
    params: Mapping[str, Any],
    entry: Mapping[str, Any],
    colours: tuple[str, ...],
    limit: int,
) -> Ask | None:
    task, template, modality = row["task"], row["prompt_template"], row["modality"]
    names = [c["target"] for c in params.get("classes", ())]
    if len(names) != len(colours) or not names:
        return None
    known = {t["name"]: bool(t["plural"]) for t in entry.get("targets") or ()}
    # A sentence about several classes needs no number.
    numbers = [known[names[0]]] if names[0] in known and task != "holistic" else [False, True]
    proved = []
    for plural in numbers:
        targets = [Target(name, "anatomy", plural) for name in names]
        if overlay_prompt(task, template, targets, colours, modality) == row["prompt"]:
            proved.append(targets)
    if not proved:
        return None
    # With three of three colours used, more classes may have been there to paint.
    several = task == "holistic" and len(names) == len(COLOURS) and template in SEVERAL
    numbered = task == "holistic" or len(proved) == 1
    return perception_ask(task, proved[0], modality, several=several, numbered=numbered, limit=limit)


def _transformation(
    row: Mapping[str, Any], params: Mapping[str, Any], entry: Mapping[str, Any], limit: int
) -> Ask | None:
    key, template = params["key"], row["prompt_template"]
    words = transformation_words(key, params, entry.get("pairing"))
    filled = all_words(row["modality"], row["anatomy"], words)
    if not places(template) <= filled.keys() or ask(template, filled) != row["prompt"]:
        return None
    return transformation_ask(key, row["modality"], row["anatomy"], words, limit=limit)


def _modification(
    row: Mapping[str, Any], params: Mapping[str, Any], entry: Mapping[str, Any], limit: int
) -> Ask | None:
    if not {"location", "size"} <= params.keys():
        return None
    known = {t["name"]: bool(t["plural"]) for t in entry.get("targets") or ()}
    names = row["target"].split(", ")
    # Where the data set does not say, one of both numbers is right; the stored prompt tells, or needs none.
    for plural in (False, True):
        targets = tuple(Target(name, "lesion", known.get(name, plural)) for name in names)
        words = change_words(
            spoken_targets(targets),
            anatomy=row["anatomy"],
            modality=row["modality"],
            location=params["location"],
            size=params["size"],
        )
        if say_change(row["prompt_template"], words) == row["prompt"]:
            return modification_ask(row["task"], targets, row["modality"], words, limit=limit)
    return None


def _entry(recipe: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    sources: Sequence[Any] = recipe.get("sources") or ()
    for item in sources:
        if isinstance(item, Mapping) and item.get("entry", {}).get("name") == source:
            return item["entry"]
    return {}
