"""The wordings of an instruction: a recipe's own phrasings in every colour, some of them held out.

A model that has seen each thing asked for in few ways learns the sentences by heart. So a training row does
not keep its one stored prompt: it gets every wording that its recipe could have drawn. Some templates are
never trained on, always the same ones: samples that carry one of them show what an unseen wording costs.
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

from mie.core.documents import source_entries
from mie.core.hashing import generator, stable_hash
from mie.datasets.wide import Wide, drawn, targets_of
from mie.perspectives.modification import phrasings as modification_phrasings
from mie.perspectives.modification.lesions import spoken_targets
from mie.perspectives.perception import phrasings as perception_phrasings
from mie.perspectives.transformation import phrasings as transformation_phrasings
from mie.records import Target
from mie.training.pack import Instruction, Row, Wording
from mie.vocabulary import COLOURS, MODALITIES
from mie.words import vocabulary

WIDE: Final = "wide/"  # before the key of an instruction in wide wordings
HELD_OUT_PROMPTS: Final = 6
MOST_CLASSES: Final = 8
NOTHING: Final = len(COLOURS)  # the "colour" of what is not painted
_SHARE: Final = 6  # one template in so many is held out,
_LEAST: Final = 2  # but at least so many of each list
# Their words depend on whether there is one of the thing or more.
_NUMBER: Final = {"is", "it"}
_TEMPLATES: Final = {
    **perception_phrasings.PHRASINGS,
    **transformation_phrasings.PHRASINGS,
    **modification_phrasings.PHRASINGS,
}


def is_own_template(template: str) -> bool:
    """Whether a recipe has this template as it is, without a frame of wide wordings."""
    return any(template in templates for templates in _TEMPLATES.values())


@cache
def held_out_templates(kind: str) -> frozenset[str]:
    """Return the templates never trained on, of a task ("lesion") or a transformation's key ("ct_metal").

    Depends on the phrasings alone, so that any test sample can be told apart by its `prompt_template`.
    """
    # A template that two lists share would be trained on by the other; one that is only true when every class
    # is painted cannot stand for all holistic samples.
    shared = Counter(template for templates in _TEMPLATES.values() for template in templates)
    templates = perception_phrasings.SEVERAL if kind == "holistic" else _TEMPLATES[kind]
    own = [template for template in templates if shared[template] == 1]
    count = max(_LEAST, round(len(_TEMPLATES[kind]) / _SHARE))
    drawn = generator(stable_hash("held-out wordings", kind)).permutation(len(own))[:count]
    return frozenset(own[i] for i in drawn)


def perception_instruction(
    task: str,
    targets: Sequence[Target],
    modality: str,
    *,
    several: bool = False,
    numbered: bool = True,
    limit: int = 24,
) -> Instruction:
    """Return every wording that asks for these classes.

    `several`: the image may hold more classes than are painted. Not `numbered`: it is unknown whether the
    target is one or many, so no sentence says "it" or "them".
    """
    names = ", ".join(target.name for target in targets)
    key = f"perception/{task}/{names}/{modality}" + ("/several" if several else "")
    templates = perception_phrasings.SEVERAL if several else perception_phrasings.PHRASINGS[task]
    if not numbered:
        templates = tuple(t for t in templates if not transformation_phrasings.places(t) & _NUMBER)
    colours = list(permutations(COLOURS, len(targets)))

    def phrase(template: str, chosen: tuple[str, ...]) -> Wording:
        return Wording(overlay_prompt(task, template, targets, chosen, modality), template, chosen)

    return _instruction(key, task, templates, colours, phrase, limit)


def overlay_prompt(
    task: str, template: str, targets: Sequence[Target], colours: Sequence[str], modality: str
) -> str:
    painted = list(zip(targets, colours, strict=True))
    if task == "holistic":
        return perception_phrasings.ask_for_all(template, painted, modality)
    return perception_phrasings.ask_for_one(template, *painted[0], modality)


def transformation_instruction(
    key: str, modality: str, anatomy: str, words: Mapping[str, Any], *, limit: int = 24
) -> Instruction:
    """Return every wording of this transformation that `words` (`{"factor": "4"}`) can fill."""
    filled = transformation_phrasings.all_words(modality, anatomy, words)
    details = "".join(f"/{name}={words[name]}" for name in sorted(words))
    fitting = [
        template
        for template in transformation_phrasings.PHRASINGS[key]
        if transformation_phrasings.places(template) <= filled.keys()
    ]

    def phrase(template: str, _: tuple[str, ...]) -> Wording:
        return Wording(transformation_phrasings.ask(template, filled), template)

    name = f"transformation/{key}/{modality}/{anatomy}{details}"
    return _instruction(name, key, fitting, [()], phrase, limit)


def modification_instruction(
    task: str, targets: Sequence[Target], modality: str, words: Mapping[str, str], *, limit: int = 24
) -> Instruction:
    """Return every wording of this modification; `words` are those of its phrasings' `words`."""
    names = ", ".join(target.name for target in targets)
    details = "/".join(words[name] for name in ("anatomy", "location", "a_lesion"))

    def phrase(template: str, _: tuple[str, ...]) -> Wording:
        return Wording(modification_phrasings.ask(template, words), template)

    templates = modification_phrasings.PHRASINGS[task]
    name = f"modification/{task}/{names}/{modality}/{details}"
    return _instruction(name, task, templates, [()], phrase, limit)


def painted_instruction(row: Row) -> Instruction:
    """Return the wordings that ask for the lesion which was painted into the image of this removal."""
    known = vocabulary().targets.get(row.target)
    target = Target(row.target, "lesion", known is not None and known.plural)
    return perception_instruction("lesion", [target], row.modality, numbered=known is not None)


def widened_instruction(known: Instruction, names: Sequence[str], modality: str) -> Instruction:
    """Return the wordings with synonyms for `names` and a frame; synonyms of the test split are left out."""
    draw = generator(stable_hash("wide wordings of", known.key))
    wordings = []
    for wording in known.wordings:
        chosen = drawn(wording.prompt, names, modality, "train", draw)
        template = chosen.frame.replace("{}", wording.template)
        wordings.append(Wording(chosen.of(wording.prompt), template, wording.colours))
    return Instruction(f"{WIDE}{known.key}", tuple(wordings), known.held_out)


def stored_instruction(prompt: str, template: str, colours: Sequence[str] = ()) -> Instruction:
    """Return the one sentence of a sample that cannot be put into other words."""
    return Instruction(f"stored/{prompt}", (Wording(prompt, template, tuple(colours)),))


def _instruction(
    key: str,
    kind: str,
    templates: Sequence[str],
    colours: Sequence[tuple[str, ...]],
    phrase: Callable[[str, tuple[str, ...]], Wording],
    limit: int,
) -> Instruction:
    held_out = held_out_templates(kind)
    draw = generator(stable_hash("wordings", key))

    def some(pool: list[str], most: int) -> tuple[Wording, ...]:
        order, palette = draw.permutation(len(pool)), draw.permutation(len(colours))
        # Cycle through the templates, and the colours along with them: none comes twice before all came once.
        pairs = [
            (t, palette[(at + turn) % len(palette)])
            for turn in range(len(palette))
            for at, t in enumerate(order)
        ]
        return tuple(phrase(pool[t], colours[c]) for t, c in pairs[:most])

    trained = some([t for t in templates if t not in held_out], limit)
    return Instruction(key, trained, some([t for t in templates if t in held_out], HELD_OUT_PROMPTS))


def recover_instruction(
    row: Mapping[str, Any], params: Mapping[str, Any], recipe: Mapping[str, Any], limit: int
) -> Instruction:
    """Recover what a stored sample asks for, in every wording.

    The proof is that its own prompt comes out again; where it does not, the stored prompt is the only
    wording. `recipe` is what `dataset.json` says was built; an imported dataset's says nothing of targets and
    pairs.
    """
    wide = params.get("wide")
    if wide is not None:
        return _recover_wide(row, params, recipe, limit, Wide(wide["frame"], dict(wide["spoken"])))
    entry = source_entries(recipe).get(row["source"], {})
    colours = tuple(row["colour"].split(",")) if row["colour"] else ()
    instruction = None
    recover = _RECOVER.get(row["perspective"])
    if recover is not None and row["modality"] in MODALITIES:
        instruction = recover(row, params, entry, colours, limit)
    return instruction or stored_instruction(row["prompt"], row["prompt_template"], colours)


def _recover_wide(
    row: Mapping[str, Any], params: Mapping[str, Any], recipe: Mapping[str, Any], limit: int, wide: Wide
) -> Instruction:
    """Recover the plain sentence's wordings, each with synonyms and a frame; those of test are left out."""
    before, after = wide.frame.split("{}")
    plain = {
        **row,
        "prompt": wide.plain(row["prompt"]),
        "prompt_template": row["prompt_template"].removeprefix(before).removesuffix(after),
    }
    rest = {key: value for key, value in params.items() if key != "wide"}
    if "named" in rest:
        rest["named"] = [Wide("{}", wide.spoken).plain(str(word)) for word in rest["named"]]
    known = recover_instruction(plain, rest, recipe, limit)
    return widened_instruction(known, targets_of(row["target"], rest), row["modality"])


def _recover_perception(
    row: Mapping[str, Any],
    params: Mapping[str, Any],
    entry: Mapping[str, Any],
    colours: tuple[str, ...],
    limit: int,
) -> Instruction | None:
    task, template, modality = row["task"], row["prompt_template"], row["modality"]
    names = [c["target"] for c in params.get("classes", ())]
    if template not in perception_phrasings.PHRASINGS.get(task, ()):
        return None
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
    several = task == "holistic" and len(names) == len(COLOURS) and template in perception_phrasings.SEVERAL
    numbered = task == "holistic" or len(proved) == 1
    return perception_instruction(task, proved[0], modality, several=several, numbered=numbered, limit=limit)


def _recover_transformation(
    row: Mapping[str, Any],
    params: Mapping[str, Any],
    entry: Mapping[str, Any],
    _colours: tuple[str, ...],
    limit: int,
) -> Instruction | None:
    key, template = params.get("key", ""), row["prompt_template"]
    if template not in transformation_phrasings.PHRASINGS.get(key, ()):
        return None
    words = transformation_words(key, params, entry.get("pairing"))
    filled = transformation_phrasings.all_words(row["modality"], row["anatomy"], words)
    if not transformation_phrasings.places(template) <= filled.keys():
        return None
    if transformation_phrasings.ask(template, filled) != row["prompt"]:
        return None
    return transformation_instruction(key, row["modality"], row["anatomy"], words, limit=limit)


def transformation_words(
    key: str, params: Mapping[str, Any], pairing: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return the words that the recipe had for a stored sample, from what the sample recorded."""
    words = dict(zip(transformation_phrasings.NAMED.get(key, ()), params.get("named", ()), strict=False))
    if "goal" in words and pairing is not None:
        words["source"] = pairing["image" if words["goal"] == pairing["pair"] else "pair"]
    if key == "ct_sparse_view" and "views" in params:
        words["views"] = str(params["views"])
    if key == "mri_undersampling" and "fraction" in params:
        words["factor"] = f"{1 / params['fraction']:.1f}".removesuffix(".0")
    return words


def _recover_modification(
    row: Mapping[str, Any],
    params: Mapping[str, Any],
    entry: Mapping[str, Any],
    _colours: tuple[str, ...],
    limit: int,
) -> Instruction | None:
    if row["prompt_template"] not in modification_phrasings.PHRASINGS.get(row["task"], ()):
        return None
    if not {"location", "size"} <= params.keys():
        return None
    known = {t["name"]: bool(t["plural"]) for t in entry.get("targets") or ()}
    names = row["target"].split(", ")
    # Where the data set does not say, one of both numbers is right; the stored prompt tells, or needs none.
    for plural in (False, True):
        targets = tuple(Target(name, "lesion", known.get(name, plural)) for name in names)
        words = modification_phrasings.words(
            spoken_targets(targets),
            anatomy=row["anatomy"],
            modality=row["modality"],
            location=params["location"],
            size=params["size"],
        )
        if modification_phrasings.ask(row["prompt_template"], words) == row["prompt"]:
            return modification_instruction(row["task"], targets, row["modality"], words, limit=limit)
    return None


# By perspective: row, params, entry of the recipe, colours and limit to the instruction, None if unproved.
_RECOVER: Final[Mapping[str, Callable[..., Instruction | None]]] = {
    "perception": _recover_perception,
    "transformation": _recover_transformation,
    "modification": _recover_modification,
}


@dataclass(slots=True)
class PromptTable:
    """Every distinct prompt once, and the wordings of each instruction: a prompt and a colour per class."""

    texts: list[str] = field(default_factory=list)
    wordings: list[list[tuple[int, NDArray[np.int64]]]] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)

    def add(self, instruction: Instruction) -> int:
        wordings = []
        for wording in instruction.wordings:
            colours = np.full(MOST_CLASSES + 1, NOTHING)
            for k, colour in enumerate(wording.colours, start=1):
                colours[k] = list(COLOURS).index(colour)
            wordings.append((self._place(wording.prompt), colours))
        self.wordings.append(wordings)
        return len(self.wordings) - 1

    def _place(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]
