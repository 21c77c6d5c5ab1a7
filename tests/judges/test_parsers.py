"""Parsers: what is asked for is read whatever stands around it; nothing else ever becomes a number."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.judges import ParseError
from mie.judges.parsers import (
    json_list_of,
    json_object,
    json_scores,
    json_scores_schema,
    labelled_scores,
    line_scores,
    whole_number,
    yes_no,
)

RUBRIC = json_scores("score_list", 8, 1, 5, texts=("conclusion",))
scores = st.lists(st.integers(1, 5), min_size=8, max_size=8)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
# Prose that holds no JSON of its own: brackets are where the doubt begins.
prose = text.map(lambda t: t.translate(str.maketrans("", "", "{}[]`<>")))
wild = text | st.text(st.sampled_from('{}[]",:123 45/`\n"score_list"conclusion'), max_size=80)


def reply(numbers: list[int], conclusion: str) -> str:
    return json.dumps({"conclusion": conclusion, "score_list": numbers}, ensure_ascii=False)


@given(scores, text, prose, prose, st.booleans())
def test_the_object_is_found_in_any_prose(numbers, conclusion, before, after, fenced):
    body = reply(numbers, conclusion.replace("```", "").replace("<think", ""))
    body = f"```json\n{body}\n```" if fenced else body
    assert RUBRIC(f"{before}\n{body}\n{after}") == tuple(numbers)


@given(wild)
def test_any_text_is_a_value_or_a_parse_error(junk):
    parsers = (
        RUBRIC,
        labelled_scores({"ea": "Editing Accuracy"}, out_of=10),
        line_scores(3, 1, 5),
        yes_no(2),
        json_list_of(("question", "answer"), 1, 3),
    )
    for parser in parsers:
        with contextlib.suppress(ParseError):
            assert parser(junk) is not None


@given(st.lists(st.integers(1, 5), max_size=12).filter(lambda n: len(n) != 8))
def test_a_wrong_count_is_refused(numbers):
    with pytest.raises(ParseError, match="exactly 8"):
        RUBRIC(reply(numbers, "x"))


@given(scores, st.integers(0, 7), st.integers().filter(lambda n: not 1 <= n <= 5))
def test_a_number_off_the_scale_is_refused(numbers, at, wrong):
    numbers[at] = wrong
    with pytest.raises(ParseError, match="outside"):
        RUBRIC(reply(numbers, "x"))


@pytest.mark.parametrize("wrong", [True, None, 3.5, "three", "4/10", "4,5", [4], "", "-3", "1e0"])
def test_what_is_no_whole_number_is_refused(wrong):
    with pytest.raises(ParseError):
        RUBRIC(reply([wrong, 1, 2, 3, 4, 5, 1, 2], "x"))


@pytest.mark.parametrize("fine", [4, 4.0, "4", "4/5", " 4 / 5 "])
def test_four_in_other_words(fine):
    assert whole_number(fine, 1, 5, "x") == 4


@pytest.mark.parametrize(
    "bad",
    [
        '{"conclusion": "a", "score_list": [1,1,1,1,1,1,1,1], "score_list": [5,5,5,5,5,5,5,5]}',
        '{"score_list": [1,1,1,1,1,1,1,1]}',
        '{"conclusion": 3, "score_list": [1,1,1,1,1,1,1,1]}',
        '{"conclusion": "a", "score_list": "1,1,1,1,1,1,1,1"}',
        '{"conclusion": "a", "score_list": [NaN,1,1,1,1,1,1,1]}',
        '{"conclusion": "a", "score_list": [1,1,1,1,1,1,1,1]',
        "[1,1,1,1,1,1,1,1]",
        "",
        "{" * 5000,
    ],
)
def test_broken_objects(bad):
    with pytest.raises(ParseError):
        RUBRIC(bad)


def test_two_objects_that_differ_leave_a_doubt():
    first, second = reply([1] * 8, "a"), reply([5] * 8, "a")
    assert RUBRIC(f"{first}\nonce more: {first}") == (1,) * 8
    with pytest.raises(ParseError, match="more than one"):
        RUBRIC(f"{first} or rather {second}")


def test_a_line_break_inside_a_text_is_forgiven():
    assert json_object('{"a": "one\ntwo"}') == {"a": "one\ntwo"}


def test_the_schema_says_what_the_parser_reads():
    schema = json_scores_schema("score_list", 8, 1, 5, texts=("conclusion",))
    assert schema["required"] == ["conclusion", "score_list"]
    assert schema["properties"]["score_list"]["items"]["enum"] == [1, 2, 3, 4, 5]


EA_VQ = labelled_scores({"ea": "Editing Accuracy", "vq": "Visual Quality"}, out_of=10)


@given(
    st.integers(0, 10), st.integers(0, 10), st.sampled_from(["{}: {}/10", "**{}**: {}/10", "- {} : {} / 10"])
)
def test_labelled_scores(ea, vq, form):
    lines = [form.format("Editing Accuracy", ea), "because", form.format("Visual Quality", vq)]
    assert EA_VQ("\n".join(lines)) == {"ea": ea, "vq": vq}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("Editing Accuracy: 7/10", "Visual Quality"),
        ("Editing Accuracy: 7/10\nVisual Quality: 12/10", "outside"),
        ("Editing Accuracy: 7/5\nVisual Quality: 3/10", "out of 10"),
        ("Editing Accuracy: 7/10\nEditing Accuracy: 8/10\nVisual Quality: 3/10", "more than one"),
        ("Editing Accuracy: high\nVisual Quality: 3/10", "no line"),
        ("Editing Accuracy: -1/10\nVisual Quality: 3/10", "outside"),
    ],
)
def test_labelled_scores_refused(reply, why):
    with pytest.raises(ParseError, match=why):
        EA_VQ(reply)


def test_labelled_scores_take_decimals_and_wide_characters():
    assert EA_VQ("Editing Accuracy：７.5/10\nVisual Quality: 10/10") == {"ea": 7.5, "vq": 10}


@given(st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_line_scores(numbers):
    names = ("Prompt Compliance", "Visual Naturalness", "Physical & Detail Integrity")
    lines = [f"{name}: {number}" for name, number in zip(names, numbers, strict=True)]
    assert line_scores(3, 1, 5)("\n".join(["Brief reasoning: good work.", *lines])) == tuple(numbers)


@pytest.mark.parametrize(
    "reply",
    ["a: 1\nb: 2", "a: 1\nb: 2\nc: 3\nd: 4", "a: 1\na: 2\nc: 3", "a: 1\nb: 2\nc: 6", "a: 1 b: 2 c: 3"],
)
def test_line_scores_refused(reply):
    with pytest.raises(ParseError):
        line_scores(3, 1, 5)(reply)


def test_yes_no():
    assert yes_no()("Yes, it was removed.") == (True,)
    assert yes_no(3)("1. yes\n2) **No**: the colour stayed\nTurn 3: Yes") == (True, False, True)
    for bad in ("", "yes\nno\nno", "nothing", "Yesterday"):
        with pytest.raises(ParseError):
            yes_no(2)(bad)


@given(
    st.lists(
        st.fixed_dictionaries({"q": text.filter(str.strip), "a": text.filter(str.strip)}),
        min_size=1,
        max_size=3,
    )
)
def test_lists_of_objects(pairs):
    parser = json_list_of(("q", "a"), 1, 3)
    assert parser(json.dumps(pairs)) == pairs
    assert parser(json.dumps({"qa_pairs": pairs})) == pairs
    for bad in ([], pairs * 4, [{"q": "x"}], [{"q": "x", "a": 3}], [{"q": "x", "a": " "}]):
        with pytest.raises(ParseError):
            parser(json.dumps(bad))
