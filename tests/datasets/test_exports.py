from __future__ import annotations

import csv
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mie.core.hashing import file_stem
from mie.datasets.dataset import Dataset
from mie.datasets.exports import FORMATS, export, layouts
from mie.datasets.write import write_dataset
from mie.errors import ConfigError, MieError
from mie.records import Sample


def files(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def by_id(samples: list[Sample]) -> dict[str, Sample]:
    return {s.id: s for s in samples}


def pixels(data: bytes | Path) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data) if isinstance(data, bytes) else data))


# What came by an importer is written back as it came: tests/datasets/test_imported_lists.py.
@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"imgedit", "omni-iie"}))
def test_repeated_export_writes_the_same_bytes_and_reports_every_sample(
    dataset: Dataset, tmp_path: Path, format: str
) -> None:
    seen: list[tuple[int, int]] = []
    assert export(dataset, tmp_path / "a", format, progress=lambda *n: seen.append(n)) == len(dataset)
    assert seen == [(i + 1, len(dataset)) for i in range(len(dataset))]
    first = files(tmp_path / "a")
    (tmp_path / "a" / ".17.tmp").write_bytes(b"left by a killed run")
    export(dataset, tmp_path / "a", format)
    assert files(tmp_path / "a") == first
    assert ".lock" not in first


def test_png_bytes_are_copied_as_they_are(dataset: Dataset, tmp_path: Path) -> None:
    export(dataset, tmp_path / "out", "folder")
    for row in dataset.rows():
        for column, place in (("input", "input"), ("target_image", "target"), ("mask", "mask")):
            path = tmp_path / "out" / place / f"{row['id']}.png"
            if row[column] is None:
                assert not path.exists()
            else:
                assert path.read_bytes() == row[column]["bytes"]


def test_miedb_layout(dataset: Dataset, triplets: list[Sample], tmp_path: Path) -> None:
    export(dataset, tmp_path / "out", "miedb")
    samples = by_id(triplets)
    total = 0
    for split in ("train", "val", "test"):
        base = tmp_path / "out" / split
        records = json.loads((base / "metadata.json").read_text("utf-8"))
        assert [r["idx"] for r in records] == list(range(len(records)))
        for record in records:
            total += 1
            sample = samples[Path(record["input_image"]).stem]
            assert record["category"] == sample.perspective.capitalize()
            assert record["prompt"] == sample.prompt
            assert sample.split == split
            np.testing.assert_array_equal(pixels(base / record["input_image"]), sample.input)
            np.testing.assert_array_equal(pixels(base / record["output_image"]), sample.target_image)
            # What a reader of the layout takes for the colour.
            token = Path(record["output_image"]).stem.split("_")[-1]
            if sample.colour is None or "," in sample.colour:
                assert token not in ("red", "green", "blue")
            else:
                assert token == sample.colour
            assert record.get("note") == ("Multiclasses" if "," in (sample.colour or "") else None)
    assert total == len(samples)


def test_one_split_goes_straight_into_the_folder(dataset: Dataset, tmp_path: Path) -> None:
    count = export(dataset, tmp_path / "out", "miedb", split="val")
    assert count == dataset.info["counts"]["by_split"]["val"]
    assert len(json.loads((tmp_path / "out" / "metadata.json").read_text("utf-8"))) == count
    assert not (tmp_path / "out" / "val").exists()


def test_omnigen2_list(dataset: Dataset, triplets: list[Sample], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    export(dataset, Path("out"), "omnigen2")  # a relative folder, absolute paths inside
    seen = 0
    for split in ("train", "val", "test"):
        for text in (tmp_path / "out" / f"{split}.jsonl").read_bytes().decode().rstrip("\n").split("\n"):
            line = json.loads(text)
            assert set(line) == {"input_images", "output_image", "instruction", "task_type"}
            assert line["task_type"] == "edit"
            (path,) = map(Path, line["input_images"])
            sample = by_id(triplets)[path.stem]
            assert path.is_absolute()
            assert Path(line["output_image"]).is_absolute()
            assert line["instruction"] == sample.prompt
            assert sample.split == split
            np.testing.assert_array_equal(pixels(path), sample.input)
            np.testing.assert_array_equal(pixels(Path(line["output_image"])), sample.target_image)
            seen += 1
    assert seen == len(triplets)


def test_webdataset_tars(dataset: Dataset, triplets: list[Sample], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(layouts, "TAR_BYTES", 400_000)
    export(dataset, tmp_path / "out", "webdataset")
    tars = [
        p for split in ("train", "val", "test") for p in sorted((tmp_path / "out").glob(f"{split}-*.tar"))
    ]
    assert len([t for t in tars if t.name.startswith("test-")]) > 1
    seen: list[str] = []
    for path in tars:
        with tarfile.open(path) as tar:
            members = tar.getmembers()
            keys = [m.name.split(".")[0] for m in members]
            order = list(dict.fromkeys(keys))
            assert keys == [k for k in order for _ in range(keys.count(k))], "a sample's files stand together"
            assert all(m.mtime == m.uid == m.gid == 0 and m.isfile() and not m.uname for m in members)
            assert path.stat().st_size <= 400_000 + 2 * tarfile.RECORDSIZE or len(order) == 1
            for key in order:
                sample = by_id(triplets)[key]
                names = [m.name for m in members if m.name.startswith(key + ".")]
                assert names == sorted(names)
                parts = {name.split(".", 1)[1]: tar.extractfile(name).read() for name in names}
                assert path.name.startswith(sample.split)
                body = json.loads(parts["json"])
                assert body["prompt"] == sample.prompt
                assert body["params"] == json.loads(json.dumps(sample.params))
                np.testing.assert_array_equal(pixels(parts["input.png"]), sample.input)
                np.testing.assert_array_equal(pixels(parts["target.png"]), sample.target_image)
                if sample.mask is None:
                    assert "mask.png" not in parts
                else:
                    np.testing.assert_array_equal(pixels(parts["mask.png"]), sample.mask)
            seen += order
    assert seen == [row["id"] for row in dataset.rows(columns=["id"])]


def test_folder_lists(dataset: Dataset, triplets: list[Sample], tmp_path: Path) -> None:
    export(dataset, tmp_path / "out", "folder")
    with (tmp_path / "out" / "samples.csv").open(encoding="utf-8", newline="") as file:
        sheet = list(csv.DictReader(file))
    lines = (tmp_path / "out" / "samples.jsonl").read_bytes().decode().rstrip("\n").split("\n")
    bodies = [json.loads(line) for line in lines]
    assert [b["id"] for b in bodies] == [r["id"] for r in sheet] == [r["id"] for r in dataset.rows()]
    for body, row in zip(bodies, sheet, strict=True):
        assert row["prompt"] == body["prompt"] == by_id(triplets)[body["id"]].prompt
        assert json.loads(row["params"]) == body["params"]
        assert (tmp_path / "out" / body["target_image"]).is_file()


def test_refuses_a_folder_with_something_else_in_it(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("...")
    with pytest.raises(MieError, match="holds something else"):
        export(dataset, tmp_path / "mine", "miedb")
    assert files(tmp_path / "mine") == {"thesis.tex": b"..."}
    with pytest.raises(MieError, match="holds something else"):
        export(dataset, dataset.folder, "folder")
    export(dataset, tmp_path / "out", "miedb")
    for other in ({"format": "folder"}, {"format": "miedb", "split": "test"}):
        with pytest.raises(MieError, match="another export"):
            export(dataset, tmp_path / "out", **other)


def test_an_interrupted_export_is_marked_and_can_be_finished(dataset: Dataset, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(dataset, tmp_path / "a", "miedb", progress=stop)
    assert json.loads((tmp_path / "a" / "mie.json").read_text())["complete"] is False
    assert not list(tmp_path.rglob("metadata.json"))
    export(dataset, tmp_path / "a", "miedb")
    export(dataset, tmp_path / "b", "miedb")
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_a_missing_shard_is_noticed(triplets: list[Sample], tmp_path: Path) -> None:
    about = {"name": "x", "description": "", "recipe": {}, "licenses": {}, "deidentified": False}
    write_dataset(triplets, tmp_path / "set", **about)
    (tmp_path / "set" / "data" / "val-00000-of-00001.parquet").unlink()
    with pytest.raises(MieError, match="not whole"):
        export(Dataset(tmp_path / "set"), tmp_path / "out", "folder")


def test_typos_get_the_near_name(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'webdataset'"):
        export(dataset, tmp_path / "out", "webdatset")
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        export(dataset, tmp_path / "out", "miedb", split="trian")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "CON", "a/b", "é", "A" * 300, "x.y", ""])
def test_file_names_are_safe_whatever_the_id(name: str) -> None:
    assert set(file_stem(name)) <= set("0123456789abcdef")
    assert 0 < len(file_stem(name)) <= 64
    assert file_stem("00ff") == "00ff"
