"""Enough phrasings, each its own, each saying what its kind must say."""

import itertools
import re
from string import Formatter

import pytest

from mie.perspectives.modification import TASKS
from mie.perspectives.modification.phrasings import DESCRIPTIONS, PHRASINGS, ask, words
from mie.records import Target
from mie.vocabulary import MODALITIES

LESIONS = [
    (Target("malignant breast lesion", "lesion"),),
    (Target("hard exudates", "lesion", plural=True),),
    (Target("peritumoural oedema", "lesion"),),
    (Target("polyp", "lesion"), Target("cancer", "lesion")),
    (Target("caries", "lesion"),),
]


def spoken(targets):
    return words(targets, anatomy="colon", modality="endoscopy", location="at 2 o'clock", size="small")


def places(template):
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def test_every_kind_has_at_least_twelve_of_its_own():
    assert set(PHRASINGS) == set(DESCRIPTIONS) == set(TASKS)
    everything = list(itertools.chain(*PHRASINGS.values()))
    assert len(set(everything)) == len(everything)
    assert all(len(templates) >= 12 for templates in PHRASINGS.values())
    for a, b in itertools.combinations(everything, 2):  # no two that differ by a word only
        one, other = (set(re.findall(r"\w+", t.lower())) for t in (a, b))
        assert len(one & other) / len(one | other) < 0.85, (a, b)


@pytest.mark.parametrize("task", PHRASINGS)
def test_a_prompt_says_what_its_kind_needs(task):
    for template in PHRASINGS[task]:
        used = places(template)
        assert used & {"anatomy", "tissue"}
        if task == "removal":
            assert "lesion" in used
        if task == "addition":
            assert {"a_lesion", "location"} <= used
        if task == "simulation":
            assert "a_lesion" in used
        assert (task in ("inpainting", "simulation")) == bool(re.search("white|blanked", template))


@pytest.mark.parametrize("targets", LESIONS)
@pytest.mark.parametrize("task", PHRASINGS)
def test_sentences_are_whole(task, targets):
    for template in (*PHRASINGS[task], DESCRIPTIONS[task]):
        text = ask(template, spoken(targets))
        assert not re.search(r"[{}]|\s\s|the the| a [aeiou]| an [^aeiou]", text), text
        assert text[0].isupper()
        assert text.endswith((".", "?"))


@pytest.mark.parametrize("task", PHRASINGS)
def test_sentences_agree_with_an_anatomy_in_the_plural(task):
    caries = (Target("caries", "lesion", plural=True),)
    filling = words(caries, anatomy="teeth", modality="X-ray", location="on the left", size="small")
    for template in (*PHRASINGS[task], DESCRIPTIONS[task]):
        text = ask(template, filling)
        wrong = r"\bthis (healthy )?teeth|(?<!of the )teeth (is|looks)\b|teeth tissue|teeth, .* now shows"
        assert not re.search(wrong, text), text
        assert not re.search(r"stays|caries are|small caries|caries .* their", text), text
        # Nothing else is changed.
        singular = {"these": "this", "are": "is", "look": "looks", "show": "shows", "stay": "stays"}
        back = re.sub(r"stay as they are", "stays as it is", text).split()
        plain = template.format(**filling).split()
        assert [singular.get(word, word) for word in back] == [singular.get(word, word) for word in plain]


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (LESIONS[0], "a small malignant breast lesion"),
        (LESIONS[1], "small hard exudates"),
        (LESIONS[2], "a small area of peritumoural oedema"),
        (LESIONS[3], "a small polyp and a small area of cancer"),
        (LESIONS[4], "a small area of caries"),
    ],
)
def test_a_lesion_with_its_article(targets, said):
    found = spoken(targets)
    assert found["a_lesion"] == said
    assert found["is"] == ("is" if targets in (LESIONS[0], LESIONS[2], LESIONS[4]) else "are")


def test_tissue_is_called_as_clinicians_do():
    assert spoken(LESIONS[0])["tissue"] == "mucosa"
    found = words(LESIONS[0], anatomy="brain", modality="MRI", location="here", size="large")
    assert (found["tissue"], found["picture"]) == ("brain tissue", MODALITIES["MRI"])
