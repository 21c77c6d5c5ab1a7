"""Edits of an area as views: only the area differs, holes are white, words about places stay true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import torch

from mie.editors.compact.kinds import EditKind
from mie.training import compact_data
from mie.training.augment import STRENGTHS
from mie.training.batches import letterbox
from mie.training.compact_data import Choices, CompactData, Views
from mie.training.compact_validation import hole_cases
from mie.training.modification_data import (
    TEMPLATES,
    fill_instruction,
    grow_hole,
    lesion_shape,
    mean_filled,
    names_a_place,
)
from mie.training.pack import TRAIN, Pack, as_rgb
from mie.vocabulary import PERSPECTIVES
from tests.conftest import crop, ellipse
from tests.training.compact_tiny import SMALL, changed_pack

SHARES = {"perception": 0.4, "transformation": 0.2, "modification": 0.4}


@pytest.fixture(autouse=True)
def small_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_data, "SIDE", SMALL)
    monkeypatch.setattr(compact_data, "LARGE", 2 * SMALL)


def made(holes: float = 0.0) -> CompactData:
    return CompactData([changed_pack()], TRAIN, torch.device("cpu"), Choices(holes=holes))


def drawn(data: CompactData, batch: int = 40, absent: float = 0.0, **shares: float) -> Any:
    return data.choose(np.random.default_rng(0), batch, shares or SHARES, absent)


def texts(data: CompactData, views: Views) -> list[str]:
    return [data.prompts.texts[p] for p in views.prompt]


def test_a_batch_of_all_three() -> None:
    data = made()
    views = data.views(drawn(data), 0)
    kinds = [PERSPECTIVES[k] for k in views.perspective]
    assert kinds == ["perception"] * 16 + ["transformation"] * 8 + ["modification"] * 16
    assert views.image.shape == (40, 3, SMALL, SMALL)
    assert views.goal.shape == (24, 3, SMALL, SMALL)
    assert views.area.shape == (16, 1, SMALL, SMALL)
    assert views.hole.shape == (40, 1, SMALL, SMALL)
    assert not views.hole[:24].any()
    assert len(views.removable) == len(views.removal) == 16


def test_a_picture_without_its_lesion_is_asked_for_although_it_is_absent() -> None:
    """Counterfactuals of training patients, in the lesion's own words: nothing is to be painted on them."""
    pack = changed_pack()
    lesion = {"source": "endoscopy", "target": "polyp"}  # as the modifications have it
    pack.rows = [replace(row, **lesion) if row.modality == "fundus" else row for row in pack.rows]
    healthy = [row for row in pack.rows if row.task == "removal" and row.fold == TRAIN]
    plain, data = (
        CompactData([pack], TRAIN, torch.device("cpu"), Choices(healthy=share)) for share in (0.0, 1.0)
    )
    sizes = [sum(len(pool) for pool in each.images if pool) for each in (plain, data)]
    assert sizes[1] - sizes[0] == len(healthy) == 4
    items = drawn(data, 60, absent=0.5, perception=1.0)[EditKind.OVERLAY]
    views = data.views({EditKind.OVERLAY: items, EditKind.IMAGE: [], EditKind.AREA: []}, 0)
    absent = views.present == 0
    assert 0.3 < absent.float().mean() < 0.7
    said = texts(data, views)
    assert all("optic disc" in text for text, missing in zip(said, absent, strict=True) if missing)
    assert not views.overlay[absent].any()
    # What is shown is the picture after removal, not before.
    for stored, row in zip(data._healthy_rows, healthy, strict=True):
        pool = data.images[stored.large]
        assert pool is not None
        side = (SMALL, 2 * SMALL)[stored.large]
        shown = pool.gather(torch.tensor([stored.place]))[0].permute(1, 2, 0).numpy()
        assert np.array_equal(shown, letterbox(as_rgb(pack.images[row.goal]), side)[0])
    assert {item.modality for item in items if item.absent} == {"endoscopy"}
    assert {item.grey for item in items if item.absent} == {
        pack.images[row.goal].ndim == 2 for row in healthy
    }


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: on a CPU nothing waits")
def test_making_views_never_waits_for_the_gpu() -> None:
    data = CompactData(
        [changed_pack()], TRAIN, torch.device("cuda"), Choices(strength=STRENGTHS["strong"], holes=0.4)
    )
    data.views(drawn(data), 0)  # what is copied once is copied now
    torch.cuda.set_sync_debug_mode("error")
    try:
        views = data.views(drawn(data), 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(views.image) == 40


def test_only_the_area_differs_and_holes_are_white() -> None:
    data = made()
    views = data.views(drawn(data, 60, modification=1), 3)
    differs = ((views.image - views.goal).abs() > 1e-3).any(1, keepdim=True)
    assert not (differs & (views.area == 0)).any()
    shown = views.area.sum((1, 2, 3)) > 0
    assert shown.float().mean() > 0.9, "a view shows what changes"
    share = (differs & (views.area > 0)).sum((1, 2, 3))[shown] / views.area.sum((1, 2, 3))[shown]
    assert share.median() > 0.9
    white = (views.image == 1).all(1, keepdim=True)
    assert not ((views.hole > 0) & ~white).any()
    for at, text in enumerate(texts(data, views)):
        assert (views.hole[at].sum() > 0) == ("white" in text)
        if "white" in text:
            both = (views.hole[at] * views.area[at]).sum()
            assert both >= 0.8 * views.area[at].sum() - 8  # a halved view's rim is not all white


def test_grey_pairs_stay_grey() -> None:
    data = made()
    views = data.views(drawn(data, 60, modification=1), 3)
    assert 0.1 < views.grey.float().mean() < 0.9
    flat = torch.cat([views.image[views.grey], views.goal[views.grey]])
    assert torch.equal(flat[:, 0], flat[:, 2])


def test_what_is_not_there_cannot_be_removed() -> None:
    data = made()
    views = data.views(drawn(data, 80, absent=0.5, modification=1), 1)
    absent = views.removable == 0
    assert absent.any()
    assert views.removal[absent].all(), "only a removal can be in absent"
    assert (views.removable[views.removal] == 1).any()
    assert not views.area[absent].any()
    assert torch.equal(views.image[absent], views.goal[absent])


def test_words_about_a_place_are_not_made_wrong() -> None:
    data = made()
    for item in drawn(data, 80, modification=1)[EditKind.AREA]:
        if "left" in data.prompts.texts[item.prompt]:
            assert not item.flips
            assert not item.turns
    assert any(item.flips and item.turns for item in drawn(data, 80, modification=1)[EditKind.AREA])
    assert names_a_place("Add a lesion at 3 o'clock.")
    assert names_a_place("in the LEFT lobe")
    assert not names_a_place("Fill the white area, leftover tissue stays")


@pytest.mark.parametrize("holes", [0.5, 1.0])
def test_holes_made_on_the_way(holes: float) -> None:
    data = made(holes)
    chosen = drawn(data, 40, modification=1)
    assert sum(item.new_hole for item in chosen[EditKind.AREA]) == round(40 * holes)
    views = data.views(chosen, 5)
    new = torch.tensor([item.new_hole for item in chosen[EditKind.AREA]])
    area, image, goal = views.area[new], views.image[new], views.goal[new]
    assert (area.sum((1, 2, 3)) > 0).float().mean() > 0.9
    assert area.mean() < 0.4
    assert (image[area.expand_as(image) > 0] == 1).all()
    torch.testing.assert_close(image * (1 - area), goal * (1 - area), rtol=0, atol=1e-6)
    assert (views.hole[new] >= area).all()
    known = {t.format(picture="X-ray") for t in TEMPLATES} | {
        w.prompt for w in fill_instruction("fundus").wordings
    }
    said = [text for text, made in zip(texts(data, views), new, strict=True) if made]
    assert any(text in known for text in said)
    again = data.views(chosen, 5)
    assert torch.equal(again.image, views.image)


def test_holes_keep_off_what_is_marked_as_a_lesion() -> None:
    """Where most of a picture is lesion, what is left of a hole lies beside it, and inside the picture."""
    data = made(1.0)
    assert data.holes is not None
    image = torch.rand(30, 3, SMALL, SMALL, generator=torch.Generator().manual_seed(0))
    marked = torch.zeros(30, 1, SMALL, SMALL, dtype=torch.bool)
    marked[..., : SMALL // 2] = True
    draw = compact_data.Draw(30, torch.Generator().manual_seed(1))
    area = data.holes._placed(draw, image, marked, 1.0)
    assert area.any()
    assert not (area & marked).any()
    for one in data.holes.pictures:
        beside = one.lesions[0, 0]
        assert beside == 1 or data.images[one.large].values.shape[-1] == SMALL


def test_a_pack_without_modifications_trains_on_holes_alone() -> None:
    pack = changed_pack()
    pack.rows = [row for row in pack.rows if row.perspective != "modification"]
    data = CompactData([pack], TRAIN, torch.device("cpu"), Choices(holes=0.3))
    assert all(item.new_hole for item in drawn(data, 10, modification=1)[EditKind.AREA])


def test_a_shape_is_the_largest_part_at_its_own_proportions() -> None:
    mask = np.zeros((100, 200), np.uint8)
    mask[10:30, 20:80] = 2
    mask[60:63, 60:63] = 1
    shape = lesion_shape(mask)
    assert shape is not None
    assert shape.size == 60 / 200
    rows, columns = (np.flatnonzero(shape.outline.any(axis)) for axis in (1, 0))
    assert (len(columns), len(rows)) == (48, 16)
    assert lesion_shape(np.zeros((40, 40), np.uint8)) is None
    assert lesion_shape((np.eye(40) > 2).astype(np.uint8)) is None


def test_a_hole_runs_on_into_white_that_touches_it() -> None:
    image = torch.zeros(1, 3, 32, 32)
    image[..., 10:14] = 1  # a white stripe from top to bottom
    area = torch.zeros(1, 1, 32, 32)
    area[..., 8:12, 4:10] = 1
    hole = grow_hole(area.bool(), image)
    assert hole[0, 0, 8:12, 4:14].all()
    assert hole[0, 0, 0:8, 10:14].all()
    assert not hole[0, 0, :, :4].any()
    assert not hole[0, 0, 21:].any(), "no further than eight pixels"


def test_the_mean_of_the_rest() -> None:
    image, hole = crop(0), ellipse(0)
    filled = mean_filled(image, hole)
    assert np.array_equal(filled[~hole], image[~hole])
    assert np.abs(filled[hole] - image[~hole].mean(0)).max() <= 0.5


def test_holes_to_validate_with_lie_in_pictures_of_held_out_patients() -> None:
    pack = changed_pack()
    cases = hole_cases([pack], 6, 0)
    assert len(cases) == 6
    for case in cases:
        assert case.area is not None
        assert case.image.shape == case.target.shape == (SMALL, SMALL, 3)
        assert (case.image[case.area] == 255).all()
        assert np.array_equal(case.image[~case.area], case.target[~case.area])
    again = hole_cases([pack], 6, 0)
    assert all(np.array_equal(a.image, b.image) for a, b in zip(cases, again, strict=True))
    pack.rows = [row for row in pack.rows if row.task != "lesion"]
    assert hole_cases([pack], 6, 0) == []


def test_painted_lesions_are_asked_for_where_a_data_set_marks_organs_alone(small_views: None) -> None:
    """In packs of their own or together; lesions of data sets that mark them are there already."""
    whole = changed_pack()
    rows = [replace(row, source="one") for row in whole.rows]
    pairs = replace(whole, rows=[row for row in rows if row.task == "removal"])
    marks = replace(whole, rows=[row for row in rows if row.task == "lesion"])
    organs = replace(whole, rows=[replace(row, task="structure") for row in marks.rows])

    def lesions(packs: list[Pack], painted: bool) -> list[str]:
        data = CompactData(packs, TRAIN, torch.device("cpu"), Choices(painted=painted))
        return [one.row.id for one in data._overlay_rows if one.row.task == "lesion"]

    removals = [row.id for row in pairs.rows if row.fold == TRAIN]
    assert lesions([organs, pairs], True) == removals
    assert lesions([organs, pairs], False) == []
    assert lesions([marks, pairs], True) == lesions([marks, pairs], False)
