"""Every wording of our own recipes parses back to what it was made from."""

from __future__ import annotations

import itertools

import pytest

from mie.images.windows import WINDOWS
from mie.perspectives.modification import phrasings as modification
from mie.perspectives.perception import phrasings as perception
from mie.perspectives.transformation import phrasings as transformation
from mie.perspectives.transformation.targets import TARGETS
from mie.records import Target
from mie.sources.catalog import catalog
from mie.vocabulary import COLOURS
from mie.words import parse

ASKED = sorted(
    {
        (t.name, t.kind, t.plural, entry.modality, entry.anatomy)
        for entry in catalog().values()
        for t in entry.targets
    }
)
LOCATIONS = (
    "in the upper left quadrant of the image",
    "in the middle of the lower half of the image",
    "in the centre of the image",
    "in the anterior left part of the brain",
    "at 2 o'clock near the edge of the view",
    *(
        f"at {count} places (the largest in the lower right quadrant of the image)"
        for count in ("three", "four", "five", "six", "seven", "eight", "nine", "ten", "many")
    ),
)
SIZES = ("tiny", "small", "medium-sized", "large")


def test_every_overlay_wording_of_every_target() -> None:
    """The colours take turns: each target has each wording, and each wording each colour."""
    wrong = []
    for at, (name, kind, plural, modality) in enumerate(sorted({row[:4] for row in ASKED})):
        task = "lesion" if kind == "lesion" else "structure"
        for number, template in enumerate(perception.PHRASINGS[task]):
            colour = tuple(COLOURS)[(at + number) % len(COLOURS)]
            prompt = perception.ask_for_one(template, Target(name, kind, plural), colour, modality)
            for given in (modality, None):
                result = parse(prompt, given)
                got = [(t.name, t.colour) for t in result.targets]
                if result.operation != "perception" or got != [(name, colour)] or result.unknown:
                    wrong.append((prompt, given, result))
    assert not wrong, wrong[:3]


def test_every_wording_for_several_targets() -> None:
    wrong = []
    for entry in catalog().values():
        targets = [t.target for t in entry.targets]
        for count in (2, 3):
            if len(targets) < count:
                continue
            for at, template in enumerate(perception.HOLISTIC):
                start = at % (len(targets) - count + 1)
                painted = list(zip(targets[start : start + count], COLOURS, strict=False))
                prompt = perception.ask_for_all(template, painted, entry.modality)
                result = parse(prompt, entry.modality)
                got = [(t.name, t.colour) for t in result.targets]
                if (
                    result.operation != "perception"
                    or got != [(t.name, c) for t, c in painted]
                    or result.unknown
                ):
                    wrong.append((prompt, result))
    assert not wrong, wrong[:3]


@pytest.mark.parametrize("task", sorted(modification.PHRASINGS))
def test_every_wording_of_a_modification(task: str) -> None:
    wrong = []
    lesions = [row for row in ASKED if row[1] == "lesion"]
    for at, (name, kind, plural, modality, anatomy) in enumerate(lesions):
        for number, template in enumerate(modification.PHRASINGS[task]):
            words = modification.words(
                [Target(name, kind, plural)],
                anatomy=anatomy,
                modality=modality,
                location=LOCATIONS[(at + number) % len(LOCATIONS)],
                size=SIZES[(at + number) % len(SIZES)],
            )
            prompt = modification.ask(template, words)
            for given in (modality, None):
                result = parse(prompt, given)
                names = [] if task == "inpainting" else [name]
                got = [t.name for t in result.targets]
                if (result.operation, result.task) != (task, task) or got != names or result.unknown:
                    wrong.append((prompt, given, result))
    assert not wrong, wrong[:3]


GOALS = {
    "ct_mri": [("CT", "MRI"), ("MRI", "CT")],
    "mri_pet": [("MRI", "PET")],
    "ct_phase": [("arterial phase", "portal venous phase"), ("non-contrast phase", "arterial phase")],
    "mri_sequence": [
        (a, b)
        for a, b in itertools.permutations(
            ("T1-weighted MRI", "T2-weighted MRI", "FLAIR MRI", "contrast-enhanced T1-weighted MRI"), 2
        )
    ],
}


def _fillings(key: str) -> list[dict[str, str]]:
    if key in GOALS:
        return [{"source": a, "goal": b} for a, b in GOALS[key]]
    if key == "ct_window":
        return [
            {"window": w.name, "level": f"{w.level:g}", "width": f"{w.width:g}"} for w in WINDOWS.values()
        ]
    if key == "dermoscopy_artifacts":
        names = ("hair", "ruler marks", "gel bubbles", "hair and gel bubbles", "ruler marks, ink or bubbles")
        return [{"artifacts": name} for name in names]
    if key == "super_resolution":
        return [{"factor": "2"}, {"factor": "4"}]
    if key == "mri_undersampling":
        return [{"factor": "2.2"}, {"factor": "4"}]
    return [{"views": "62"}] if key == "ct_sparse_view" else [{}]


@pytest.mark.parametrize("key", sorted(TARGETS))
def test_every_wording_of_a_transformation(key: str) -> None:
    wrong = []
    target = TARGETS[key]
    for filling, template in itertools.product(_fillings(key), transformation.PHRASINGS[key]):
        anatomy = {"dermoscopy": "skin", "OCT": "retina"}.get(target.modalities[0], "brain")
        words = transformation.all_words(target.modalities[0], anatomy, filling)
        prompt = transformation.ask(template, words)
        used = transformation.places(template)
        for given in (None, *target.modalities[:1]):
            result = parse(prompt, given)
            got = (result.operation, result.task, [t.name for t in result.targets])
            lost = [
                n for n in filling if n in used and n != "source" and result.attributes.get(n) != filling[n]
            ]
            if given is None and key == "ultrasound_speckle" and result.note and "may mean" in result.note:
                continue  # speckle alone is ultrasound's or OCT's: it is asked back
            if got != ("transformation", target.task, [target.name]) or lost:
                wrong.append((prompt, given, result))
    assert not wrong, wrong[:3]
