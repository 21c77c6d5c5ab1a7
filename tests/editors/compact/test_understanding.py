"""What the network is asked, and which side is painted."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from mie.editors.compact.understanding import is_own_wording, on_side, question
from mie.perspectives.perception import phrasings
from mie.records import Target
from mie.words import parse


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


def test_our_own_wordings_pass_letter_by_letter() -> None:
    for kind, name in (("structure", "lungs"), ("lesion", "brain tumour")):
        for template in phrasings.PHRASINGS[kind]:
            text = phrasings.ask_for_one(template, Target(name, "anatomy", name == "lungs"), "blue", "CT")
            assert question(text).text == text
            assert question(text).parts == ()
    assert not is_own_wording("Highlight the left lung in red.", parse("Highlight the left lung in red."))


def test_own_weights_may_know_what_the_vocabulary_lacks() -> None:
    text = "Highlight the thyroid nodule in red."
    assert question(text).text is None
    assert question(text, trusted=True).text == text
    assert question("mark the thyroid nodule", trusted=True).text is None


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
