import cv2
import numpy as np
import pytest
from scipy import ndimage

from mie.errors import ImageError
from mie.sources.catalog import Entry
from mie.sources.markings import masks_of


def entry(targets, **changes):
    return Entry(
        name="x",
        title="x",
        modality="CT",
        anatomy="abdomen",
        license={"name": "CC0-1.0", "use": "open"},
        layout={"kind": "folder", "images": "{id}.png", "masks": "m/{id}.png"},
        targets=targets,
        **changes,
    )


LIVER = {"name": "liver", "kind": "anatomy"}
TUMOUR = {"name": "tumour", "kind": "lesion"}


def masks(labels, targets, **changes):
    made = entry(targets, **changes)
    return {k: v.tolist() for k, v in masks_of(np.asarray(labels, np.uint8), made.targets, made).items()}


def test_values():
    found = masks([[0, 1, 2]], [{**LIVER, "value": [1, 2]}, {**TUMOUR, "value": 2}])
    assert found == {"liver": [[False, True, True]], "tumour": [[False, False, True]]}


def test_absent_targets_are_left_out():
    assert masks([[0, 1]], [{**LIVER, "value": 1}, {**TUMOUR, "value": 2}]) == {"liver": [[False, True]]}


def test_unexpected_values_are_counted():
    with pytest.raises(ImageError) as caught:
        masks([[0, 1, 7, 7]], [{**LIVER, "value": 1}])
    assert caught.value.found == "7 on 2 px"
    assert caught.value.expected == "0, 1"


def test_ignored_values_are_background():
    assert masks([[0, 1, 7]], [{**LIVER, "value": 1}], ignore=[7]) == {"liver": [[False, True, False]]}


def test_snap_takes_jpeg_noise_to_the_nearest_value():
    found = masks([[3, 250, 120, 140]], [{**LIVER, "value": 255}, {**TUMOUR, "value": 128}], snap=True)
    assert found == {"liver": [[False, True, False, False]], "tumour": [[False, False, True, True]]}


def test_colours_and_their_snap():
    labels = [[[0, 0, 0], [255, 0, 0], [0, 0, 255]]]
    targets = [{**LIVER, "colour": [255, 0, 0]}, {**TUMOUR, "colour": [[0, 0, 255], [0, 255, 0]]}]
    assert masks(labels, targets) == {"liver": [[False, True, False]], "tumour": [[False, False, True]]}
    noisy = [[[9, 4, 0], [240, 12, 7], [3, 20, 231]]]
    assert masks(noisy, targets, snap=True) == masks(labels, targets)
    with pytest.raises(ImageError, match="does not name") as caught:
        masks(noisy, targets)
    assert "(240, 12, 7) on 1 px" in (caught.value.found or "")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"nonzero": True}, [False, True, True]),
        ({"above": 1}, [False, False, True]),
        ({"below": 1}, [True, False, False]),
    ],
)
def test_rules(rule, expected):
    assert masks([[0, 1, 9]], [{**LIVER, **rule}]) == {"liver": [expected]}


def test_a_target_needs_one_marking():
    with pytest.raises(ValueError, match="exactly one of"):
        entry([LIVER])
    with pytest.raises(ValueError, match="exactly one of"):
        entry([{**LIVER, "value": 1, "nonzero": True}])


def test_an_outline_is_filled():
    ring = np.zeros((7, 7), np.uint8)
    ring[1:6, 1:6] = 255
    ring[2:5, 2:5] = 0
    whole = np.zeros((7, 7), bool)
    whole[1:6, 1:6] = True
    assert masks(ring, [{**LIVER, "value": 255, "filled": True}]) == {"liver": whole.tolist()}
    assert masks(np.zeros((7, 7)), [{**LIVER, "value": 255, "filled": True}]) == {}
    ring[1, 3] = 0
    with pytest.raises(ImageError, match="not closed"):
        masks(ring, [{**LIVER, "value": 255, "filled": True}])


def test_filled_as_scipy_fills():
    made = entry([{**LIVER, "value": 255, "filled": True}])
    for seed in range(20):
        draw = np.random.default_rng(seed)
        outline = np.zeros((60, 80), np.uint8)
        axes = [int(half) for half in draw.integers(4, 25, 2)]
        cv2.ellipse(outline, (40, 30), axes, float(draw.integers(0, 180)), 0, 360, 255, 1)
        found = masks_of(outline, made.targets, made)["liver"]
        assert np.array_equal(found, ndimage.binary_fill_holes(outline > 0))


def test_a_rim_of_blended_class_numbers_is_dropped():
    labels = np.zeros((12, 12), np.uint8)
    labels[1:11, 1:11] = 1  # between 0 and 2 lies 1
    labels[2:10, 2:10] = 2
    targets = [{**LIVER, "value": 1, "opened": 3}, {**TUMOUR, "value": 2}]
    assert masks(labels, targets).keys() == {"tumour"}
    labels[0:6, 0:4] = 1
    kept = np.zeros((12, 12), bool)
    kept[0:6, 0:4] = True
    assert masks(labels, targets)["liver"] == kept.tolist()


def test_volumes_are_not_turned_filled_or_opened():
    layout = {"kind": "volume", "images": "{id}.nii", "masks": "m/{id}.nii"}
    for changes, target in (({"upside_down": True}, {}), ({}, {"filled": True}), ({}, {"opened": 3})):
        with pytest.raises(ValueError, match="pictures"):
            Entry(**{**entry([{**LIVER, "value": 1, **target}]).model_dump(), "layout": layout, **changes})
