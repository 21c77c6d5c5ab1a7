"""Verify must notice every kind of damage: each test breaks a sound dataset in one way."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from mie.datasets.build import build
from mie.datasets.dataset import Dataset, dataset_digest, write_info
from mie.datasets.recipe import parse_recipe
from mie.datasets.schema import RowEncoder, ShardWriter, read_rows, sample_from_row
from mie.datasets.verify import check_sample, verify
from mie.errors import MieError
from mie.images.overlay import paint
from tests.conftest import folder_source, write_folder


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    root = write_folder(folder / "source", 30, patients=10)
    body = {"name": "discs", "seed": 3, "split": {"test": 0.3}, "sources": [folder_source(root)]}
    build(parse_recipe(body, where="t", base=Path()), folder / "dataset", workers=1)
    return folder / "dataset"


@pytest.fixture
def copy(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / "dataset"))


def rewrite(folder, change, *, honest=True):
    """Apply `change(sample)` to every sample; an honest forger also mends the digests and counts."""
    digests = []
    for path in Dataset(folder).shards():
        rows = list(read_rows(path))
        encoder = RowEncoder()
        with ShardWriter(path) as writer:
            for row in rows:
                new, _ = encoder.row(change(sample_from_row(row)))
                if not honest:
                    new["sha256"] = row["sha256"]
                writer.write(new)
                digests.append(new["sha256"])
    info = json.loads((folder / "dataset.json").read_text())
    info.pop("schema_version")
    write_info(folder, {**info, "digest": dataset_digest(digests)})


def checks(folder):
    return {p.check for p in verify(folder, workers=1).problems}


def test_a_sound_dataset_passes(sound):
    assert verify(sound, workers=2).ok


def test_a_flipped_bit_in_a_shard(copy):
    path = Dataset(copy).shards()[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    assert checks(copy)


def test_changed_pixels_under_an_old_digest(copy):
    def darker(sample):
        return replace(sample, input=sample.input // 2)

    rewrite(copy, darker, honest=False)
    assert "digest" in checks(copy)


def test_a_missing_and_a_strange_shard(copy):
    first, *_ = Dataset(copy).shards("train")
    (copy / "data" / "extra.parquet").write_bytes(first.read_bytes())
    first.unlink()
    found = verify(copy, workers=1).problems
    assert {"files", "digest", "counts"} <= {p.check for p in found}


def test_a_patient_on_both_sides_is_named(copy):
    rewrite(copy, lambda s: replace(s, patient_id="discs/p07"))
    leaks = [p for p in verify(copy, workers=1).problems if p.check == "patient leak"]
    assert len(leaks) == len(Dataset(copy).table(["id"], "train")["id"])
    assert "discs/p07" in leaks[0].reason


def test_the_same_picture_on_both_sides_is_named(copy):
    picture = next(Dataset(copy).samples("test"))

    def planted(sample):
        if sample.split == "test":
            return sample
        size = sample.input.shape[:2]
        image = picture.input[: size[0], : size[1]]
        return replace(sample, input=image, target_image=image)

    rewrite(copy, planted)
    assert {"image leak", "duplicate", "overlay"} & checks(copy)


def forge(folder, **changes):
    """Give the first training sample other content; `changes` may hold functions of the sample."""
    first = next(Dataset(folder).samples("train")).id

    def change(sample):
        if sample.id != first:
            return sample
        return replace(sample, **{k: v(sample) if callable(v) else v for k, v in changes.items()})

    rewrite(folder, change)


def test_a_nearly_equal_image_on_both_sides_is_found_by_its_own_check(copy):
    """A test image, scaled and brighter, with another region and patient: nothing else is wrong with it."""
    picture = next(Dataset(copy).samples("test")).input

    def image(sample):
        small = cv2.resize(picture, sample.input.shape[1::-1], interpolation=cv2.INTER_AREA)
        return np.minimum(small, 250) + np.uint8(5)

    def painted(sample):
        return paint(image(sample), sample.mask > 0, sample.colour, sample.params["opacity"])

    forge(copy, input=image, target_image=painted)
    problems = verify(copy, workers=1).problems
    assert {p.check for p in problems} == {"image leak"}
    assert len(problems) == 1
    assert "nearly equals one in test" in problems[0].reason


def test_a_repeated_sample_is_found_by_its_own_check(copy):
    """The same image and region twice in one split, under two ids and two cases."""
    _, second, *_ = Dataset(copy).samples("train")
    names = ("input", "target_image", "mask", "colour", "prompt", "params", "bin")
    forge(copy, **{name: getattr(second, name) for name in names})
    problems = verify(copy, workers=1).problems
    assert [p.check for p in problems] == ["duplicate"]
    assert second.id in problems[0].where


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda s: replace(s, prompt="Paint it."), "prompt"),
        (lambda s: replace(s, prompt=" "), "prompt"),
        (lambda s: replace(s, mask=np.roll(s.mask, 30, axis=1)), "overlay"),
        (lambda s: replace(s, target_image=s.input), "overlay"),
        (
            lambda s: replace(s, target_image=np.where(s.input > 0, s.target_image ^ 1, 0).astype(np.uint8)),
            "overlay",
        ),
        (lambda s: replace(s, target_image=s.target_image[:-1]), "size"),
        (lambda s: replace(s, bin=512), "bin"),
        (lambda s: replace(s, modality="sonar"), "vocabulary"),
        (lambda s: replace(s, task="guessing"), "vocabulary"),
        (lambda s: replace(s, colour="mauve"), "overlay"),
        (lambda s: replace(s, mask=None), "overlay"),
    ],
)
def test_one_sample_by_itself(sound, change, check):
    sample = next(Dataset(sound).samples("train"))
    assert check_sample(sample) == []
    assert check in {c for c, _ in check_sample(change(sample))}


def test_repeated_ids(copy):
    rewrite(copy, lambda s: replace(s, id="0" * 16))
    assert "ids" in checks(copy)


def test_an_unfinished_folder_is_no_dataset(copy):
    (copy / "dataset.json").unlink()
    with pytest.raises(MieError, match="no finished dataset"):
        verify(copy)
    (copy / "dataset.json").write_text("{")
    with pytest.raises(MieError, match="not valid JSON"):
        verify(copy)
    (copy / "dataset.json").write_text('{"schema_version": 99}')
    with pytest.raises(MieError, match="schema version"):
        verify(copy)
