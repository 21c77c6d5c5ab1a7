"""What a reply says. Nothing becomes an answer by accident, and nothing clear is lost."""

from __future__ import annotations

import pytest

from mie.questions.scoring import parse
from mie.questions.scoring.parse import closest_option, read_letter, read_number, read_numbers, read_text

OPTIONS = ["CT", "MRI", "PET", "SPECT", "Ultrasound"]


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(B)", "B"),
        ("**B.**", "B"),
        ("Ｂ", "B"),  # full width
        ("Option C", "C"),
        ("B. MRI", "B"),
        ("B: MRI", "B"),
        ("MRI", "B"),
        ("mri.", "B"),
        ("The answer is B.", "B"),
        ("The answer is: MRI", "B"),
        ("**Answer:** E", "E"),
        ("The correct option is C", "C"),
        ("The answer is (B) because A is wrong", "B"),
        ("B.\n\nExplanation: the image is T1-weighted.", "B"),
        ("The bone is bright.\nSo it is computed tomography.\n\nA", "A"),
        ("<think>A? No, C.</think>B", "B"),
        ('Steps ...\nFinal Answer: "\\boxed{D}"', "D"),
        ("\\boxed{\\text{B. MRI}}", "B"),
        ("First \\boxed{B}, so \\boxed{B}", "B"),
    ],
)
def test_a_clear_reply_is_read(reply, letter):
    said = read_letter(reply, OPTIONS)
    assert said.reason == ""
    assert "ABCDE"[said.value] == letter


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", parse.EMPTY),
        (" \n ", parse.EMPTY),
        ("<think>it is B", parse.UNCLEAR),
        ("I'm sorry, but I can't interpret medical images.", parse.REFUSED),
        ("As an AI I do not diagnose. Please consult a radiologist.", parse.REFUSED),
        ("B or C", parse.SEVERAL),
        ("A and B", parse.SEVERAL),
        ("Answer: B or C", parse.SEVERAL),
        ("The answer is B. On second thought, the answer is C.", parse.SEVERAL),
        ("\\boxed{B} no, \\boxed{C}", parse.SEVERAL),
        ("A. CT\nB. MRI\nC. PET", parse.SEVERAL),
        ("It is either A or B", parse.SEVERAL),
        ("B. CT", parse.CONTRADICTION),
        ("F", parse.UNKNOWN_LETTER),
        ("The answer is Z.", parse.UNKNOWN_LETTER),
        ("答案是B", parse.LANGUAGE),
        ("Правильный ответ Б", parse.LANGUAGE),
        ("Die richtige Antwort ist B", parse.LANGUAGE),
        ("La respuesta correcta es B", parse.LANGUAGE),
        ("La bonne réponse est B", parse.LANGUAGE),
        ("The answer is a tumour", parse.PROSE),
        ("A lesion is visible in the left lobe.", parse.PROSE),
        ("This looks like an MRI scan, so probably magnetic resonance.", parse.PROSE),
        ("The answer is not B", parse.PROSE),
    ],
)
def test_a_reply_that_leaves_a_doubt_has_a_reason_and_no_answer(reply, reason):
    said = read_letter(reply, OPTIONS)
    assert said.value is None
    assert said.reason == reason


def test_the_released_way_always_takes_an_option():
    assert closest_option("", OPTIONS) == 0  # an error is right whenever the key is A
    assert closest_option("I'm sorry, I cannot answer", OPTIONS) in range(5)
    assert closest_option("It must be an ultrasound image", OPTIONS) == 4
    assert closest_option("B or C", OPTIONS) == 1
    assert closest_option("so \\boxed{C}", OPTIONS) == 2


@pytest.mark.parametrize(
    ("reply", "value", "reason"),
    [
        ("12 mm", 12.0, ""),
        ("about 12.5 millimetres", 12.5, ""),
        ("1.2 cm", 12.0, ""),
        ("1,200", 1200.0, ""),
        ("−3", -3.0, ""),
        ("It has 3 parts. Final answer: 2", 2.0, ""),
        ("\\boxed{12\\,mm}", 12.0, ""),
        ("10 to 12 mm", None, parse.SEVERAL),
        ("12 kg", None, parse.UNIT),
        ("40 %", None, parse.UNIT),
        ("twelve", None, parse.PROSE),
        ("I am unable to measure this", None, parse.REFUSED),
        ("", None, parse.EMPTY),
    ],
)
def test_a_number_is_read_in_its_unit(reply, value, reason):
    said = read_number(reply, "mm")
    assert (said.value, said.reason) == (value, reason)


def test_places_are_exactly_so_many_numbers():
    assert read_numbers("(0.25, 0.5)", 2).value == (0.25, 0.5)
    assert read_numbers("Final answer: [0.1,0.2,0.3,0.4]", 4).value == (0.1, 0.2, 0.3, 0.4)
    assert read_numbers("(0.25, 0.5) or (0.3, 0.5)", 2).reason == parse.SEVERAL
    assert read_numbers("in the middle", 2).reason == parse.PROSE


def test_open_answers_are_what_follows_the_reasoning():
    assert read_text("It enhances.\nFinal Answer: **glioma**").value == "glioma"
    assert read_text("glioma").value == "glioma"
    assert read_text("I'm sorry, I can't help").reason == parse.REFUSED
    assert read_text("").reason == parse.EMPTY
