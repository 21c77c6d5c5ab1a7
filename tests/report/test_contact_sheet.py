from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import skimage.data
from hypothesis import given, settings
from hypothesis import strategies as st

from mie.errors import MieError
from mie.images.overlay import paint
from mie.records import Pixels, Sample
from mie.report.contact_sheet import contact_sheet, pair_sheet, sample_title


def make_sample(height: int = 224, width: int = 224) -> Sample:
    image = np.ascontiguousarray(skimage.data.retina()[400 : 400 + height, 300 : 300 + width])
    mask = np.zeros((height, width), bool)
    mask[20:50, 30:90] = True
    return Sample(
        id="0",
        perspective="perception",
        task="structure",
        target="optic disc",
        modality="fundus",
        anatomy="eye",
        prompt="Paint the optic disc red.",
        prompt_template="",
        description="",
        input=image,
        target_image=paint(image, mask, "red"),
        mask=mask.view(np.uint8) * np.uint8(255),
        colour="red",
        split="test",
        bin=None,
        source="retina",
        case_id="0",
        patient_id=None,
        recipe="perception",
        recipe_version=1,
        params={},
        seed=0,
    )


PAIR_MARKS: dict[str, dict[str, str]] = {
    "lesion": {"synthetic": "lesion"},
    "tissue": {"synthetic": "tissue"},
    "none": {},
}


def find(sheet: Pixels, image: Pixels) -> tuple[int, int]:
    """(row, column) at which `image` stands in the sheet, pixel by pixel."""
    apart = cv2.matchTemplate(sheet, image, cv2.TM_SQDIFF)
    row, column = np.unravel_index(int(apart.argmin()), apart.shape)
    place = sheet[row : row + image.shape[0], column : column + image.shape[1]]
    assert np.array_equal(place, image)
    return int(row), int(column)


def ink(sheet: Pixels) -> np.ndarray:
    return (sheet < 200).any(axis=-1)


def test_input_left_target_right_text_above_and_below() -> None:
    sample = make_sample()
    sheet = contact_sheet([sample])
    assert sheet.dtype == np.uint8
    assert sheet.ndim == 3
    row, left = find(sheet, sample.input)
    row_of_target, right = find(sheet, sample.target_image)
    assert row == row_of_target
    assert left + 224 < right < left + 240
    assert ink(sheet[:row]).any()
    assert ink(sheet[row + 224 :]).any()
    assert (sheet[[0, -1]] == 255).all()
    assert (sheet[:, [0, -1]] == 255).all()


def test_shape_of_the_image_is_kept() -> None:
    sample = make_sample(200, 800)
    small = cv2.resize(sample.input, (224, 56), interpolation=cv2.INTER_AREA)
    row, left = find(contact_sheet([sample]), small)
    # Beside a square image it stands in the middle.
    both = contact_sheet([sample, make_sample()])
    assert find(both, small) == (row + (224 - 56) // 2, left)


def test_three_blocks_in_a_row() -> None:
    samples = [make_sample()] * 4
    one, three, four = (contact_sheet(iter(samples[:n])) for n in (1, 3, 4))
    assert one.shape[1] < three.shape[1] == four.shape[1]
    assert one.shape[0] == three.shape[0] < four.shape[0]
    assert np.array_equal(four[: len(three) - 20], three[: len(three) - 20])
    tall = contact_sheet(samples, columns=1)
    assert tall.shape[1] == one.shape[1]
    assert tall.shape[0] > four.shape[0]


def test_cell_sets_the_scale() -> None:
    sample = make_sample()
    large, small = contact_sheet([sample]), contact_sheet([sample], cell=112)
    assert small.shape[1] == pytest.approx(large.shape[1] / 2, rel=0.05)
    find(small, cv2.resize(sample.input, (112, 112), interpolation=cv2.INTER_AREA))


def test_label_and_prompt_are_those_of_the_sample() -> None:
    sample = make_sample()
    sheet = contact_sheet([sample])
    row, _ = find(sheet, sample.input)
    other_target = contact_sheet([replace(sample, target="macula")])
    assert not np.array_equal(sheet[:row], other_target[:row])
    assert np.array_equal(sheet[row:], other_target[row:])
    other_prompt = contact_sheet([replace(sample, prompt="Paint the optic disc blue.")])
    assert np.array_equal(sheet[: row + 224], other_prompt[: row + 224])
    assert not np.array_equal(sheet, other_prompt)
    longer = contact_sheet([replace(sample, prompt=sample.prompt * 8)])
    assert longer.shape[0] > sheet.shape[0]


def test_a_pair_says_which_of_its_images_was_generated() -> None:
    removal = replace(make_sample(), perspective="modification", task="removal", target="lesion")
    sheets = {mark: pair_sheet([replace(removal, params=params)]) for mark, params in PAIR_MARKS.items()}
    words = {"lesion": " · generated lesion", "tissue": " · generated tissue", "none": ""}
    for mark, sheet in sheets.items():
        spelt = pair_sheet([replace(removal, target=f"lesion{words[mark]}")])
        assert np.array_equal(sheet, spelt)
    assert not np.array_equal(sheets["lesion"], sheets["tissue"])
    hole = np.where(removal.mask[..., None] > 0, np.uint8(255), removal.input)
    columns = [find(sheets["tissue"], image)[1] for image in (removal.input, hole, removal.target_image)]
    assert columns == sorted(columns)


def test_a_long_target_does_not_hide_what_was_generated() -> None:
    removal = replace(make_sample(), perspective="modification", task="removal", target="haemorrhage " * 20)
    lesion, tissue, neither = (
        pair_sheet([replace(removal, params=PAIR_MARKS[mark])]) for mark in ("lesion", "tissue", "none")
    )
    row, _ = find(lesion, removal.input)
    assert not np.array_equal(lesion[:row], tissue[:row])
    assert not np.array_equal(lesion[:row], neither[:row])
    assert not ink(lesion[:, -5:]).any()


def test_a_small_lesion_is_shown_enlarged_with_and_without_it_but_not_the_hole() -> None:
    sample = make_sample()
    mask = np.zeros((224, 224), np.uint8)
    mask[40:60, 100:130] = 255
    healed = np.where(mask[..., None] > 0, np.uint8(9), sample.input)
    removal = replace(sample, perspective="modification", task="removal", target_image=healed, mask=mask)
    sheet = pair_sheet([removal])
    # A square of 39 pixels, 1.3 times the region's longer side, about its middle; 94 is 42% of 224.
    places = [
        find(sheet, cv2.resize(image[31:70, 96:135], (94, 94), interpolation=cv2.INTER_CUBIC)[4:-4, 4:-4])
        for image in (sample.input, healed)
    ]
    assert places[0][0] == places[1][0]
    assert 224 + 4 < places[1][1] - places[0][1] < 2 * (224 + 4)  # the last picture's left corner
    yellow = (sheet == (255, 225, 77)).all(axis=-1)
    hole = slice(22 + 224 + 8, 22 + 2 * 224)
    assert yellow.any()
    assert not yellow[:, hole].any()
    large = np.zeros((224, 224), np.uint8)
    large[20:120, 20:120] = 255
    assert not (pair_sheet([replace(removal, mask=large)]) == (255, 225, 77)).all(axis=-1).any()


def test_only_removals_are_pairs() -> None:
    with pytest.raises(MieError, match="not a removal"):
        pair_sheet([make_sample()])


def test_letters_beyond_ascii_are_drawn() -> None:
    """Not as the box that stands for a letter that the font lacks."""
    drawn = [contact_sheet([replace(make_sample(), prompt=letter)]) for letter in "éßΩж\uffff"]
    assert len({sheet.tobytes() for sheet in drawn}) == len(drawn)


@settings(max_examples=40, deadline=None)
@given(target=st.text(max_size=120), prompt=st.text(max_size=200))
def test_no_text_leaves_its_block(target: str, prompt: str) -> None:
    sheet = contact_sheet([replace(make_sample(), target=target, prompt=prompt)], cell=112)
    assert not ink(sheet[:, -5:]).any()
    assert not ink(sheet[-3:]).any()


def whole_image(change: Pixels) -> Sample:
    """A sample without a region: its target is the input plus `change`."""
    sample = make_sample()
    target = np.clip(sample.input.astype(int) + change, 0, 255).astype(np.uint8)
    return replace(sample, perspective="transformation", target_image=target, mask=None, colour=None)


def test_a_small_difference_is_shown_enlarged_in_both_images() -> None:
    change = np.zeros((224, 224, 3), int)
    change[40:60, 100:120] = 60
    sample = whole_image(change)
    row, _ = find(contact_sheet([replace(sample, mask=make_sample().mask)]), sample.input)
    insets = contact_sheet([sample])[row + 224 - 94 : row + 224]  # 42% of 224, below the change
    places = {}
    for name, image in (("input", sample.input), ("target", sample.target_image)):
        # 37 pixels, a sixth of 224, with the change in their middle.
        for top, left in np.ndindex(5, 5):
            part = image[29 + top : 66 + top, 89 + left : 126 + left]
            large = cv2.resize(part, (94, 94), interpolation=cv2.INTER_CUBIC)[4:-4, 4:-4]
            at = int(cv2.matchTemplate(insets[4:-4], large, cv2.TM_SQDIFF)[0].argmin())
            if np.array_equal(insets[4:-4, at : at + 86], large):
                places[name] = at
    assert 94 <= places["target"] - places["input"] < 104  # beside each other


def test_a_change_that_is_seen_is_not_enlarged() -> None:
    for sample in (make_sample(), whole_image(np.full((224, 224, 3), 90))):
        assert not (contact_sheet([sample]) == (255, 225, 77)).all(axis=-1).any()


def test_the_modality_is_named_once() -> None:
    assert sample_title("MRI", "MRI bias field") == "MRI bias field"
    assert sample_title("CT", "low-dose CT noise", " · ") == "low-dose CT noise"
    assert sample_title("MRI", "super-resolution", " · ") == "MRI · super-resolution"
    assert sample_title("CT", "octopus") == "CT, octopus"  # not the CT in the middle of a word
    assert sample_title("X-ray", "x-ray noise") == "x-ray noise"
    sample = replace(make_sample(), modality="MRI", target="MRI bias field")
    once = contact_sheet([replace(sample, modality="bias field")])
    assert np.array_equal(contact_sheet([sample]), once)


def test_nothing_to_show() -> None:
    with pytest.raises(MieError, match="no samples"):
        contact_sheet([])
