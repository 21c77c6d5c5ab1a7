from __future__ import annotations

import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mie.datasets.dataset import Dataset, shard_name, write_info
from mie.datasets.schema import RowEncoder, ShardWriter
from mie.datasets.stats import dataset_stats, rows_for
from mie.errors import ImageError
from mie.images.png import encode_png, png_size
from mie.records import Sample

HEIGHT, WIDTH = 40, 50


def make_sample(number: int, areas: Sequence[tuple[str, int]], **changes: Any) -> Sample:
    """A sample with regions of these many pixels, one class each, in a 40x50 image."""
    image = np.full((HEIGHT, WIDTH, 3), number, np.uint8)
    mask = np.zeros(HEIGHT * WIDTH, np.uint8)
    start = 0
    for k, (_, pixels) in enumerate(areas, start=1):
        mask[start : start + pixels] = round(255 * k / len(areas))
        start += pixels
    names = [name for name, _ in areas]
    colours = ["red", "green", "blue"][: len(areas)]
    sample = Sample(
        id=f"{number:016x}",
        perspective="perception",
        task="structure" if len(areas) == 1 else "holistic",
        target=", ".join(names),
        modality="CT",
        anatomy="abdomen",
        prompt=f"Paint the {names[0]} in {colours[0]}.",
        prompt_template="Paint the {target} in {colour}.",
        description="",
        input=image,
        target_image=image,
        mask=mask.reshape(HEIGHT, WIDTH),
        colour=",".join(colours),
        split="train",
        bin=128,
        source="a",
        case_id=str(number),
        patient_id=None,
        recipe="perception",
        recipe_version=1,
        params={"classes": [{"target": n, "colour": c} for n, c in zip(names, colours, strict=True)]},
        seed=0,
    )
    return replace(sample, **changes)


def write_dataset(folder: Path, samples: Sequence[Sample], damage: bool = False) -> Dataset:
    for split in {s.split for s in samples}:
        encoder = RowEncoder()
        with ShardWriter(folder / "data" / shard_name(split, 0, 1)) as writer:
            for sample in samples:
                if sample.split == split:
                    row, _ = encoder.row(sample)
                    if damage:
                        row["input"] = {**row["input"], "bytes": row["input"]["bytes"][:33]}
                    writer.write(row)
    folder.mkdir(exist_ok=True)
    rejected = {"area": 2, "leak": 5}
    write_info(folder, {"name": "tiny", "counts": {"samples": len(samples)}, "rejected": rejected})
    return Dataset(folder)


@pytest.fixture
def samples() -> list[Sample]:
    large = np.zeros((60, 30, 3), np.uint8)
    return [
        make_sample(1, [("liver", 200)], patient_id="p1"),
        make_sample(2, [("liver", 400)], patient_id="p1", split="val", prompt="Mark it: THE liver's edge."),
        make_sample(3, [("liver", 100), ("left kidney", 60), ("spleen", 40)], patient_id="p2"),
        make_sample(4, [("left kidney", 20)], modality="MRI", split="test", bin=None, source="b"),
        # An edit without a region, and an image of another size.
        make_sample(
            5,
            [("image", 0)],
            perspective="transformation",
            task="denoising",
            modality="MRI",
            input=large,
            target_image=large,
            mask=None,
            colour=None,
            params={},
            prompt="Remove the noise.",
            prompt_template="Remove the noise.",
        ),
    ]


def test_counts(tmp_path: Path, samples: list[Sample]) -> None:
    stats = dataset_stats(write_dataset(tmp_path / "d", samples))
    assert stats.name == "tiny"
    assert stats.samples == 5
    assert list(stats.by_split.items()) == [("train", 3), ("val", 1), ("test", 1)]
    assert stats.by_perspective == {"perception": 4, "transformation": 1}
    assert stats.by_task == {"structure": 3, "denoising": 1, "holistic": 1}
    assert list(stats.by_modality.items()) == [("CT", 3), ("MRI", 2)]
    assert stats.by_anatomy == {"abdomen": 5}
    assert stats.by_source == {"a": 4, "b": 1}
    # A holistic sample counts for each of its targets and colours.
    assert list(stats.by_target.items()) == [("liver", 3), ("left kidney", 2), ("image", 1), ("spleen", 1)]
    assert stats.by_colour == {"red": 4, "green": 1, "blue": 1}
    assert list(stats.by_bin.items()) == [("128", 4), ("original", 1)]
    assert stats.modality_splits == {"CT": {"train": 2, "val": 1}, "MRI": {"train": 1, "test": 1}}
    assert stats.target_modalities["left kidney"] == {"CT": 1, "MRI": 1}
    assert stats.patients_known == 2
    assert stats.rejected == {"leak": 5, "area": 2}


def test_sizes_and_areas(tmp_path: Path, samples: list[Sample]) -> None:
    stats = dataset_stats(write_dataset(tmp_path / "d", samples))
    assert stats.sizes == [[HEIGHT, WIDTH, 4], [60, 30, 1]]
    assert (stats.heights["min"], stats.heights["median"], stats.heights["max"]) == (40, 40, 60)
    assert (stats.widths["min"], stats.widths["median"], stats.widths["max"]) == (30, 50, 50)
    # Of 2,000 pixels; the holistic sample has a region per class, and all three together.
    assert stats.areas == {"CT": pytest.approx([0.1, 0.1, 0.2]), "MRI": pytest.approx([0.01])}
    liver = stats.area_by_target["liver"]
    q1, median, q3 = statistics.quantiles([0.1, 0.2, 0.05], n=4, method="inclusive")
    assert liver == pytest.approx({"n": 3, "min": 0.05, "q1": q1, "median": median, "q3": q3, "max": 0.2})
    assert stats.area_by_target["spleen"]["max"] == pytest.approx(0.02)
    assert "image" not in stats.area_by_target


@pytest.mark.parametrize("n_classes", [1, 2, 3])
def test_each_class_has_its_own_area(tmp_path: Path, n_classes: int) -> None:
    areas = [("liver", 100), ("left kidney", 60), ("spleen", 20)][:n_classes]
    stats = dataset_stats(write_dataset(tmp_path / "d", [make_sample(1, areas)]))
    found = {name: five["max"] * HEIGHT * WIDTH for name, five in stats.area_by_target.items()}
    assert found == pytest.approx(dict(areas))


def test_a_single_class_is_all_that_is_not_background(tmp_path: Path) -> None:
    sample = make_sample(1, [("liver", 200)])
    assert sample.mask is not None
    stats = dataset_stats(write_dataset(tmp_path / "d", [replace(sample, mask=sample.mask // 255)]))
    assert stats.area_by_target["liver"]["max"] == pytest.approx(0.1)


def test_words(tmp_path: Path, samples: list[Sample]) -> None:
    stats = dataset_stats(write_dataset(tmp_path / "d", samples))
    # Prompts 1 and 3 are both "Paint the liver in red.".
    assert stats.distinct_prompts == 4
    assert stats.distinct_templates == 2
    assert stats.words["paint"] == 3
    assert stats.words["liver's"] == 1
    assert {"the", "in", "it"}.isdisjoint(stats.words)
    assert list(stats.words)[:2] == ["paint", "red"]
    assert (stats.prompt_words["min"], stats.prompt_words["median"], stats.prompt_words["max"]) == (3, 5, 6)


def test_input_pixels_are_not_decoded(tmp_path: Path, samples: list[Sample]) -> None:
    """Only the header of each input is left, and the numbers are the same."""
    whole = dataset_stats(write_dataset(tmp_path / "whole", samples))
    assert dataset_stats(write_dataset(tmp_path / "headers", samples, damage=True)) == whole


def test_json_and_progress_over_several_row_groups(tmp_path: Path) -> None:
    samples = [make_sample(i, [("liver", 10 + i)]) for i in range(40)]
    heard: list[tuple[int, int]] = []
    stats = dataset_stats(
        write_dataset(tmp_path / "d", samples), lambda done, total: heard.append((done, total))
    )
    assert heard == [(i, 40) for i in range(1, 41)]
    assert json.loads(json.dumps(stats.as_dict())) == stats.as_dict()
    assert stats.as_dict()["by_target"] == {"liver": 40}


def test_empty_dataset(tmp_path: Path) -> None:
    stats = dataset_stats(write_dataset(tmp_path / "d", []))
    assert stats.samples == 0
    assert stats.heights == {}
    assert [table.title for table in rows_for(stats)] == ["tiny", "rejected"]
    json.dumps(stats.as_dict())


def test_tables_are_rectangular_and_hold_the_counts(tmp_path: Path, samples: list[Sample]) -> None:
    stats = dataset_stats(write_dataset(tmp_path / "d", samples))
    tables = {title: (header, rows) for title, header, rows in rows_for(stats)}
    for header, rows in tables.values():
        assert rows
        assert all(len(row) == len(header) for row in rows)
    assert ("samples", 5) in tables["tiny"][1]
    assert ("rejected", 7) in tables["tiny"][1]
    assert tables["samples by split"][1] == [("train", 3), ("val", 1), ("test", 1)]
    assert tables["image size in pixels"][1] == [("height", 40, 40, 60), ("width", 30, 50, 50)]
    areas = {row[0]: row[1:] for row in tables["region area as a fraction of the image"][1]}
    assert areas["left kidney"] == pytest.approx((2, 0.01, 0.015, 0.02, 0.025, 0.03))


@given(st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_png_size_agrees_with_pillow(height: int, width: int, grey: bool) -> None:
    data = encode_png(np.zeros((height, width) if grey else (height, width, 3), np.uint8))
    assert png_size(data) == (height, width)
    assert Image.open(io.BytesIO(data)).size == (width, height)


@given(st.binary(max_size=40))
def test_png_size_refuses_what_is_no_png(data: bytes) -> None:
    with pytest.raises(ImageError, match="not a PNG"):
        png_size(data)
