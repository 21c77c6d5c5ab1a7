from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage import data

from mie.datasets import write
from mie.datasets.dataset import Dataset, dataset_digest
from mie.datasets.exports import export
from mie.datasets.imports import import_dataset
from mie.datasets.rejected import read_rejected
from mie.datasets.schema import sample_digest
from mie.datasets.write import write_dataset
from mie.errors import MieError
from mie.records import Rejection, Sample

ABOUT: dict[str, Any] = {
    "name": "x",
    "description": "",
    "recipe": {},
    "licenses": {},
    "deidentified": False,
}


def pixels_and_prompts(folder: Path) -> list[tuple[bytes, bytes, str, str]]:
    return [
        (s.input.tobytes(), s.target_image.tobytes(), s.prompt, s.split) for s in Dataset(folder).samples()
    ]


@pytest.mark.parametrize("format", ["miedb", "folder"])
def test_the_same_dataset_comes_back(dataset: Dataset, tmp_path: Path, format: str) -> None:
    export(dataset, tmp_path / "out", format)
    result = import_dataset(tmp_path / "out", tmp_path / "back", format)
    back = Dataset(tmp_path / "back")
    assert result.rejections == ()
    assert back.digest == dataset.digest
    assert back.digest == dataset_digest(sample_digest(sample) for sample in back.samples())
    for key in ("name", "description", "counts", "licenses"):
        assert back.info[key] == dataset.info[key]
    # What a folder says of itself is a stranger's word; only the user's own counts.
    assert dataset.info["deidentified"] is True
    assert back.info["deidentified"] is False
    vouched = import_dataset(tmp_path / "out", tmp_path / "vouched", format, deidentified=True)
    assert vouched.info["deidentified"] is True
    assert back.info["recipe"]["import"]["of"] == dataset.info["recipe"]


def test_one_split_comes_back_as_that_split(dataset: Dataset, tmp_path: Path) -> None:
    for format in ("miedb", "folder"):
        export(dataset, tmp_path / format, format, split="val")
        import_dataset(tmp_path / format, tmp_path / f"{format} set", format)
        back = Dataset(tmp_path / f"{format} set")
        assert list(back.table(["sha256"])["sha256"]) == list(dataset.table(["sha256"], "val")["sha256"])
        assert back.info["counts"]["by_split"] == {"val": len(back)}


def test_pixels_and_prompts_survive_without_the_sidecar(dataset: Dataset, tmp_path: Path) -> None:
    export(dataset, tmp_path / "out", "miedb")
    for left in [tmp_path / "out" / "mie.json", *tmp_path.rglob("mie.jsonl")]:
        left.unlink()
    for left in list((tmp_path / "out").glob("*/mask")):
        shutil.rmtree(left)
    import_dataset(tmp_path / "out", tmp_path / "back", "miedb")
    assert pixels_and_prompts(tmp_path / "back") == pixels_and_prompts(dataset.folder)
    for ours, theirs in zip(dataset.samples(), Dataset(tmp_path / "back").samples(), strict=True):
        assert ours.perspective == theirs.perspective
        assert set((ours.colour or "").split(",")) == set((theirs.colour or "").split(","))
        if ours.mask is None:
            assert theirs.mask is None
        elif "," not in ours.colour:
            agreement = np.mean(np.asarray(ours.mask) == theirs.mask)
            assert agreement > 0.995


def test_what_was_edited_in_an_export_says_so(dataset: Dataset, tmp_path: Path) -> None:
    export(dataset, tmp_path / "out", "miedb", split="test")
    path = tmp_path / "out" / "metadata.json"
    records = json.loads(path.read_text("utf-8"))
    records[0]["prompt"] = "Somebody wrote this by hand."
    records[1]["idx"] = 999  # no longer tied to its line of the sidecar
    path.write_text(json.dumps(records), "utf-8")
    import_dataset(tmp_path / "out", tmp_path / "back", "miedb")
    before, after = list(dataset.samples("test")), list(Dataset(tmp_path / "back").samples())
    assert after[0].prompt == "Somebody wrote this by hand."
    assert after[0].modality == before[0].modality
    assert after[0].params["edited_from"] == dataset.table(["sha256"], "test")["sha256"][0]
    assert after[1].modality == "unknown"
    assert [s.params for s in after[2:]] == [s.params for s in before[2:]]


def foreign(folder: Path, layout: dict[str, Any]) -> list[dict[str, Any]]:
    """A folder like the published one: shared inputs, numbers and words as idx, other alphabets."""
    for name in ("input", "output/组"):
        (folder / name).mkdir(parents=True)
    tissue = data.immunohistochemistry()
    grey = data.cell()[:90, :70]
    Image.fromarray(tissue[:60, :80]).save(folder / "input" / "a b.png")
    Image.fromarray(tissue[:64, :64]).save(folder / "input" / "photo.jpg", quality=90)
    Image.fromarray(grey).save(folder / "input" / "grey.png")
    red = tissue[:60, :80].astype(float)
    red[10:30, 5:40] = red[10:30, 5:40] * 0.4 + np.array([153.0, 0, 0])
    Image.fromarray(red.round().astype(np.uint8)).save(folder / "output" / "组" / "é_red.png")
    Image.fromarray(tissue[3:67, 3:67]).save(folder / "output" / "changed.jpg", quality=80)
    Image.fromarray(255 - grey).save(folder / "output" / "inv.png")
    several = tissue[:60, :80].astype(float)
    several[:20, :20] = several[:20, :20] * 0.4 + np.array([0, 153.0, 0])
    several[40:, 40:] = several[40:, 40:] * 0.4 + np.array([0, 0, 153.0])
    Image.fromarray(several.round().astype(np.uint8)).save(folder / "output" / "x_all.png")
    records = [
        {
            "idx": 7,
            "category": "Perception",
            "input_image": "input/a b.png",
            "output_image": "output/组/é_red.png",
            "prompt": '请用红色标出 the “nucleus” \\ "here".',
        },
        {
            "prompt": "",
            "note": "Multiclasses",
            "idx": "P-0003/b",
            "output_image": "output/x_all.png",
            "input_image": "./input/a b.png",
            "category": "Perception",
        },
        {
            "idx": -1,
            "category": "Modification",
            "input_image": "input/photo.jpg",
            "output_image": "output/changed.jpg",
            "prompt": "Remove it\n🙂",
            "keys": [1, {"b": 1.50, "a": None}],
        },
        {
            "idx": "7",
            "category": "Transformation",
            "input_image": "input/grey.png",
            "output_image": "output/inv.png",
            "prompt": "Invert.",
            "note": None,
        },
    ]
    with (folder / "metadata.json").open("w", encoding="utf-8", newline="") as file:
        json.dump(records, file, **layout)
    return records


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"indent": 4},
        {"indent": 2, "ensure_ascii": False},
        {"indent": "\t"},
        {"ensure_ascii": False, "separators": (",", ":")},
        {"indent": 1, "separators": (",", ":")},
    ],
    ids=str,
)
def test_a_foreign_folder_goes_back_to_the_same_bytes_and_pixels(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    records = foreign(tmp_path / "theirs", layout)
    result = import_dataset(tmp_path / "theirs", tmp_path / "set", "miedb")
    assert result.rejections == ()
    assert result.info["counts"]["by_split"] == {"test": 4}
    export(Dataset(tmp_path / "set"), tmp_path / "ours", "miedb", split="test")
    assert (tmp_path / "ours" / "metadata.json").read_bytes() == (
        tmp_path / "theirs" / "metadata.json"
    ).read_bytes()
    for record in records:
        for key in ("input_image", "output_image"):
            before, after = (
                Image.open(tmp_path / side / record[key]).convert("RGB") for side in ("theirs", "ours")
            )
            np.testing.assert_array_equal(np.asarray(before), np.asarray(after))
    # And once more, now with our sidecar beside it.
    import_dataset(tmp_path / "ours", tmp_path / "again", "miedb")
    assert Dataset(tmp_path / "again").digest == result.info["digest"]


def test_hostile_paths_in_a_dataset_are_not_followed(triplets: list[Sample], tmp_path: Path) -> None:
    kept = {
        "idx": 1,
        "input_image": "../../x.png",
        "output_image": "/tmp/x.png",
        "category": "",
        "prompt": "",
    }
    sample = replace(triplets[0], params={"miedb": {"record": json.dumps(kept)}})
    write_dataset([sample], tmp_path / "set", **ABOUT)
    export(Dataset(tmp_path / "set"), tmp_path / "deep" / "out", "miedb", split=sample.split)
    (record,) = json.loads((tmp_path / "deep" / "out" / "metadata.json").read_text())
    assert record["input_image"] == f"input/{sample.id}.png"
    assert {p.name for p in tmp_path.iterdir()} == {"set", "deep"}


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_VALUE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    prompts=st.lists(_TEXT, min_size=1, max_size=4),
    params=st.dictionaries(_TEXT, _VALUE | st.lists(_VALUE, max_size=3), max_size=4),
    patient=st.none() | _TEXT,
    classes=st.sampled_from([None, "red", "blue", "green,red", "red,green,blue"]),
)
def test_anything_that_can_be_stored_comes_back(
    triplets: list[Sample],
    tmp_path: Path,
    seed: int,
    size: tuple[int, int],
    prompts: list[str],
    params: dict[str, Any],
    patient: str | None,
    classes: str | None,
) -> None:
    draw = np.random.default_rng(seed)
    samples = [
        replace(
            triplets[0],
            id=f"{draw.integers(2**60):x}" if n else "Not/Hex …",
            split=str(draw.choice(["train", "val", "test"])),
            prompt=prompt,
            params=params,
            patient_id=patient,
            colour=classes,
            input=draw.integers(0, 256, (*size, 3), np.uint8),
            target_image=draw.integers(0, 256, (*size, 3), np.uint8),
            mask=None if classes is None else draw.integers(0, 256, size, np.uint8),
        )
        for n, prompt in enumerate(prompts)
    ]
    work = tmp_path / f"{seed}-{len(list(tmp_path.iterdir()))}"
    info = write_dataset(samples, work / "set", **ABOUT)
    for format in ("miedb", "folder"):
        export(Dataset(work / "set"), work / format, format)
        back = import_dataset(work / format, work / f"{format} set", format)
        assert back.rejections == ()
        assert back.info["digest"] == info["digest"]


def test_shards_are_filled_and_named_by_split(triplets: list[Sample], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(write, "ROWS_PER_SHARD", 2)
    rejection = Rejection("s", "w", "image", "broken", numbers={"n": 1})
    info = write_dataset([rejection, *triplets, triplets[0]], tmp_path / "set", **ABOUT)
    splits = info["counts"]["by_split"]
    expected = sorted(
        f"{split}-{n:05d}-of-{-(-count // 2):05d}.parquet"
        for split, count in splits.items()
        for n in range(-(-count // 2))
    )
    assert sorted(p.name for p in (tmp_path / "set" / "data").iterdir()) == expected
    assert sorted(p.name for p in (tmp_path / "set").iterdir()) == [
        "README.md",
        "data",
        "dataset.json",
        "rejected.parquet",
    ]
    assert info["rejected"] == {"duplicate": 1, "image": 1}
    assert read_rejected(tmp_path / "set" / "rejected.parquet")[0] == rejection
    stored = [s.id for s in Dataset(tmp_path / "set").samples()]
    assert stored == [s.id for split in ("train", "val", "test") for s in triplets if s.split == split]
    assert info["digest"] == dataset_digest(sample_digest(s) for s in Dataset(tmp_path / "set").samples())


def test_a_failed_write_leaves_no_dataset_and_can_be_repeated(triplets: list[Sample], tmp_path: Path) -> None:
    def failing():
        yield from triplets
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_dataset(failing(), tmp_path / "set", **ABOUT)
    assert [p.name for p in (tmp_path / "set").rglob("*")] in ([], [".lock"])
    # As after a kill: shards and half-written files, but no dataset.json.
    for left in (
        "parts/train-00000.parquet",
        "parts/.x.tmp",
        "data/test-00000-of-00001.parquet",
        "README.md",
    ):
        (tmp_path / "set" / left).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / left).write_text("half")
    info = write_dataset(triplets, tmp_path / "set", **ABOUT)
    assert len(list(Dataset(tmp_path / "set").samples())) == info["counts"]["samples"] == len(triplets)


@pytest.mark.parametrize("there", ["dataset.json", "notes.txt", "README.md", "data/mine.csv", "parts/plan"])
def test_never_writes_over_something_else(triplets: list[Sample], tmp_path: Path, there: str) -> None:
    path = tmp_path / "set" / there
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    with pytest.raises(MieError, match=r"taken|something else"):
        write_dataset(triplets, tmp_path / "set", **ABOUT)
    assert [p for p in (tmp_path / "set").rglob("*") if p.is_file()] == [path]
    assert path.read_text() == "precious"
