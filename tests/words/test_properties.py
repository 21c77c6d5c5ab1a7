"""Whatever is typed: no exception, always an operation, and a canonical form that means the same."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mie.vocabulary import MODALITIES
from mie.words import LONGEST, canonical, parse, vocabulary
from mie.words.vocabulary import OPERATIONS, phrase

QUICK = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
WORDS = sorted({" ".join(key) for key in vocabulary().senses})
SENTENCES = st.lists(st.sampled_from([*WORDS, ",", ";", ".", "12 mm", "?"]), max_size=12).map(" ".join)
MODALITY = st.sampled_from([None, *MODALITIES])


@QUICK
@given(st.one_of(st.text(max_size=200), SENTENCES), MODALITY)
def test_any_text_has_an_operation(text: str, modality: str | None) -> None:
    result = parse(text, modality)
    assert result.operation in (*OPERATIONS, "none")
    assert result.operation != "none" or result.note
    assert json.loads(json.dumps(result.as_json())) == result.as_json()


@QUICK
@given(SENTENCES, st.sampled_from(list(MODALITIES)))
def test_the_canonical_form_means_the_same(text: str, modality: str) -> None:
    result = parse(text, modality)
    if result.unknown or not result.targets:
        return
    again = parse(canonical(result), modality)
    assert (again.operation, again.task, again.targets) == (result.operation, result.task, result.targets)
    assert again.attributes.get("exclude") == result.attributes.get("exclude")
    for name in ("size", "numbers"):
        assert again.attributes.get(name) == result.attributes.get(name)
    # An organ as a place is told by the target's name: "the tumour in the liver" is a liver tumour.
    place = result.attributes.get("place")
    if place is not None and not any(s.kind == "target" for s in vocabulary().senses.get(phrase(place), ())):
        assert again.attributes.get("place") == place


def test_the_length_is_limited_and_said() -> None:
    assert parse("a" * 100_000).operation == "none"
    assert parse("mark the liver " + "x" * LONGEST).note == (
        f"the instruction is too long: {LONGEST + 15:,} characters, at most {LONGEST:,}"
    )
