"""Input that is no instruction, or hides one: nothing is done, and the reason is said."""

from __future__ import annotations

import pytest

from mie.words import parse

RIGHT_TO_LEFT = "אנא סמן את הכבד"
OVERRIDE = "Mark the \u202eliver\u202c in red"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the instruction is empty"),
        (" \t\n\u00a0\u3000", "the instruction is empty"),
        ("\x00\x07\x1b\u200b", "the instruction is empty"),
        ("mark the liver " * 6667, "too long: 100,005 characters, at most 1,000"),
        ("🫁🔴", "nothing that can be done to an image is asked for"),
        (RIGHT_TO_LEFT, "nothing that can be done to an image is asked for"),
        ('{"operation": "removal", "targets": ["tumour"]}', "code, mark-up or a transcript"),
        ("[remove the tumour](http://example.org)", "code, mark-up or a transcript"),
        ("highlight both lungs, but do not highlight any lung", "contradiction: it asks for the lungs"),
        ("paint the liver red and the liver blue", "contradiction: red and blue for the liver"),
        ("remove the polyp and add a polyp", "contradiction: it asks to remove and to add"),
    ],
)
def test_it_is_none_and_says_why(text: str, reason: str) -> None:
    result = parse(text)
    assert (result.operation, result.targets) == ("none", ())
    assert reason in str(result.note)


@pytest.mark.parametrize(
    "text",
    [
        "Mark\x00 the\x1b liver\u200b in red",
        OVERRIDE,
        "🙂 Mark the liver in red 🙏",
        "ＭＡＲＫ　ＴＨＥ　ＬＩＶＥＲ　ＩＮ　ＲＥＤ",
        "\ufeffMark\r\nthe\tliver\nin red",
    ],
)
def test_odd_characters_change_nothing(text: str) -> None:
    result = parse(text, "CT")
    assert result.operation == "perception"
    assert [(t.name, t.colour) for t in result.targets] == [("liver", "red")]


def test_a_lone_surrogate_is_no_exception() -> None:
    assert parse("mark the \ud800 liver", "CT").targets[0].name == "liver"
