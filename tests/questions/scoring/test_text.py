"""Text metrics against values worked out by hand from the papers' definitions."""

from __future__ import annotations

import math

import pytest

from mie.questions.scoring.text import bleu, exact_match, rouge_1, rouge_l, stem, words

# From the tables of steps 1a to 5b in Porter (1980).
PORTER = {
    "caresses": "caress", "ponies": "poni", "cats": "cat", "feed": "feed", "agreed": "agre",
    "plastered": "plaster", "bled": "bled", "motoring": "motor", "sing": "sing", "conflated": "conflat",
    "hopping": "hop", "falling": "fall", "filing": "file", "happy": "happi", "sky": "sky",
    "relational": "relat", "rational": "ration", "digitizer": "digit", "vietnamization": "vietnam",
    "hopefulness": "hope", "sensibiliti": "sensibl", "triplicate": "triplic", "electrical": "electr",
    "goodness": "good", "revival": "reviv", "replacement": "replac", "adoption": "adopt",
    "homologous": "homolog", "probate": "probat", "rate": "rate", "cease": "ceas", "controll": "control",
    "roll": "roll",
}  # fmt: skip


def test_stems_are_porters():
    assert {word: stem(word) for word in PORTER} == PORTER


def test_words_are_lower_case_and_stemmed_where_they_are_long():
    assert words("Enhancing LESIONS, T1-weighted: is as") == ["enhanc", "lesion", "t1", "weight", "is", "as"]


def test_rouge_is_the_f1_of_shared_words_and_of_the_longest_subsequence():
    answer, reference = ["the", "cat", "sat", "on", "the", "mat"], ["the", "cat", "is", "on", "the", "mat"]
    assert rouge_1(answer, reference) == pytest.approx(5 / 6)
    assert rouge_l(answer, reference) == pytest.approx(5 / 6)
    # The same words in another order share all of them, but only two in a row of order.
    assert rouge_1(["a", "b", "c"], ["c", "b", "a", "d"]) == pytest.approx(2 * 3 / 7)
    assert rouge_l(["a", "b", "c"], ["c", "b", "a", "d"]) == pytest.approx(2 * 1 / 7)
    assert rouge_1(["a"], ["b"]) == rouge_l([], ["b"]) == 0.0


def test_bleu_with_the_fourth_smoothing_is_the_one_worked_out_by_hand():
    answer, reference = ["the", "cat", "sat", "on", "the", "mat"], ["the", "cat", "is", "on", "the", "mat"]
    # 5 of 6 words, 3 of 5 pairs, 1 of 4 triples, no quadruple of 3: that one counts ln 6 / (5 * 2).
    shares = (5 / 6, 3 / 5, 1 / 4, math.log(6) / 10 / 3)
    assert bleu(answer, reference) == pytest.approx(math.prod(shares) ** 0.25)
    # Shorter than its reference: exp(1 - 6/3); three words have orders 1 and 2 alone.
    short = math.sqrt(3 / 3 * (1 / 2)) * math.exp(1 - 6 / 3)
    assert bleu(["the", "cat", "on"], reference) == pytest.approx(short)
    # Two orders without a match: the second counts half as much.
    far = (2 / 4, math.log(4) / 10 / 3, math.log(4) / 20 / 2, math.log(4) / 40 / 1)
    assert bleu(["mat", "x", "cat", "y"], ["cat", "a", "b", "mat"]) == pytest.approx(math.prod(far) ** 0.25)
    assert bleu(["glioma"], ["glioma"]) == 1.0
    assert bleu(["x"], ["glioma"]) == bleu([], ["glioma"]) == 0.0


def test_an_exact_match_forgives_case_and_edges_alone():
    assert exact_match(" Left  Glioma.", "left glioma") == 1.0
    assert exact_match("left-sided glioma", "left glioma") == 0.0
