from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib._pylab_helpers import Gcf
from matplotlib.colors import to_rgb
from PIL import Image

from mie.datasets.card import PLOTS, _plots
from mie.datasets.stats import Stats
from mie.errors import MieError
from mie.report.stats_plots import write_plots

EMPTY = Stats(
    name="tiny",
    samples=0,
    by_split={},
    by_perspective={},
    by_task={},
    by_modality={},
    by_anatomy={},
    by_source={},
    by_target={},
    by_colour={},
    by_bin={},
    modality_splits={},
    target_modalities={},
    heights={},
    widths={},
    sizes=[],
    area_by_target={},
    areas={},
    prompt_words={},
    distinct_prompts=0,
    distinct_templates=0,
    words={},
    patients_known=0,
    rejected={},
)
FULL = replace(
    EMPTY,
    samples=600,
    by_split={"train": 400, "val": 100, "test": 100},
    by_modality={"CT": 500, "MRI": 100},
    by_target={"liver": 400, "left kidney": 200},
    by_bin={"256": 500, "original": 100},
    modality_splits={"CT": {"train": 300, "val": 100, "test": 100}, "MRI": {"train": 100}},
    target_modalities={"liver": {"CT": 300, "MRI": 100}, "left kidney": {"CT": 200}},
    sizes=[[256, 200, 500], [1024, 900, 100]],
    areas={"CT": [0.001, 0.01, 0.02, 0.1], "MRI": [0.3]},
    words={"paint": 400, "liver": 400, "blue": 200},
)
ONE = replace(
    EMPTY,
    samples=1,
    by_split={"test": 1},
    by_modality={"CT": 1},
    by_target={"liver": 1},
    by_bin={"original": 1},
    modality_splits={"CT": {"test": 1}},
    target_modalities={"liver": {"CT": 1}},
    sizes=[[512, 512, 1]],
    areas={"CT": [1.0]},
    words={"liver": 1},
)


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


def count(image: np.ndarray, colour: str) -> int:
    return int((image == np.round(255 * np.array(to_rgb(colour)))).all(axis=-1).sum())


def below_legend(image: np.ndarray) -> np.ndarray:
    return image[100:]


@pytest.mark.parametrize("stats", [ONE, FULL], ids=["one", "full"])
def test_four_whole_pictures_and_nothing_else(tmp_path: Path, stats: Stats) -> None:
    folder = tmp_path / "new" / "stats"
    paths = write_plots(stats, folder)
    assert [path.stem for path in paths] == list(PLOTS)  # the card links to these names
    assert sorted(folder.iterdir()) == sorted(paths)
    for path in paths:
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert image.width == 1000
            assert not image.info.get("Software")
        assert pixels(path).std() > 0


def test_no_picture_without_anything_to_show(tmp_path: Path) -> None:
    write_plots(FULL, tmp_path)
    (tmp_path / "mine.png").write_bytes(b"x")
    whole_images = replace(FULL, areas={})  # transformation: no regions
    assert [path.stem for path in write_plots(whole_images, tmp_path)] == ["modality", "targets", "sizes"]
    assert not (tmp_path / "area.png").exists()  # not even that of an earlier time
    assert write_plots(EMPTY, tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["mine.png"]


def test_the_card_links_to_the_plots_that_are_written() -> None:
    for perspective, linked in (("perception", set(PLOTS)), ("transformation", set(PLOTS) - {"area"})):
        found = _plots({"counts": {"by_perspective": {perspective: 3}}})
        assert {name for name, _ in found} == linked


def test_a_folder_that_cannot_be_written_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(MieError, match="cannot write here"):
        write_plots(FULL, tmp_path / "file" / "stats")


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in write_plots(FULL, tmp_path / "a")]
    matplotlib.rcParams["font.size"] = 30  # a user's own settings do not show
    try:
        second = [path.read_bytes() for path in write_plots(FULL, tmp_path / "b")]
        assert matplotlib.rcParams["font.size"] == 30
    finally:
        matplotlib.rcParams["font.size"] = matplotlib.rcParamsDefault["font.size"]
    assert first == second
    assert not Gcf.figs  # pyplot knows of no figure


def test_old_plots_are_replaced(tmp_path: Path) -> None:
    before = [path.read_bytes() for path in write_plots(ONE, tmp_path)]
    after = [path.read_bytes() for path in write_plots(FULL, tmp_path)]
    assert all(a != b for a, b in zip(before, after, strict=True))


def test_bars_have_the_length_of_the_counts(tmp_path: Path) -> None:
    write_plots(FULL, tmp_path)
    image = below_legend(pixels(tmp_path / "modality.png"))
    train, val, test = (count(image, colour) for colour in ("#0072B2", "#E69F00", "#009E73"))
    assert train / val == pytest.approx(4, rel=0.05)
    assert test / val == pytest.approx(1, rel=0.05)
    image = below_legend(pixels(tmp_path / "targets.png"))
    assert count(image, "#332288") / count(image, "#88CCEE") == pytest.approx(5, rel=0.05)  # CT 500, MRI 100


def test_at_most_thirty_targets(tmp_path: Path) -> None:
    def height(n: int) -> int:
        names = [f"target {i}" for i in range(n)]
        counts = dict.fromkeys(names, 3)
        stats = replace(FULL, by_target=counts, target_modalities={name: {"CT": 3} for name in names})
        return len(pixels(write_plots(stats, tmp_path)[1]))

    assert height(29) < height(30) == height(200)


@pytest.mark.filterwarnings("error")
def test_strange_names_and_empty_regions(tmp_path: Path) -> None:
    name = "$x^{$ tumour \\frac " + "very " * 20 + "long"
    stats = replace(
        FULL,
        by_modality={"photoacoustic": 1},
        modality_splits={"photoacoustic": {"train": 1}},
        by_target={name: 1},
        target_modalities={name: {"photoacoustic": 1}},
        areas={"photoacoustic": [0.0, 0.5], "CT": [0.0]},
    )
    assert len(write_plots(stats, tmp_path)) == 4
