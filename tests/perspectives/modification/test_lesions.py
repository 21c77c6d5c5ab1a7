"""Which lesions go together, how far the hole reaches, and what cannot be removed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from mie.perspectives.modification.lesions import (
    LesionLimits,
    body_of,
    dilated,
    lesions_of,
    ring_around,
    why_not,
)
from mie.records import Target
from tests.perspectives.modification.lesions import BLEED, DISC, EXUDATES, SIZE, disc, tissue

EVERYWHERE = np.ones((SIZE, SIZE), bool)


def found(masks, *targets, margin=(0.1, 3)):
    return lesions_of(masks, {t.name: t for t in targets}, margin)


def test_anatomy_is_no_lesion():
    assert found({"optic disc": disc(50, 50, 10)}, DISC) == []
    (lesion,) = found({"optic disc": disc(50, 50, 20), "retinal haemorrhage": disc(50, 50, 8)}, DISC, BLEED)
    assert lesion.targets == (BLEED,)
    assert np.array_equal(lesion.mask, disc(50, 50, 8))


@given(radius=st.integers(2, 12), share=st.floats(0, 0.5), least=st.integers(1, 6))
def test_the_hole_is_the_lesion_grown_by_its_margin(radius, share, least):
    mask = disc(60, 60, radius)
    hole, (low, high) = dilated(mask, (share, least))
    diameter = 2 * np.sqrt(mask.sum() / np.pi)
    assert low == high == max(least, round(share * diameter))
    away = ndimage.distance_transform_edt(~mask)
    assert hole[away <= low - 0.5].all()
    assert not hole[away > low + 1.5].any()


def test_each_part_has_its_own_margin():
    hole, (low, high) = dilated(disc(30, 30, 3) | disc(90, 90, 20), (0.2, 2))
    assert (low, high) == (2, 8)
    assert hole[30, 30 + 5]
    assert not hole[30, 30 + 7]
    assert hole[90, 90 - 27]


def test_lesions_of_one_target_go_together():
    (lesion,) = found({"hard exudates": disc(30, 30, 4) | disc(90, 90, 6)}, EXUDATES)
    assert lesion.hole[30, 30]
    assert lesion.hole[90, 90]


def test_targets_apart_give_all_together_first_and_then_each():
    masks = {"hard exudates": disc(30, 30, 4), "retinal haemorrhage": disc(90, 90, 6)}
    everything, *groups = found(masks, EXUDATES, BLEED)
    assert [t.name for t in everything.targets] == ["hard exudates", "retinal haemorrhage"]
    assert [[t.name for t in g.targets] for g in groups] == [["hard exudates"], ["retinal haemorrhage"]]
    assert not (groups[0].hole & groups[1].hole).any()


def test_half_a_tumour_is_never_left_behind():
    """Targets whose holes touch are one group, also by way of a third."""
    names = ("necrotic tumour core", "enhancing tumour", "peritumoural oedema")
    targets = [Target(name, "lesion") for name in names]
    masks = {
        "necrotic tumour core": disc(60, 40, 5),
        "peritumoural oedema": disc(60, 70, 6),
        "enhancing tumour": disc(60, 55, 8),
    }
    (lesion,) = found(masks, *targets)
    assert {t.name for t in lesion.targets} == set(names)
    assert [t.name for t in lesion.spoken] == ["brain tumour"]


def test_one_part_alone_is_called_by_its_own_name():
    (lesion,) = found({"peritumoural oedema": disc(60, 60, 9)}, Target("peritumoural oedema", "lesion"))
    assert [t.name for t in lesion.spoken] == ["peritumoural oedema"]


def test_what_a_rim_encloses_goes_with_it_but_a_large_middle_stays():
    rim = disc(60, 60, 14) & ~disc(60, 60, 9)
    hole, _ = dilated(rim, (0.0, 1))
    assert hole[60, 60]
    thin = disc(60, 60, 40) & ~disc(60, 60, 38)
    hole, _ = dilated(thin, (0.0, 1))
    assert not hole[60, 60]


@pytest.mark.parametrize(
    ("mask", "body", "family", "gate"),
    [
        (disc(4, 60, 8), EVERYWHERE, "ct", "border"),
        (disc(60, 124, 8), EVERYWHERE, "fundus", "border"),
        (disc(60, 60, 2), EVERYWHERE, "ct", "area"),
        (disc(64, 64, 50), EVERYWHERE, "dermoscopy", "area"),
        (disc(64, 64, 36), EVERYWHERE, "dermoscopy", None),
        (disc(64, 64, 36), EVERYWHERE, "mri", "area"),  # half an organ cannot be made up
        (disc(30, 30, 9), disc(90, 90, 30), "ct", "outside"),
        (disc(90, 90, 20), disc(90, 90, 30), "ultrasound", "area"),  # small picture, most of the body
        (disc(60, 60, 9), EVERYWHERE, "ct", None),
        (disc(60, 56, 7), disc(60, 80, 30), "mri", None),  # at the rim of the body: it is seen whole
        (disc(60, 56, 7), disc(60, 80, 30), "endoscopy", "border"),  # at the rim of the view: it goes on
    ],
)
def test_what_cannot_be_removed_is_refused(mask, body, family, gate):
    (lesion,) = found({"retinal haemorrhage": mask}, BLEED)
    refused = why_not(lesion, body, LesionLimits(), family)
    assert (refused and refused[0]) == gate


def test_the_users_limit_holds_for_every_family():
    (lesion,) = found({"retinal haemorrhage": disc(64, 64, 36)}, BLEED)
    assert why_not(lesion, EVERYWHERE, LesionLimits(max_fraction=0.5), "mri") is None
    assert why_not(lesion, EVERYWHERE, LesionLimits(max_fraction=0.1), "dermoscopy") is not None


def test_a_hole_stays_inside_the_view():
    view = disc(60, 60, 30)
    mask = disc(60, 83, 5)
    (lesion,) = lesions_of({"polyp": mask}, {"polyp": Target("polyp", "lesion")}, (0.5, 6), view)
    assert not (lesion.hole & ~view).any()
    assert lesion.hole.sum() > mask.sum()


def test_two_breasts_and_what_lies_between_are_body():
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    for column in (30, 98):
        image[disc(60, column, 22)] = 120
    body = body_of(image, "mri")
    assert body[60, 30]
    assert body[60, 98]
    assert body[60, 64]
    assert not body[5, 5]
    assert not body_of(image, "fundus")[60, 64]  # two views


def test_the_ring_is_healthy_body_around_the_hole():
    hole, other, body = disc(60, 60, 15), disc(60, 82, 4), disc(60, 60, 40)
    ring = ring_around(hole, body, other)
    assert not (ring & (hole | other | ~body)).any()
    assert 0.5 < ring.sum() / hole.sum() < 3


def test_the_body_is_what_is_bright_with_its_dark_holes():
    image = np.zeros((SIZE, SIZE, 3), np.uint8)
    head = disc(64, 64, 45)
    image[head] = tissue()[head]
    image[disc(64, 64, 10)] = 0  # a dark ventricle
    image[2:6, 2:6] = 255  # a letter in the corner
    body = body_of(image, "mri")
    assert (body & ~head).sum() < 0.03 * head.sum()
    assert body[64, 64]
    assert not body[3, 3]
    assert body_of(image, "ultrasound").all()
    assert body_of(np.zeros_like(image), "ct").all()


def test_air_is_grey_in_a_wide_window():
    image = np.full((SIZE, SIZE, 3), 58, np.uint8)
    image[disc(64, 64, 40)] = 200
    body = body_of(image, "ct")
    assert body[64, 64]
    assert not body[4, 64]
    zoomed = tissue(grey=True)  # no air in the corners
    assert body_of(zoomed, "mri").mean() > 0.95
