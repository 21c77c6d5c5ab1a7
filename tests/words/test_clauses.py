"""Clauses and their moods: only a request asks for anything."""

from __future__ import annotations

import pytest

from mie.words import named_modality, parse
from mie.words.clauses import clauses
from mie.words.scan import clean, scan


@pytest.mark.parametrize(
    ("text", "moods"),
    [
        ("Mark the liver in red, the spleen and the kidneys", ["request"]),
        ("The tumour was removed last year. Mark the liver.", ["report", "request"]),
        ("Is it benign? Circle the polyp.", ["question", "request"]),
        ("Mark the polyp before we remove it", ["request", "aside"]),
        ("Mark the polyp that we are going to remove", ["request", "aside"]),
        ("Soll der Tumor entfernt werden?", ["question"]),
        ("La tumeur a été retirée ; entourez l'œdème", ["report", "request"]),
        ("Antes de extirpar el tumor, marca el hígado", ["aside", "request"]),
        ("肿瘤切除后，请标出水肿", ["aside", "request"]),
    ],
)
def test_the_moods_of_a_text(text: str, moods: list[str]) -> None:
    assert [clause.mood for clause in clauses(scan(clean(text)))] == moods


@pytest.mark.parametrize(
    "words", ["remove", "please remove", "could you please get rid of", "I want you to erase"]
)
def test_a_verb_that_heads_its_clause_asks(words: str) -> None:
    assert parse(f"{words} the polyp", "endoscopy").operation == "removal"


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("Show these teeth with small caries at the lower left.", "addition"),
        ("Draw small caries exactly where the teeth are white.", "simulation"),
        ("Show these teeth with the caries in red.", "perception"),
    ],
)
def test_what_is_said_of_an_anatomy_in_the_plural(text: str, operation: str) -> None:
    assert parse(text, "X-ray").operation == operation


@pytest.mark.parametrize(
    "text",
    [
        "the surgeon will remove the polyp",
        "we decided to remove the polyp",
        "explain how to remove the polyp",
        "undo the removal of the polyp",
        "can the polyp be removed?",
        "the polyp must not be removed",
        "delete this patient's images",
        "Le polype doit-il être retiré ?",
        "¿Hay que quitar el pólipo?",
        "要不要切除息肉？",
    ],
)
def test_another_verb_does_not(text: str) -> None:
    assert parse(text, "endoscopy").operation == "none"


@pytest.mark.parametrize(
    ("text", "modality", "note"),
    [
        ("Where is the tumour?", "endoscopy", "'tumour' was taken for 'cancer'"),
        ("mark the mass in the upper pole of the left kidney", "CT", "'mass' was taken for 'kidney tumour'"),
        ("trace the vessels", "fundus", "'vessels' was taken for 'retinal vessels'"),
        ("mark the retinal vessels", "fundus", None),
        ("mark the kidney", "CT", None),
    ],
)
def test_a_general_word_is_said_what_it_was_taken_for(text: str, modality: str, note: str | None) -> None:
    assert parse(text, modality).note == note


@pytest.mark.parametrize(
    ("instruction", "modality"),
    [
        ("Remove the polyp from this endoscopic image of the colon.", "endoscopy"),
        ("Fill the white area of this CT slice of the brain with healthy brain tissue.", "CT"),
        ("Fill the white area with healthy tissue.", None),
        ("Convert this CT slice to an MRI slice.", None),  # two
        ("", None),
    ],
)
def test_a_modality_that_is_named(instruction, modality):
    assert named_modality(instruction) == modality
