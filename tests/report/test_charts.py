"""Charts by their pixels: where marks stand, how large text is, what has no number."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

from mie.report import charts
from mie.report.charts import (
    COLOURS,
    distribution_chart,
    leaderboard_chart,
    means_chart,
    radar_chart,
    radars_for_page,
    turn_chart,
)
from mie.report.layouts import layout_of, metric
from mie.report.scored import Cell, Support
from mie.report.views import value_range
from tests.report.test_browser import SMALLEST

WIDTH = 3.6 * 220  # pixels of a PNG


def cell(mean: float, half: float = 0.0, n: int = 8, support: Support | None = None) -> Cell:
    return Cell(mean, mean - half, mean + half, n, 0, support=support)


def column(path: Path, colour: str) -> float:
    """The middle of all pixels of a colour, in shares of the picture's width."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    near = np.abs(pixels - np.round(255 * np.array(to_rgb(colour)))).max(axis=-1) < 12
    assert near.any()
    return float(np.nonzero(near)[1].mean()) / pixels.shape[1]


def document(**means):
    """Organ -> EA; None for an organ without a number."""
    groups = [{"group": {}, "metrics": {}}]
    for organ, mean in means.items():
        entry = {"mean": "nan" if mean is None else mean, "n": int(mean is not None), "unscored": 1}
        groups.append({"group": {"organ": organ}, "metrics": {"ea@1": entry}})
    return {"protocol": "medebench", "groups": groups}


def test_a_radar_and_no_radar(tmp_path):
    assert radar_chart({"a": document(eye=None)}, tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()
    runs = {"a": document(eye=0.5, skin=0.9, lung=None), "b": document(eye=0.2, skin=0.4, lung=0.7)}
    path = radar_chart(runs, tmp_path / "deep/chart.png")
    assert cv2.imread(str(path)) is not None
    first = path.read_bytes()
    radar_chart(runs, path)
    assert path.read_bytes() == first  # equal numbers, equal bytes
    assert radar_chart({"a": {**document(eye=0.5), "protocol": "imgedit"}}, tmp_path / "none.png") is None


@pytest.mark.parametrize(
    ("name", "low", "high", "expected"),
    [
        ("rubric", 48, 51, (0, 100)),
        ("rubric_1", 3.2, 3.3, (1, 5)),
        ("dice", 0.81, 0.82, (0, 1)),
        ("ssim", 0.81, 0.82, (0, 1)),
        ("ssim", -0.2, 0.82, (-1, 1)),
        ("unheard_of", 0.2, 0.3, (0, 1)),
        ("unheard_of", 48, 51, (0, 100)),
        ("unheard_of", 120, 130, (0, 130)),
        ("psnr", 30.0, 30.2, (27, 34)),  # 6 dB or more, whole numbers
        ("psnr", 20, 60, (17, 63)),
    ],
)
def test_an_axis_shows_the_whole_scale(name, low, high, expected):
    assert value_range(metric(name), [cell(low), cell(high)]) == expected


def test_differences_of_both_signs_keep_zero_in_range():
    low, high = value_range(metric("scale_gap"), [cell(-0.3, 0.1), cell(-0.2)])
    assert low < -0.4
    assert high > 0


def test_a_small_difference_looks_small(tmp_path):
    cells = {"a": cell(48), "b": cell(51)}
    leaderboard_chart(tmp_path, "rubric", "Rubric", metric("rubric"), cells, ["a", "b"])
    first, second = (column(tmp_path / "rubric.png", colour) for colour in COLOURS[:2])
    assert 0.02 < second - first < 0.035  # 3 of 100
    assert 0.4 < first < 0.55


def test_rows_have_their_run_s_colour_and_place(tmp_path):
    runs = ["one", "two", "three"]
    rows = {"CT": {"one": cell(0.1), "three": cell(0.9)}, "MRI": {"one": cell(0.1)}}
    chart = means_chart(tmp_path, "dice", "DICE by modality", metric("dice"), rows, runs)
    assert "CT: one .100, three .900; MRI: one .100" in chart.alt
    png = tmp_path / "dice.png"
    assert column(png, COLOURS[2]) - column(png, COLOURS[0]) > 0.4
    with pytest.raises(AssertionError):
        column(png, COLOURS[1])  # no number, no mark


@pytest.mark.parametrize("kind", ["leaderboard", "means", "distribution", "turns", "radar"])
def test_no_text_is_smaller_than_a_page_can_show(tmp_path, monkeypatch, kind):
    """On the page a chart is never narrower than 11/12.7 of what it is drawn for: see test_browser."""
    sizes: list[tuple[float, str]] = []
    save = charts._save

    def measured(figure, folder, name):
        figure.draw_without_rendering()
        texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        sizes.extend((text.get_size() * 96 / 72, text.get_text()) for text in texts)
        assert figure.get_size_inches()[0] == WIDTH / 220
        right = figure.bbox.x1
        for box in (text.get_window_extent() for text in texts):
            outside = box.x1 < 0 or box.x0 > right  # ticks beyond the axis have their text there
            assert outside or (box.x0 >= -1 and box.x1 <= right + 1), "text is cut off"
        return save(figure, folder, name)

    monkeypatch.setattr(charts, "_save", measured)
    runs = ["a rather long name of an editor, seed 3", "b"]
    support = Support(12, 3)
    cells = dict.fromkeys(runs, cell(0.5, 0.1, 1200, support))
    dice = metric("dice")
    if kind == "leaderboard":
        leaderboard_chart(tmp_path, "x", "x", dice, cells, runs)
    elif kind == "means":
        means_chart(tmp_path, "x", "x", dice, {"diabetic retinopathy, hard exudates": cells}, runs)
    elif kind == "distribution":
        values = dict.fromkeys(runs, np.linspace(0, 1, 1200))
        distribution_chart(tmp_path, "x", "x", dice, values, runs)
    elif kind == "turns":
        turn_chart(tmp_path, "x", "x", dice, {run: {1: cell(0.5), 2: cell(0.3)} for run in runs}, runs)
    else:
        organs = document(**{"abdominal wall": 0.5, "skin": 0.9, "lung": 0.2, "the left ventricle": 0.3})
        documents = dict.fromkeys(runs, organs)
        assert radars_for_page(documents, layout_of("medebench").radar, tmp_path, "x", runs)
    assert len(sizes) > 3
    assert min(sizes)[0] >= SMALLEST - 0.01, min(sizes)


def test_rows_say_how_many_patients(tmp_path, monkeypatch):
    texts: list[str] = []
    save = charts._save
    monkeypatch.setattr(
        charts, "_save", lambda f, *a: (texts.extend(t.get_text() for t in f.findobj(Text)), save(f, *a))[1]
    )
    rows = {
        "CT": {"a": cell(0.5, n=96, support=Support(12, 0))},
        "MRI": {"a": cell(0.5, n=30, support=Support(0, 30))},
    }
    means_chart(tmp_path, "x", "x", metric("dice"), rows, ["a"])
    assert {"n 96, 12 patients", "n 30, patients unknown"} <= set(texts)


def test_a_histogram_of_nothing_is_no_chart(tmp_path):
    nothing = {"a": np.array([np.nan, np.nan])}
    assert distribution_chart(tmp_path, "x", "x", metric("dice"), nothing, ["a"]) is None
    exact = {"a": np.array([np.inf, 30.0])}
    chart = distribution_chart(tmp_path, "x", "x", metric("psnr"), exact, ["a"])
    assert "a median 65.0" in chart.alt  # 100 dB stand for an exact match
