"""Reference images and demonstrations: stored with samples, shown to editors; old datasets as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import mie
from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.datasets.merge import merge
from mie.datasets.schema import SCHEMA, ShardWriter, has_references, read_rows, sample_digest, sample_from_row
from mie.datasets.verify import verify
from mie.datasets.write import write_dataset
from mie.editors.context import Demonstrations, in_context
from mie.errors import ConfigError, MieError
from mie.perspectives.perception.samples import Perception
from mie.records import Reference, Sample
from tests.conftest import crop, make_case

TERMS = {"test": {"name": "CC0-1.0", "use": "open", "basis": "stated"}}


def samples(count: int = 6, split: str = "test") -> list[Sample]:
    made = []
    for n in range(count):
        case = make_case(n, patient_id=f"test/p{n}")
        (sample,) = Perception().samples(case, split, 1)
        made.append(sample)
    return made


def written(folder: Path, items: list[Sample]) -> Dataset:
    write_dataset(
        items, folder, name=folder.name, description="", recipe={}, licenses=TERMS, deidentified=True
    )
    return Dataset(folder)


def shown(number: int = 50) -> tuple[Reference, ...]:
    return (
        Reference(crop(number, 64, 64), "reference", "the same eye a year before"),
        Reference(crop(number + 1, 48, 48), "before", "Paint the disc."),
        Reference(crop(number + 2, 48, 48), "after"),
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return written(tmp_path_factory.mktemp("plain") / "plain", samples())


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    items = samples()
    items[4] = replace(items[4], references=shown())
    return written(tmp_path_factory.mktemp("rich") / "rich", items)


def test_a_dataset_without_references_is_as_ever(plain):
    assert pq.read_schema(plain.shards()[0]).names == SCHEMA.names
    assert not plain.has_references
    assert "references" not in plain.info
    assert "references" not in (plain.folder / "README.md").read_text()
    assert [s.references for s in plain] == [()] * 6


def test_references_are_stored_and_read_back(plain, rich):
    assert rich.has_references
    assert rich.info["references"] == 1
    found = rich[4].references
    assert [(one.role, one.text) for one in found] == [(one.role, one.text) for one in shown()]
    assert all(np.array_equal(a.image, b.image) for a, b in zip(found, shown(), strict=True))
    assert rich[4].as_sample().references[0].role == "reference"
    assert verify(rich, workers=1).problems == []
    assert "`references`" in (rich.folder / "README.md").read_text()
    # Only the sample that has some gets another digest.
    before, after = plain.table(["sha256"])["sha256"], rich.table(["sha256"])["sha256"]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True] * 4 + [False, True]


def test_a_change_of_a_reference_changes_the_digest():
    sample = replace(samples(1)[0], references=shown())
    other = replace(sample, references=(replace(shown()[0], text="another eye"), *shown()[1:]))
    turned = replace(sample, references=(Reference(crop(50, 64, 64)[::-1].copy()), *shown()[1:]))
    assert len({sample_digest(s) for s in (sample, other, turned, replace(sample, references=()))}) == 4


def test_hugging_face_opens_it(rich):
    datasets = pytest.importorskip("datasets")
    data = datasets.load_dataset(str(rich.folder), split="test", cache_dir=str(rich.folder.parent / "cache"))
    assert data[4]["references"][0]["image"].size == (64, 64)
    assert not data[0]["references"]


def test_a_late_reference_widens_what_is_written(tmp_path):
    """The column comes with the thirty-third row, in the third row group."""
    from mie.datasets.schema import RowEncoder

    encoder = RowEncoder()
    base = samples(1)[0]
    with ShardWriter(tmp_path / "s.parquet") as writer:
        for n in range(40):
            one = replace(base, id=f"{n:04x}", references=shown() if n == 33 else ())
            writer.write(encoder.row(one)[0])
    rows = list(read_rows(tmp_path / "s.parquet"))
    assert has_references(tmp_path / "s.parquet")
    assert [bool(row["references"]) for row in rows] == [n == 33 for n in range(40)]
    assert len(sample_from_row(rows[33]).references) == 3


def test_all_shards_of_a_dataset_have_the_column_or_none(plain, rich, tmp_path):
    train = written(tmp_path / "train", [replace(s, id=f"{n:x}") for n, s in enumerate(samples(4, "val"))])
    mixed = [*samples(3, "train"), replace(samples(1)[0], references=shown())]
    mixed = [replace(s, id=f"{n:04x}", patient_id=f"q{n}") for n, s in enumerate(mixed)]
    assert {has_references(p) for p in written(tmp_path / "mixed", mixed).shards()} == {True}
    both = merge([rich, train], tmp_path / "both", workers=1)
    assert {has_references(path) for path in both.shards()} == {True}
    assert both.info["references"] == 1
    assert verify(both, workers=1).problems == []


def test_an_export_without_a_place_for_them_is_refused(rich, tmp_path):
    with pytest.raises(MieError, match="no place for reference images"):
        export(rich, tmp_path / "x", "miedb")


def test_an_editor_is_shown_them(rich, tmp_path):
    seen = {}

    def editor(image, instruction, references):
        seen[instruction] = [one.shape for one in references]
        return image

    mie.run(rich, editor, tmp_path / "run")
    asked = [text for text, shapes in seen.items() if shapes]
    assert len(asked) == 1
    assert seen[asked[0]] == [(64, 64, 3), (48, 48, 3), (48, 48, 3)]
    assert asked[0].startswith(
        "Image 2 shows the same eye a year before. "
        'Image 3 became image 4 by the instruction "Paint the disc.". Edit image 1 in the same way: '
    )
    told = []
    blind = mie.run(rich, lambda image, text: told.append(text) or image, tmp_path / "blind")
    assert sorted(told) == sorted(s.prompt for s in rich)
    assert blind.info["editor"]["meta"]["references"] is False


def test_demonstrations_are_drawn_of_other_patients_the_same_in_every_run(plain, tmp_path):
    seen: list[tuple[str, int]] = []

    def editor(image, instruction, references):
        seen.append((instruction, len(references)))
        return image

    run = mie.run(plain, editor, tmp_path / "a", demonstrations=2)
    assert {count for _, count in seen} == {4}
    assert run.info["config"]["demonstrations"] == 2
    first = sorted(seen)
    seen.clear()
    mie.run(plain, editor, tmp_path / "b", demonstrations=2)
    assert sorted(seen) == first
    drawn = Demonstrations(plain, 2)
    for sample in plain:
        before = [one.image for one in drawn.of(sample.id) if one.role == "before"]
        assert len(before) == 2
        assert not any(
            image.shape == sample.input.shape and (image == sample.input).all() for image in before
        )
    with pytest.raises(MieError, match="another run"):
        mie.run(plain, editor, tmp_path / "a")


def test_demonstrations_that_cannot_be_shown(plain, tmp_path):
    with pytest.raises(ConfigError, match="takes no further images"):
        mie.run(plain, "identity", tmp_path / "a", demonstrations=1)
    with pytest.raises(ConfigError, match="too few others"):
        mie.run(plain, lambda image, text, references: image, tmp_path / "a", demonstrations=6)
    with pytest.raises(ConfigError, match="at least 0"):
        mie.run(plain, "identity", tmp_path / "a", demonstrations=-1)


def test_instructions_without_context_stay_as_they_are():
    assert in_context("Do it.", (Reference(crop(1, 32, 32)),))[0] == "Do it."
