"""The measures of attention maps against independent ones, and the word that is looked at."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from skimage.filters import threshold_otsu

from mie.errors import MetricError
from mie.scoring.benchmarks.medebench.attention import (
    Word,
    concept_word,
    concepts_of,
    control_word,
    looked_at,
    measure_map,
    normalised,
    otsu_threshold,
)
from tests.conftest import ellipse, shipped


def heat(seed: int, height: int = 24, width: int = 31) -> np.ndarray:
    draw = np.random.default_rng(seed)
    values = draw.gamma(1.5, size=(height, width))
    values[4:12, 6:20] += draw.uniform(0, 6)
    return (values / values.sum()).astype(np.float32)


@given(st.integers(0, 10**6))
@example(2338)
def test_the_threshold_is_that_of_scikit_image(seed: int) -> None:
    values = normalised(heat(seed))
    ours, theirs = otsu_threshold(values), threshold_otsu(values)
    # Two bins may part the classes equally well; scikit-image compares them in single precision.
    assert ours == pytest.approx(theirs, abs=1e-6) or spread(values, ours) >= spread(values, theirs)


def spread(values: np.ndarray, threshold: float) -> float:
    """The variance between the two classes, of the centres of 256 bins."""
    counts, edges = np.histogram(values, 256)
    centres = (edges[:-1] + edges[1:]) / 2
    low = centres <= threshold + 1e-6
    parts = [(counts[k].sum(), np.average(centres[k], weights=counts[k])) for k in (low, ~low)]
    return float(parts[0][0] * parts[1][0] * (parts[0][1] - parts[1][1]) ** 2)


def test_the_threshold_of_a_real_image() -> None:
    grey = shipped("retina.jpg")[::8, ::8, 1].astype(np.float32)
    values = normalised(grey)
    assert otsu_threshold(values) == pytest.approx(threshold_otsu(values), abs=1e-6)
    assert np.array_equal(looked_at(grey), values > 1.3 * threshold_otsu(values))


@given(st.integers(0, 10**6))
def test_auc_is_the_chance_that_a_place_inside_is_brighter(seed: int) -> None:
    values = np.round(heat(seed), 3)  # with ties
    region = ellipse(seed % 50, *values.shape)
    inside, outside = values[region], values[~region]
    greater = (inside[:, None] > outside).mean() + 0.5 * (inside[:, None] == outside).mean()
    assert measure_map(values, region)["auc"] == pytest.approx(greater)


def test_iou_and_pointing_by_hand() -> None:
    values = np.zeros((4, 5), np.float32)
    values[1, 1:4] = 1  # what is looked at
    values[1, 3] = 1.2
    region = np.zeros((4, 5), bool)
    region[1:3, 2:4] = True
    assert measure_map(values, region) == {
        "iou": pytest.approx(2 / 5),
        "pointing": 1.0,
        "auc": pytest.approx(46.5 / 64),
    }
    assert measure_map(-values, region)["pointing"] == 0.0


def test_what_cannot_be_measured_is_no_number() -> None:
    values, region = heat(1), ellipse(1, 24, 31)
    for bad_values, bad_region in (
        (np.ones_like(values), region),
        (values, np.zeros_like(region)),
        (values, np.ones_like(region)),
        (values[:5], region),
    ):
        with pytest.raises(MetricError):
            measure_map(bad_values, bad_region)


@pytest.mark.parametrize(
    ("instruction", "names", "expected"),
    [
        ("Highlight the optic disc in red.", ["optic disc"], "optic disc"),
        ("Highlight the Optic Discs in red.", ["optic disc"], "Optic Discs"),
        ("Remove the lesion.", ["optic disc", "lesion"], "lesion"),
        ("Remove the black stains on the teeth.", [], "stains"),
        ("Remove wisdom teeth.", [], "teeth"),
        ("Reduce gaps between teeth.", ["polyp"], "gaps"),
        ("Remove the wisdom teeth, keeping the rest of the image unchanged.", [], "teeth"),
        ("Add a tooth in the missing area.", ["teeth"], "tooth"),
        ("In the image, remove it", ["disc"], "image"),
        ("", ["disc"], None),
        ("12 3", [], None),
    ],
)
def test_the_word_is_the_name_or_the_object(instruction: str, names: list[str], expected: str | None) -> None:
    word = concept_word(instruction, names)
    assert (None if word is None else word.text) == expected
    if word is not None:
        assert instruction[word.start : word.end] == word.text


def test_names_come_from_the_table_the_target_and_the_task() -> None:
    assert concepts_of("Remove wisdom teeth.", None, {}) == ["teeth"]
    assert concepts_of("Remove wisdom teeth.", None, {"Remove wisdom teeth.": "molar"}) == ["molar", "teeth"]
    assert concepts_of("structure: optic disc", "optic disc", {}) == ["optic disc"]


def test_the_control_is_another_word_and_the_same_every_time() -> None:
    text = "Highlight the optic disc in red, please."
    concept = Word("optic disc", text.index("disc") + 4)
    words = {control_word(text, concept, f"sample {n}") for n in range(40)}
    assert {word.text for word in words if word} == {"Highlight", "red", "please"}
    assert all(text[word.start : word.end] == word.text for word in words if word)
    assert control_word(text, concept, "a") == control_word(text, concept, "a")
    assert control_word("the disc", Word("disc", 8), "a") is None
