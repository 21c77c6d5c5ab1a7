"""Validation inside the loop: a perfect editor scores 1, one that does nothing gains nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import torch
from skimage.metrics import peak_signal_noise_ratio
from torch import nn

from mie.editors import Edited, Request
from mie.training import compact_validation
from mie.training.compact_validation import Validation
from mie.training.pack import VALIDATION, as_rgb
from tests.editors.compact.tiny import Words, network
from tests.training.compact_tiny import changed_pack, tiny_pack

CPU = torch.device("cpu")


def validation(count: int = 100, more: str | None = None) -> Validation:
    """All rows of the fold, those of the source `more` three times."""
    pack = tiny_pack()
    rows = [(pack, row) for row in pack.rows if row.fold == VALIDATION]
    rows += 2 * [(pack, row) for _, row in rows if row.source == more]
    return Validation(rows, count, Words(), CPU, 0)  # type: ignore[arg-type]


@pytest.fixture
def editor(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Request], np.ndarray]], None]:
    def set_editor(edit: Callable[[Request], np.ndarray]) -> None:
        made = lambda _, requests: [Edited(edit(request), {}) for request in requests]
        monkeypatch.setattr(compact_validation, "edit_all", made)

    return set_editor


def test_an_oracle_scores_one_and_gains_all_that_was_lost(editor) -> None:
    checked = validation()
    target = {(id(case.image), case.wording.prompt): case.target for case in checked.cases}
    editor(lambda request: target[id(request.image), request.instruction])
    figures = checked.figures(nn.Identity())
    pack = tiny_pack()
    lost = [
        100 - peak_signal_noise_ratio(as_rgb(pack.images[row.goal]), as_rgb(pack.images[row.input]))
        for row in pack.rows
        if row.goal is not None and row.fold == VALIDATION
    ]
    assert figures["dice_macro"] == 1
    assert figures["gain_db"] == pytest.approx(np.mean(lost))
    assert figures["score"] == pytest.approx(1 + np.mean(lost) / 50)
    assert figures["dice_seen_wordings"] == figures["dice_unseen_wordings"] == 1
    assert {k for k in figures if "/" in k} == {
        "dice/X-ray", "dice/fundus", "dice/microscopy", "gain_db/mri_noise",
    }  # fmt: skip


def test_doing_nothing_paints_and_gains_nothing(editor) -> None:
    editor(lambda request: request.image)
    figures = validation().figures(nn.Identity())
    assert figures["dice_macro"] == pytest.approx(0, abs=1e-6)
    assert figures["gain_db"] == 0
    assert figures["score"] == pytest.approx(0, abs=1e-6)


def test_means_are_over_groups_and_not_over_rows(editor) -> None:
    """Right in one source only: a third of the macro mean, whatever the number of its rows."""
    checked = validation(more="fundus")
    assert sum(case.row.source == "fundus" for case in checked.cases) == 3
    right = [case for case in checked.cases if case.row.source == "fundus"]
    target = {(id(case.image), case.wording.prompt): case.target for case in right}
    editor(lambda request: target.get((id(request.image), request.instruction), request.image))
    figures = checked.figures(nn.Identity())
    assert figures["dice/fundus"] == 1
    assert figures["dice_macro"] == figures["dice_sets"] == pytest.approx(1 / 3, abs=1e-6)


def test_every_second_wording_was_never_trained_on() -> None:
    checked, pack = validation(), tiny_pack()
    assert len(checked.cases) == 5
    for at, case in enumerate(checked.cases):
        ask = pack.instructions[case.row.instruction]
        assert case.seen == (at % 2 == 0 or not ask.held_out)
        assert case.wording in (ask.wordings if case.seen else ask.held_out)
    assert {case.seen for case in checked.cases} == {True, False}
    again = validation()
    assert [c.wording for c in again.cases] == [c.wording for c in checked.cases]
    assert len(validation(count=2).cases) == 2


def test_what_cannot_be_scored_is_no_number() -> None:
    none = Validation([], 10, Words(), CPU, 0)  # type: ignore[arg-type]
    figures = none.figures(nn.Identity())
    assert figures["score"] is None
    assert set(figures.values()) == {None}
    assert none.grid(nn.Identity()) is None


def test_the_sheet_shows_input_output_and_reference(editor) -> None:
    checked = validation()
    editor(lambda request: np.full_like(request.image, 77))
    sheet = checked.grid(nn.Identity())
    assert sheet is not None
    height, width = sheet.shape[:2]
    cell = compact_validation._CELL
    assert (height, width) == (2 * cell, 4 * 3 * cell), "five cases, four to a line"
    assert (sheet[:cell, cell : 2 * cell] == 77).all()
    first = checked.cases[0]
    for column, image in ((0, first.image), (2, first.target)):
        shown = sheet[:cell, column * cell : (column + 1) * cell]
        assert shown.mean() == pytest.approx(image.mean(), abs=3)


def test_a_real_network_goes_the_editor_s_own_way() -> None:
    """Every output has its image's size; the figures are those of `edit_all`, not of a second path."""
    checked = validation(count=2)
    with torch.no_grad():
        made = checked._outputs(network("perception"), checked.cases)
    assert [image.shape for image in made] == [case.image.shape for case in checked.cases]


def changes() -> Validation:
    pack = changed_pack()
    rows = [(pack, row) for row in pack.rows if row.fold == VALIDATION and row.perspective == "modification"]
    return Validation(rows, 100, Words(), CPU, 0)  # type: ignore[arg-type]


def test_modifications_are_measured_inside_their_area(editor) -> None:
    """By hand: PSNR of the pixels in the ellipse, over the input or, for holes, over the mean of the rest."""
    checked = changes()
    assert len(checked.cases) == 8
    shown = {}
    for case in checked.cases:
        half = (case.target.astype(int) + case.image) // 2
        shown[id(case.image), case.wording.prompt] = half.astype(np.uint8)
    editor(lambda request: shown[id(request.image), request.instruction])
    figures = checked.figures(nn.Identity())
    wanted: dict[str, list[float]] = {}
    for case in checked.cases:
        inside = case.area
        before = case.image.astype(float)
        if case.row.task in ("inpainting", "simulation"):
            before[inside] = np.rint(case.image[~inside].mean(0))
        made = shown[id(case.image), case.wording.prompt]
        psnr = [
            peak_signal_noise_ratio(case.target[inside], image[inside].astype(np.uint8), data_range=255)
            for image in (made, before)
        ]
        wanted.setdefault(case.row.task, []).append(psnr[0] - psnr[1])
    for task, gains in wanted.items():
        assert figures[f"change_gain_db/{task}"] == pytest.approx(np.mean(gains), abs=1e-6)
    overall = np.mean([np.mean(gains) for gains in wanted.values()])
    assert figures["change_gain_db"] == pytest.approx(overall)
    assert figures["score"] == pytest.approx(overall / 50)
    assert figures["change_b_psnr"] == 100, "outside the area nothing was touched"
    assert figures["dice_macro"] is None


def test_without_modifications_there_are_no_figures_of_them(editor) -> None:
    editor(lambda request: request.image)
    assert not [name for name in validation().figures(nn.Identity()) if name.startswith("change")]
