"""Batches of the compact editor: who is drawn, what is painted, and that both halves of a pair agree."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import torch

from mie.editors.compact.kinds import EditKind
from mie.training import compact_data
from mie.training.compact_data import Choices, CompactData, Views
from mie.training.pack import TRAIN
from mie.vocabulary import COLOURS, PERSPECTIVES
from tests.training.compact_tiny import SMALL, tiny_pack

SHARES = {"perception": 0.6, "transformation": 0.4}


@pytest.fixture(autouse=True)
def small_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_data, "SIDE", SMALL)
    monkeypatch.setattr(compact_data, "LARGE", 2 * SMALL)


@pytest.fixture
def data(small_views: None) -> CompactData:
    return CompactData([tiny_pack()], TRAIN, torch.device("cpu"))


def drawn(data: CompactData, batch: int = 40, seed: int = 0, absent: float = 0.0, **shares: float) -> Any:
    return data.choose(np.random.default_rng(seed), batch, shares or SHARES, absent)


def test_a_batch_holds_the_shares_and_perception_comes_first(data: CompactData) -> None:
    views = data.views(drawn(data), 0)
    kinds = [PERSPECTIVES[k] for k in views.perspective]
    assert kinds == ["perception"] * 24 + ["transformation"] * 16
    assert views.image.shape == (40, 3, SMALL, SMALL)
    assert views.overlay.shape == (24, 3, SMALL, SMALL)
    assert views.goal.shape == (16, 3, SMALL, SMALL)
    assert views.counted.shape == (24, 1, SMALL, SMALL)
    assert 0 <= views.image.min() < views.image.max() <= 1
    said = [data.prompts.texts[p] for p in views.prompt]
    assert all("noise" in text.lower() or "denoise" in text.lower() for text in said[24:])
    assert all("lung" in text or "disc" in text or "Nuclei" in text for text in said[:24])


def test_only_the_training_fold_and_its_wordings_are_seen(data: CompactData) -> None:
    pack = tiny_pack()
    trained = [row for row in pack.rows if row.fold == TRAIN]
    assert sum(len(pool) for pool in data.images if pool) == sum(row.mask is not None for row in trained)
    assert sum(len(pool) for pool in data.pairs if pool) == sum(row.goal is not None for row in trained)
    held_out = {w.prompt for ask in pack.instructions for w in ask.held_out}
    assert held_out
    assert not held_out & set(data.prompts.texts)


@pytest.mark.parametrize("shares", [{"perception": 1.0}, {"transformation": 1.0}])
def test_one_kind_alone(data: CompactData, shares: dict[str, float]) -> None:
    views = data.views(drawn(data, 6, **shares), 0)
    assert len(views.image) == len(views.grey) == len(views.prompt) == 6
    assert len(views.overlay) == (6 if "perception" in shares else 0)
    assert len(views.goal) == (6 if "transformation" in shares else 0)


def test_the_seed_alone_decides(data: CompactData) -> None:
    def batch(seed: int) -> Views:
        return data.views(drawn(data, 10, seed, absent=0.3), seed)

    one, again, other = batch(1), batch(1), batch(2)
    assert all(torch.equal(getattr(one, f.name), getattr(again, f.name)) for f in fields(Views))
    assert not torch.equal(one.image, other.image)


def test_what_is_painted_has_the_colours_of_the_words(data: CompactData) -> None:
    views = data.views(drawn(data, 40, perception=1.0), 3)
    for at, prompt in enumerate(views.prompt):
        text = data.prompts.texts[prompt]
        named = torch.tensor([colour.upper() in text for colour in COLOURS])
        assert (views.asked[at] == named).all()
        assert not views.overlay[at][~named].any(), "no other colour is painted"
        assert (views.overlay[at].sum(0) <= 1).all(), "a pixel has one class"
    painted = views.overlay.sum((2, 3)) > 0
    assert painted[views.asked].float().mean() > 0.8, "most views show what is asked for"
    assert (views.present == 1).all()


def test_each_class_has_its_own_colour_and_the_background_none(data: CompactData) -> None:
    """Where stripes are painted blue and ellipses red, their areas are about those of the masks."""
    views = data.views(drawn(data, 200, perception=1.0), 1)
    both = [n for n, p in enumerate(views.prompt) if data.prompts.texts[p].startswith("Nuclei")]
    pack = tiny_pack()
    rows = [row for row in pack.rows if row.fold == TRAIN and row.modality == "microscopy"]
    shares = [np.mean([(pack.masks[row.mask] == k).mean() for row in rows]) for k in (1, 2)]
    assert shares[1] > 3 * shares[0], "they could not be taken for each other"
    inside = views.counted[both].float().mean((1, 2, 3))
    painted = (views.overlay[both].mean((2, 3)) / inside[:, None]).mean(0)
    assert 0.5 < painted[0] / shares[0] < 1.7  # views zoom, and lose some of the border
    assert 0.5 < painted[2] / shares[1] < 1.7
    assert painted[1] == 0


def test_what_is_asked_in_vain_is_of_another_kind_of_picture(data: CompactData) -> None:
    chosen = drawn(data, 200, absent=0.5, perception=1.0)
    views = data.views(chosen, 0)
    absent = views.present == 0
    assert 0.35 < absent.float().mean() < 0.65
    assert not views.overlay[absent].any()
    assert not views.asked[absent].any()
    assert views.asked[~absent].any(1).all()
    # Only the X-rays are grey: in absent, they are never asked for the lung.
    lung = torch.tensor(["lung" in data.prompts.texts[p] for p in views.prompt])
    assert not (absent & lung & views.grey).any()
    assert (lung == views.grey)[~absent].all()


def test_what_two_kinds_of_picture_show_is_asked_of_neither_in_vain(small_views: None) -> None:
    """ "Paint the kidneys" says nothing of CT or MRI, and would be right on both."""
    pack = tiny_pack(pairs=False)
    lung = next(row for row in pack.rows if row.modality == "X-ray")
    pack.rows.append(replace(lung, id="more", modality="fundus", fold=TRAIN))
    data = CompactData([pack], TRAIN, torch.device("cpu"))
    items = drawn(data, 300, absent=0.9, perception=1.0)[EditKind.OVERLAY]
    asked = [data.prompts.texts[item.prompt] for item in items if item.absent and item.modality == "fundus"]
    assert asked
    assert not any("lung" in text for text in asked)


def test_both_halves_of_a_pair_show_the_same_place(data: CompactData) -> None:
    views = data.views(drawn(data, 20, transformation=1.0), 0)
    torch.testing.assert_close(views.goal, 1 - views.image, rtol=0, atol=1e-6)
    assert views.grey.all()


def test_grey_pictures_stay_grey(data: CompactData) -> None:
    views = data.views(drawn(data, 40), 5)
    assert views.grey.any()
    flat = views.image[views.grey]
    assert torch.equal(flat[:, 0], flat[:, 1])
    assert torch.equal(flat[:, 0], flat[:, 2])
    coloured = views.image[~views.grey]
    assert ((coloured[:, 0] - coloured[:, 2]).abs().mean((1, 2)) > 1e-3).float().mean() > 0.5


def test_sides_are_not_mirrored_and_only_some_pictures_turn(data: CompactData) -> None:
    items = drawn(data, 200, perception=1.0)[EditKind.OVERLAY]
    lung = {p for p, text in enumerate(data.prompts.texts) if "left lung" in text}
    assert all(item.flips == (item.prompt not in lung) for item in items)
    nuclei = {p for p, text in enumerate(data.prompts.texts) if text.startswith("Nuclei")}
    assert all(item.turns == (item.prompt in nuclei) for item in items)


def test_every_row_is_drawn(data: CompactData) -> None:
    chosen = drawn(data, 600)
    for kind, rows in ((EditKind.OVERLAY, 9), (EditKind.IMAGE, 4)):
        often = Counter((item.large, item.place) for item in chosen[kind])
        assert len(often) == rows
        assert [item.large for item in chosen[kind]] == sorted(item.large for item in chosen[kind])


def test_one_patient_fills_no_more_groups_by_other_choices_of_classes(small_views: None) -> None:
    pack = tiny_pack(pairs=False)
    one = {"patient_id": "p", "source": "volume"}
    pack.rows = [
        replace(row, target=f"a{row.id}, b", **one) if row.task == "holistic" else row for row in pack.rows
    ]
    groups = CompactData(
        [pack], TRAIN, torch.device("cpu"), Choices(merge=True, patients=True)
    ).overlay_groups
    assert groups is not None
    assert sorted(len(rows) for rows in groups.rows) == [3, 3, 3]
    # Three patients each, but for the three slices of one: sqrt(3 * 1) against 3, to the power of one half.
    assert sorted(groups.share / groups.share.max()) == pytest.approx([3**-0.25, 1, 1])
