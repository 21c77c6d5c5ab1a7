"""The ways to ask for one thing: a recipe's own phrasings in every colour, some of them held out.

A model that has seen each thing asked for in few ways learns the sentences by heart. So a training row does
not keep its one stored prompt: it gets every way its recipe could have drawn. Some templates are never
trained on, always the same ones: samples that carry one of them show what an unseen wording costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.core.hashing import generator, stable_hash
from mie.perspectives.modification import phrasings as modification_phrasings
from mie.perspectives.modification.lesions import spoken_targets
from mie.perspectives.modification.phrasings import PHRASINGS as CHANGES
from mie.perspectives.modification.phrasings import ask as say_change
from mie.perspectives.modification.phrasings import words as change_words
from mie.perspectives.perception import phrasings
from mie.perspectives.perception.phrasings import PHRASINGS, SEVERAL
from mie.perspectives.transformation import phrasings as transform_phrasings
from mie.perspectives.transformation.phrasings import PHRASINGS as TRANSFORMS
from mie.perspectives.transformation.phrasings import all_words, ask, places
from mie.records import Target
from mie.training.pack import Ask, Wording
from mie.vocabulary import COLOURS, MODALITIES

_SHARE: Final = 6  # one template in so many is held out,
_LEAST: Final = 2  # but at least so many of each list
HELD_OUT_PROMPTS: Final = 6
# Their words depend on whether there is one of the thing or more.
_NUMBER: Final = {"is", "it"}
_LISTS: Final = {
    **phrasings.PHRASINGS,
    **transform_phrasings.PHRASINGS,
    **modification_phrasings.PHRASINGS,
}


@cache
def held_out_templates(kind: str) -> frozenset[str]:
    """The templates never trained on: of a task ("lesion", "removal") or a transformation's key ("ct_metal").

    Depends on the phrasings alone, so that any test sample can be told apart by its `prompt_template`.
    """
    # A template that two lists share would be trained on by the other; one that is only true when every class
    # is painted cannot stand for all holistic samples.
    shared = Counter(template for templates in _LISTS.values() for template in templates)
    templates = phrasings.SEVERAL if kind == "holistic" else _LISTS[kind]
    own = [template for template in templates if shared[template] == 1]
    count = max(_LEAST, round(len(_LISTS[kind]) / _SHARE))
    drawn = generator(stable_hash("held-out wordings", kind)).permutation(len(own))[:count]
    return frozenset(own[i] for i in drawn)


def perception_ask(
    task: str,
    targets: Sequence[Target],
    modality: str,
    *,
    several: bool = False,
    numbered: bool = True,
    limit: int = 24,
) -> Ask:
    """Every way to ask for these classes.

    `several`: the image may hold more classes than are painted. Not `numbered`: nobody knows whether the
    target is one or many, so no sentence that says "it" or "them".
    """
    names = ", ".join(target.name for target in targets)
    key = f"perception/{task}/{names}/{modality}" + ("/several" if several else "")
    templates = phrasings.SEVERAL if several else phrasings.PHRASINGS[task]
    if not numbered:
        templates = tuple(t for t in templates if not transform_phrasings.places(t) & _NUMBER)
    colours = list(permutations(COLOURS, len(targets)))

    def say(template: str, chosen: tuple[str, ...]) -> Wording:
        return Wording(overlay_prompt(task, template, targets, chosen, modality), template, chosen)

    return _ask(key, task, templates, colours, say, limit)


def overlay_prompt(
    task: str, template: str, targets: Sequence[Target], colours: Sequence[str], modality: str
) -> str:
    painted = list(zip(targets, colours, strict=True))
    if task == "holistic":
        return phrasings.ask_for_all(template, painted, modality)
    return phrasings.ask_for_one(template, *painted[0], modality)


def transformation_ask(
    key: str, modality: str, anatomy: str, words: Mapping[str, Any], *, limit: int = 24
) -> Ask:
    """Every way to ask for this transformation that `words` (`{"factor": "4"}`) can fill."""
    filled = transform_phrasings.all_words(modality, anatomy, words)
    said = "".join(f"/{name}={words[name]}" for name in sorted(words))
    fitting = [
        t for t in transform_phrasings.PHRASINGS[key] if transform_phrasings.places(t) <= filled.keys()
    ]

    def say(template: str, _: tuple[str, ...]) -> Wording:
        return Wording(transform_phrasings.ask(template, filled), template)

    return _ask(f"transformation/{key}/{modality}/{anatomy}{said}", key, fitting, [()], say, limit)


def modification_ask(
    task: str, targets: Sequence[Target], modality: str, words: Mapping[str, str], *, limit: int = 24
) -> Ask:
    """Every way to ask for this modification; `words` are those of `modification_phrasings.words`."""
    names = ", ".join(target.name for target in targets)
    said = "/".join(words[name] for name in ("anatomy", "location", "a_lesion"))

    def say(template: str, _: tuple[str, ...]) -> Wording:
        return Wording(modification_phrasings.ask(template, words), template)

    templates = modification_phrasings.PHRASINGS[task]
    return _ask(f"modification/{task}/{names}/{modality}/{said}", task, templates, [()], say, limit)


def stored_ask(prompt: str, template: str, colours: Sequence[str] = ()) -> Ask:
    """The one sentence that came with a sample nobody here can put into other words."""
    return Ask(f"stored/{prompt}", (Wording(prompt, template, tuple(colours)),))


def transformation_words(
    key: str, params: Mapping[str, Any], pairing: Mapping[str, Any] | None
) -> dict[str, str]:
    """The words that the recipe had for a stored sample, from what the sample recorded."""
    words = dict(zip(transform_phrasings.NAMED.get(key, ()), params.get("named", ()), strict=False))
    if "goal" in words and pairing is not None:
        words["source"] = pairing["image" if words["goal"] == pairing["pair"] else "pair"]
    if key == "ct_sparse_view" and "views" in params:
        words["views"] = str(params["views"])
    if key == "mri_undersampling" and "fraction" in params:
        words["factor"] = f"{1 / params['fraction']:.1f}".removesuffix(".0")
    return words


def _ask(
    key: str,
    kind: str,
    templates: Sequence[str],
    colours: Sequence[tuple[str, ...]],
    say: Callable[[str, tuple[str, ...]], Wording],
    limit: int,
) -> Ask:
    held = held_out_templates(kind)
    draw = generator(stable_hash("wordings", key))

    def some(pool: list[str], most: int) -> tuple[Wording, ...]:
        order, palette = draw.permutation(len(pool)), draw.permutation(len(colours))
        # Round the templates, and the colours along with them: none comes twice before all came once.
        ways = [
            (t, palette[(at + turn) % len(palette)])
            for turn in range(len(palette))
            for at, t in enumerate(order)
        ]
        return tuple(say(pool[t], colours[c]) for t, c in ways[:most])

    trained = some([t for t in templates if t not in held], limit)
    return Ask(key, trained, some([t for t in templates if t in held], HELD_OUT_PROMPTS))


# What a stored sample asks for: recovered from its dataset, and proved by saying its own prompt again.


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


# The prompts of a training, numbered, with the colours that each asks for.

MOST_CLASSES: Final = 8
NOTHING: Final = len(COLOURS)  # the "colour" of what is not painted


@dataclass(slots=True)
class Prompts:
    """Every distinct prompt once, and for each ask its wordings: a prompt and the colour of every class."""

    texts: list[str] = field(default_factory=list)
    place: dict[str, int] = field(default_factory=dict)
    wordings: list[list[tuple[int, NDArray[np.int64]]]] = field(default_factory=list)

    def add(self, ask: Ask) -> int:
        ways = []
        for wording in ask.wordings:
            colours = np.full(MOST_CLASSES + 1, NOTHING)
            for k, colour in enumerate(wording.colours, start=1):
                colours[k] = list(COLOURS).index(colour)
            ways.append((self._at(wording.prompt), colours))
        self.wordings.append(ways)
        return len(self.wordings) - 1

    def _at(self, text: str) -> int:
        if text not in self.place:
            self.place[text] = len(self.texts)
            self.texts.append(text)
        return self.place[text]
