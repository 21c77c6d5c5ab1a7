"""A dataset in a notebook: items, iteration, filters and the table, compared with what is stored."""

import base64
import re

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest

from mie.datasets import dataset as browse
from mie.datasets.build import build
from mie.datasets.dataset import Dataset, StoredSample
from mie.datasets.recipe import parse_recipe
from mie.errors import ConfigError
from mie.images.png import encode_png
from tests.conftest import folder_source, write_folder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Two data sets of different modality, in two splits, over several row groups."""
    root = tmp_path_factory.mktemp("browse")
    first = write_folder(root / "a", 30, patients=30, size=64)
    second = write_folder(root / "b", 12, patients=12, size=80)
    sources = [folder_source(first), folder_source(second, name="slices", modality="CT", anatomy="liver")]
    recipe = {"name": "two", "seed": 1, "sources": sources, "split": {"test": 0.4}}
    from pathlib import Path

    build(parse_recipe(recipe, where="t", base=Path()), root / "ds", workers=1)
    return Dataset(root / "ds")


def test_items_are_the_stored_samples(dataset):
    stored = list(dataset.samples())
    assert len(dataset) == len(stored) > browse._SHOWN
    assert sum(pq.read_metadata(p).num_row_groups for p in dataset.shards()) > 2
    for at in (0, 1, 17, len(stored) - 1, -1, -5):
        item, sample = dataset[at], stored[at]
        assert (item.id, item.prompt, item.params) == (sample.id, sample.prompt, sample.params)
        assert np.array_equal(item.input, sample.input)
        assert np.array_equal(item.target_image, sample.target_image)
        assert np.array_equal(item.mask, sample.mask)
        assert item.as_sample().parents == item.parents == sample.parents
    assert [s.id for s in dataset[3:9:2]] == [s.id for s in stored[3:9:2]]
    assert [s.id for s in dataset] == [s.id for s in stored]
    with pytest.raises(IndexError, match=f"there are {len(stored)}"):
        dataset[len(stored)]


def test_images_are_decoded_at_their_first_use_and_once(dataset, monkeypatch):
    decoded = []

    def counted(data, real=browse.decode_png):
        decoded.append(len(data))
        return real(data)

    monkeypatch.setattr(browse, "decode_png", counted)
    sample = dataset[0]
    assert sample.modality
    assert sample.prompt
    assert decoded == []
    assert sample.input is sample.input
    assert len(decoded) == 1


def test_a_sample_has_no_other_fields_and_a_short_text(dataset):
    sample = dataset[0]
    with pytest.raises(AttributeError, match="no field 'modalty'"):
        sample.modalty  # noqa: B018
    assert {"input", "mask", "modality", "prompt"} <= set(dir(sample))
    assert sample.id in repr(sample)
    assert len(repr(sample)) < 1000


def test_filters(dataset):
    stored = list(dataset.samples())
    ct = dataset.filter(modality="CT")
    assert [s.id for s in ct] == ct.ids() == [s.id for s in stored if s.modality == "CT"]
    assert 0 < len(ct) < len(dataset)
    test = ct.filter(split="test")
    assert test.ids() == [s.id for s in stored if s.modality == "CT" and s.split == "test"]
    assert test[0].id == test.ids()[0]
    assert test[-1].id == test.ids()[-1]
    assert len(dataset.filter(modality=["CT", "fundus"])) == len(dataset)
    assert dataset.filter(modality=("CT", "fundus")).filter(modality="CT").ids() == ct.ids()
    assert len(dataset.filter(modality="CT").filter(modality="fundus")) == 0
    assert dataset.filter(bin=None).ids() == [s.id for s in stored if s.bin is None]
    assert len(dataset.filter()) == len(dataset)
    assert "modality='CT'" in repr(ct)
    with pytest.raises(ConfigError, match="did you mean 'modality'"):
        dataset.filter(modalty="CT")
    with pytest.raises(ConfigError, match="column to filter by"):
        dataset.filter(input=3)


def test_the_table_shows_thumbnails_and_escapes_texts(dataset):
    page = dataset._repr_html_()
    assert page.count("<tr>") == 1 + browse._SHOWN
    assert f"{len(dataset) - browse._SHOWN} more" in page
    pictures = re.findall(r"data:image/png;base64,([^\"]+)", page)
    assert len(pictures) == 3 * browse._SHOWN
    first = cv2.imdecode(np.frombuffer(base64.b64decode(pictures[0]), np.uint8), 1)
    assert max(first.shape) <= browse._THUMBNAIL
    assert "more" not in dataset.filter(id=dataset[0].id)._repr_html_()
    png = {"bytes": encode_png(np.zeros((200, 100, 3), np.uint8))}
    row = {**dataset[0]._row, "prompt": "<script>alert(1)</script>", "target": "a & b", "input": png}
    page = StoredSample({**row, "mask": None, "target_image": {"bytes": b"no picture"}})._repr_html_()
    assert "<script>" not in page
    assert "a &amp; b" in page
    assert "not a PNG" in page
    assert "–" in page


def test_the_folder_can_be_given_as_the_dataset(dataset):
    assert Dataset(dataset).digest == dataset.digest
