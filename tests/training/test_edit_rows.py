"""The mixture: weights act, a micro-batch has one bin, both images of a sample are treated alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")

from mie.datasets.dataset import Dataset
from mie.errors import ConfigError
from mie.training.config import parse_section
from mie.training.edit_rows import (
    EditRow,
    Mixture,
    MixtureConfig,
    Part,
    images_to_encode,
    place_image,
    read_edit_rows,
    read_mixture,
    spread,
)
from tests.training.omnigen2_tiny import write_edits


def row(name: str, bin_: int, perspective: str = "perception") -> EditRow:
    return EditRow(
        name, perspective, "anatomy", "disc", "CT", "p", "s", name, None, bin_, (bin_, bin_), "i", "t"
    )


def part(name: str, weight: float | None, **bins: int) -> Part:
    rows = [row(f"{name}-{b}-{n}", int(b[1:])) for b, count in bins.items() for n in range(count)]
    return Part(name, rows, weight)


def drawn(mixture: Mixture, steps: int = 400) -> Counter[tuple[str, int]]:
    counts: Counter[tuple[str, int]] = Counter()
    for step in range(steps):
        for plan in mixture.step(7, step, 16, 4):
            assert {one.bin for one in plan.rows} == {plan.bin}
            counts.update((one.id.split("-")[0], one.bin) for one in plan.rows)
    return counts


def test_weights_are_the_shares_of_the_samples_whatever_the_sizes() -> None:
    """Dataset a has nine times the samples and other bins; it gets its quarter."""
    mixture = Mixture([part("a", 1, b128=80, b256=10), part("b", 3, b256=9, b512=1)], [128, 256, 512])
    counts = drawn(mixture)
    whole = counts.total()
    shares = Counter(name for name, _ in counts.elements())
    assert shares["a"] / whole == pytest.approx(0.25, abs=0.02)
    assert counts["b", 512] / shares["b"] == pytest.approx(0.1, abs=0.02)
    assert counts["a", 128] / shares["a"] == pytest.approx(8 / 9, abs=0.02)


def test_without_weights_every_sample_counts_the_same() -> None:
    counts = drawn(Mixture([part("a", None, b128=30), part("b", None, b128=10)], [128]))
    assert counts["a", 128] / counts.total() == pytest.approx(0.75, abs=0.02)


def test_a_step_is_the_same_every_time_and_covers_its_places() -> None:
    mixture = Mixture([part("a", None, b128=30, b256=30)], [128, 256])
    first, again = (mixture.step(1, 5, 12, 3) for _ in range(2))
    assert first == again
    assert mixture.step(1, 6, 12, 3) != first
    assert sorted(place for plan in first for place in plan.places) == list(range(12))
    assert [plan.bin for plan in first] == sorted((plan.bin for plan in first), reverse=True)


@pytest.mark.parametrize(
    ("parts", "bins", "message"),
    [
        ([part("a", 0, b128=2), part("b", 0, b128=2)], [128], "weights of the datasets sum to 0"),
        ([part("a", 1, b128=2), part("b", None, b128=2)], [128], "some datasets have a weight"),
        ([part("a", None, b128=2)], [128, 512], r"no sample in the bin of 512 pixels[\s\S]*bins: \[128\]"),
        ([part("a", 1, b128=2), part("b", 1)], [128], "has no samples to train on"),
        ([part("a", None)], [128], "no samples to train on"),
    ],
)
def test_mixtures_that_cannot_be_drawn(parts: list[Part], bins: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mixture(parts, bins)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_edits(tmp_path_factory.mktemp("rows") / "dataset")


def mixture(dataset: Path, cache: Path, **changes: Any) -> list[Part]:
    config = parse_section(
        MixtureConfig, {"datasets": [{"path": str(dataset), **changes}], "bins": [32, 48]}, where="data"
    )
    return read_mixture(config, Path, "train", cache, lambda _: None)


def test_rows_are_listed_once_and_then_read(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Dataset(dataset)
    rows = read_edit_rows(opened, "train", [32, 48], tmp_path)
    assert Counter((one.perspective, one.bin) for one in rows) == {
        ("perception", 32): 4,
        ("perception", 48): 2,
        ("transformation", 32): 4,
        ("transformation", 48): 2,
    }
    assert {one.size for one in rows} == {(32, 32), (48, 48)}, "24 pixels are mirrored up to 32"
    monkeypatch.setattr(Dataset, "rows", lambda *a: pytest.fail("hashed again"))
    assert read_edit_rows(Dataset(dataset), "train", [32, 48], tmp_path) == rows


def test_input_and_target_are_placed_alike(dataset: Path, tmp_path: Path) -> None:
    opened = Dataset(dataset)
    rows = read_edit_rows(opened, "train", [64], tmp_path)
    wanted = {key for one in rows for key in (one.input, one.target_image)}
    images = {one.key: one.pixels for one in images_to_encode(opened, "train", [64], wanted)}
    assert set(images) == wanted
    for one, sample in zip(rows, opened.filter(split="train"), strict=True):
        a, b = images[one.input], images[one.target_image]
        assert a.shape == b.shape == (*one.size, 3)
        if sample.perspective == "perception":
            unpainted = (sample.mask == 0).mean()
            assert (a == b).all(2).mean() > unpainted - 0.35, "outside the mask nothing moves"


def test_edges_are_mirrored() -> None:
    image = np.arange(3 * 4 * 3, dtype=np.uint8).reshape(3, 4, 3)
    placed = place_image(image, (3, 4), (5, 4))
    assert (placed[3] == image[2]).all()
    assert (placed[4] == image[1]).all()


def test_filters(dataset: Path, tmp_path: Path) -> None:
    (alone,) = mixture(dataset, tmp_path, perspectives=["perception"])
    assert {one.perspective for one in alone.rows} == {"perception"}
    (rest,) = mixture(dataset, tmp_path, leave_out=[{"perspective": "perception", "target": "optic disc"}])
    assert {one.perspective for one in rest.rows} == {"transformation"}
    (chosen,) = mixture(dataset, tmp_path, ids=[alone.rows[0].id])
    assert [one.id for one in chosen.rows] == [alone.rows[0].id]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"perspectives": ["modification"]},
            r"no modification to train on[\s\S]*6 of perception, 6 of transf",
        ),
        ({"leave_out": [{"target": "optic disk"}]}, r"nothing to leave out[\s\S]*optic disc"),
        ({"leave_out": [{"colour": "red"}]}, "column to leave out by"),
        ({"leave_out": [{}]}, "would leave out everything"),
        ({"ids": ["no"]}, "no such sample"),
        ({"weigth": 1}, r"unknown key[\s\S]*weight"),
    ],
)
def test_filters_that_match_nothing(dataset: Path, tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mixture(dataset, tmp_path, **changes)


def test_validation_takes_turns() -> None:
    rows = [row(f"a{n}", 128) for n in range(9)] + [row("b", 128, "modification")]
    chosen = spread(rows, 4)
    assert Counter(one.perspective for one in chosen) == {"perception": 3, "modification": 1}
    assert spread(rows[::-1], 4) == chosen
