"""What the network is asked, and which side is painted."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from mie.editors.compact.understanding import (
    Seen,
    chosen_kind,
    is_own_wording,
    kinds,
    of_kind,
    on_side,
    question,
)
from mie.networks.shipped import shipped_targets
from mie.perspectives.perception import phrasings
from mie.records import Target
from mie.words import parse, vocabulary


@pytest.mark.parametrize(
    ("instruction", "asked"),
    [
        ("Where is the tumour?", "Highlight the tumour in red."),
        ("mark the mole in green", "Highlight the skin lesion in green."),
        ("left lung in blue", "Highlight the lungs in blue."),
        ("Markiere die Leber rot und die Milz blau", "Paint the liver in red and the spleen in blue."),
        ("liver and spleen in red", "Paint the liver in red and the spleen in green."),
        ("Elimina el pólipo", "Take out the polyp and restore healthy tissue."),
    ],
)
def test_the_network_is_asked_in_its_own_words(instruction: str, asked: str) -> None:
    assert question(instruction).text == asked


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ("Highlight the patella", "I do not know the word 'patella'; known for X-ray: lungs, heart"),
        ("colour the lungs yellow", "yellow is not available; the colours are red, green, blue"),
        ("Is this malignant?", "an opinion, a diagnosis or a text"),
        ("mark the lungs, but not the lungs", "contradiction"),
        ("mark the lungs " + 2000 * "x", "too long: 2,015 characters, at most 1,000"),
        ("mark the left mandible", "not one of a pair"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(instruction: str, reason: str) -> None:
    asked = question(instruction, "X-ray")
    assert asked.text is None
    assert reason in str(asked.refusal)


def test_two_targets_of_one_colour_are_told_apart_by_the_network_alone() -> None:
    asked = question("liver and spleen in red", "CT")
    assert [(part.channel, part.colour) for part in asked.parts] == [(0, "red"), (1, "red")]


def test_ct_noise_of_no_named_kernel_is_taken_for_a_soft_one() -> None:
    for asked in (
        question("Denoise this CT."),
        question("Please reduce the noise.", "CT"),
        question("Bild entrauschen", "CT"),
    ):
        assert asked.text == "Denoise this low-dose CT, soft kernel."
        assert asked.asks_for("low_dose_ct_soft")
        assert asked.parse.note is not None
        assert asked.parse.note.endswith("taken for a soft kernel, which changes less")
    assert question("Denoise this CT, sharp kernel.").asks_for("low_dose_ct_sharp")
    for other in (
        question("Reduce the noise."),
        question("Despeckle this.", "CT"),
        question("Denoise.", "MRI"),
    ):
        assert not other.asks_for("low_dose_ct_soft")


def test_our_own_wordings_pass_letter_by_letter() -> None:
    for kind, name in (("structure", "lungs"), ("lesion", "brain tumour")):
        for template in phrasings.PHRASINGS[kind]:
            text = phrasings.ask_for_one(template, Target(name, "anatomy", name == "lungs"), "blue", "CT")
            assert question(text).text == text
            assert question(text).parts == ()
    assert not is_own_wording("Highlight the left lung in red.", parse("Highlight the left lung in red."))


def test_own_weights_may_know_what_the_vocabulary_lacks() -> None:
    text = "Highlight the rotator cuff in red."
    assert question(text).text is None
    assert question(text, trusted=True).text == text
    assert question("mark the rotator cuff", trusted=True).text is None


TEETH = ("molars", "premolars", "wisdom teeth", "teeth", "caries")  # "teeth" and "caries" everybody knows


@pytest.mark.parametrize("modality", [None, "X-ray"])
@pytest.mark.parametrize(
    ("instruction", "asked", "targets"),
    [
        ("Highlight the molars in red.", "Highlight the molars in red.", {"molars": "red"}),
        ("Thanks! Where are the WISDOM TEETH?", "Highlight the wisdom teeth in red.", {"wisdom teeth": None}),
        (
            "For the teaching file: tint the premolars blue and the molars green.",
            "Paint the premolars in blue and the molars in green.",
            {"premolars": "blue", "molars": "green"},
        ),
        (
            "Highlight the molars and the liver.",
            "Paint the molars in red and the liver in green.",
            {"molars": None, "liver": None},
        ),
        (
            "Mark the caries and the molars.",
            "Paint the caries in red and the molars in green.",
            {"caries": None, "molars": None},
        ),
    ],
)
def test_what_own_weights_were_taught_is_understood_in_any_wording(
    instruction: str, asked: str, targets: dict[str, str | None], modality: str | None
) -> None:
    assert question(instruction, modality, trusted=False).text is None
    found = question(instruction, modality, trusted=True, taught=TEETH)
    assert found.text == asked
    assert {target.name: target.colour for target in found.parse.targets} == targets
    assert not found.parse.unknown
    assert kinds(found, TEETH) is None


@pytest.mark.parametrize(
    "instruction",
    [
        "Do not paint the molars.",
        "Paint all teeth except the molars.",
        "Highlight the left molars in red.",
        "Highlight the patella and the molars.",
        "Remove the molars.",
        "Highlight the molar pregnancy.",
    ],
)
def test_more_than_the_name_is_not_guessed(instruction: str) -> None:
    found = question(instruction, "X-ray", trusted=True, taught=TEETH)
    assert found.text is None
    assert found.refusal


def test_a_side_is_the_patients() -> None:
    image = np.zeros((100, 120, 3), np.uint8)
    cv2.ellipse(image, (60, 50), (55, 45), 0, 0, 360, (120, 120, 120), -1)
    lungs = np.zeros((100, 120), np.bool_)
    lungs[30:70, 20:50] = lungs[30:70, 70:100] = True
    left, right = on_side(lungs, image, "left"), on_side(lungs, image, "right")
    assert not left[:, :60].any()
    assert not right[:, 60:].any()
    assert np.array_equal(left | right, lungs)
    crossing = np.zeros_like(lungs)
    crossing[40:60, 40:80] = True
    assert on_side(crossing, image, "left").sum() + on_side(crossing, image, "right").sum() == crossing.sum()
    assert on_side(crossing, image, "left").any()


def test_one_of_a_pair_is_a_side_of_it() -> None:
    asked = question("Highlight the left kidney in green.", "MRI")
    assert asked.text == "Highlight the kidneys in green."
    assert [(part.side, part.colour) for part in asked.parts] == [("left", "green")]


def test_what_the_shipped_editor_was_trained_on_is_in_the_vocabulary() -> None:
    known = vocabulary()
    for modality, names in shipped_targets().items():
        assert set(names) <= set(known.known(modality)), modality
    trained = {name for names in shipped_targets().values() for name in names}
    assert question("mark the liver").meta("mark the liver", trained)["trained"] == {"liver": True}
    asked = question("mark the spinal cord", "CT")
    assert asked.meta("mark the spinal cord", trained)["trained"] == {"spinal cord": False}
    assert "not in this editor's training" in asked.remarks(trained)[0]
    assert asked.remarks(()) == []  # weights that do not say


def test_a_general_word_is_the_kind_that_is_seen_best() -> None:
    asked = question("Where is the tumour on the left?", "CT")
    names = kinds(asked, shipped_targets()["CT"])
    assert names == ["bone metastases", "kidney tumour", "liver tumours", "lung tumour"]
    choices = [of_kind(asked, name, "CT") for name in ("kidney tumour", "lung tumour")]
    assert [c.text for c in choices] == [
        "Highlight the kidney tumour in red.",
        "Highlight the lung tumour in red.",
    ]
    assert choices[0].parts[0].side == "left"
    chosen = chosen_kind(asked, choices, [Seen(0.7, 0.3), Seen(0.75, 0.6)], 0.5)
    assert chosen.text == choices[1].text
    assert chosen.parse.note == (
        "'tumour' was looked for as lung tumour (presence 0.75); seen about as well: kidney tumour. "
        "Which it is, this editor cannot tell"
    )
    # The surer one does not count where it is not there.
    assert chosen_kind(asked, choices, [Seen(0.6, 0.1), Seen(0.4, 0.3)], 0.5).text == choices[0].text
    absent = chosen_kind(asked, choices, [Seen(0.1, 0.1), Seen(0.4, 0.3)], 0.5)
    assert (absent.text, absent.refusal) == (
        None,
        "no tumour was found in this image; presence: kidney tumour 0.10, lung tumour 0.40",
    )
    assert "no kind of tumour" in str(chosen_kind(asked, [], [], 0.5).refusal)
    assert kinds(question("mark the liver", "CT"), ["liver"]) is None
    assert kinds(question("remove the tumour", "CT"), ["kidney tumour"]) is None
