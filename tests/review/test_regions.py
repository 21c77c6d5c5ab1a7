"""From models' proposals to a person's choice to a dataset with that mask."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mie.cli import app as cli
from mie.datasets.dataset import Dataset
from mie.datasets.verify import verify
from mie.errors import ConfigError, ImageError, MieError
from mie.images.overlay import deblend, dice
from mie.images.png import decode_png, encode_png
from mie.review.apply import apply_reviews
from mie.review.export import export_file
from mie.review.masks import RegionProposals
from mie.review.service import open_review
from tests.review.conftest import Review
from tests.scoring.benchmarks.medebench.tiny import tiny_models
from tests.scoring.benchmarks.runs import holistic, modification, structure, write_samples


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """A painted sample, one with two classes, and one without a mask."""
    prompt = "Paint the disc green and the cup blue."
    samples = [structure("aa", 1), replace(holistic("bb", 2), prompt=prompt), modification("cc", 3)]
    return write_samples(samples, tmp_path / "dataset")


def square(corner: int) -> np.ndarray:
    mask = np.zeros((40, 48), np.uint8)
    mask[corner : corner + 12, corner : corner + 12] = 255
    return mask


@pytest.fixture
def proposed(tmp_path: Path) -> Path:
    """As `mie propose` writes them: two regions each, one of them twice, one empty."""
    folder = tmp_path / "regions"
    folder.mkdir()
    lines = []
    for name in ("aa", "bb", "cc"):
        for number, mask in enumerate((square(4), square(4), square(20))):
            (folder / f"{name}_{number}.png").write_bytes(encode_png(mask))
        regions = ["0", "1", "2"] if name == "cc" else ["0", "1", "2", "source"]
        lines.append(json.dumps({"id": name, "name": "x", "regions": regions, "proposals": []}))
    (folder / "proposals.jsonl").write_text("\n".join(lines) + '\n{"id": "torn')
    return folder


def by_id(items: list[dict]) -> dict[str, dict]:
    return {item["sample_id"]: item for item in items}


def test_the_chosen_region_becomes_the_mask(dataset, proposed, place, tmp_path):
    service = open_review([dataset.folder], kinds=["mask"], db=place, proposals=proposed)
    rater = Review(service).person("Ada")
    items = by_id(rater.take("mask", 5))
    old = {s.id: s for s in dataset.samples()}
    labels = {}
    for name, item in items.items():
        shown = {p["id"]: decode_png(rater.http.get(p["image"]).content) for p in item["proposals"]}
        known = {"source": old[name].mask, "region-1": square(4), "region-2": square(20)}
        labels[name] = {
            true: label
            for label, mask in shown.items()
            for true, pixels in known.items()
            if pixels is not None and np.array_equal(mask, pixels)
        }
        assert list(shown) == ["A", "B", "C"][: len(shown)]
        assert len(shown) == (2 if name == "cc" else 3)
    assert set(labels["aa"]) == {"source", "region-1", "region-2"}  # the double is left out
    assert set(labels["bb"]) == {"source"}  # a region has no classes: shrunk and grown instead
    assert set(labels["cc"]) == {"region-1", "region-2"}
    assert [c["value"] for c in items["cc"]["classes"]] == [255]
    rater.answer(items["aa"], 422, choice="D")
    rater.answer(items["aa"], 422, choice="region-2")
    rater.answer(items["aa"], choice=labels["aa"]["region-2"])
    rater.answer(items["bb"], choice=labels["bb"]["source"])
    painted = np.roll(square(20), 3, axis=1)
    path, headers = f"/api/items/{items['cc']['id']}/mask", {"Content-Type": "image/png"}
    sent = rater.http.put(path, content=encode_png(painted), headers=headers)
    rater.answer(items["cc"], choice="repaired", mask=sent.json()["mask"])

    out = tmp_path / "masks"
    assert export_file(service, out) == 3
    lines = [json.loads(line) for line in (out / "masks.jsonl").read_text().splitlines()]
    said = {line["sample_id"]: line for line in lines}
    assert {name: line["choice"] for name, line in said.items()} == {
        "aa": "region-2", "bb": "source", "cc": "repaired"
    }  # fmt: skip
    assert np.array_equal(decode_png((out / "aa.png").read_bytes()), square(20))
    assert np.array_equal(decode_png((out / "cc.png").read_bytes()), painted)
    assert np.array_equal(decode_png((out / "bb.png").read_bytes()), old["bb"].mask)
    with pytest.raises(MieError, match="not empty"):
        export_file(service, out)
    service.database.close()

    applied = apply_reviews(place, dataset.folder, tmp_path / "new")
    assert applied.counts == {"rejected": 0, "repaired": 2, "divided": 0}
    assert verify(tmp_path / "new", workers=1).ok
    new = {s.parents[0] if s.parents else s.id: s for s in Dataset(tmp_path / "new").samples()}
    assert np.array_equal(new["aa"].mask, square(20))
    assert dice(deblend(new["aa"].input, new["aa"].target_image, new["aa"].colour), square(20) > 0) == 1
    assert np.array_equal(new["cc"].mask, painted)
    assert np.array_equal(new["cc"].target_image, old["cc"].target_image)  # nothing was painted there
    assert new["cc"].params["review"] == {"mask": "repaired"}


def test_the_folder_is_not_needed_again_and_not_exchanged(dataset, proposed, place):
    service = open_review([dataset.folder], kinds=["mask"], db=place, proposals=proposed)
    service.database.close()
    for path in proposed.glob("*.png"):
        path.unlink()
    service = open_review([dataset.folder], kinds=["mask"], db=place)
    (item,) = (i for i in Review(service).person("Ada").take("mask", 5) if i["sample_id"] == "cc")
    assert len(item["proposals"]) == 2
    service.database.close()
    (proposed / "proposals.jsonl").write_text("")
    with pytest.raises(ConfigError, match="started with other settings"):
        open_review([dataset.folder], kinds=["mask"], db=place, proposals=proposed)
    with pytest.raises(ConfigError, match="for masks"):
        open_review([dataset.folder], kinds=["inspect"], db=place, proposals=proposed)


def test_what_is_no_folder_of_regions_is_refused(proposed, tmp_path):
    with pytest.raises(MieError, match="mie propose"):
        RegionProposals(tmp_path)
    with pytest.raises(ImageError, match="differ in size"):
        RegionProposals(proposed).load("aa", (40, 47))
    (proposed / "proposals.jsonl").write_text('{"id": "aa"}\n')
    with pytest.raises(MieError, match="not a line of region proposals"):
        RegionProposals(proposed)


def test_from_models_to_the_page(dataset, tmp_path):
    pytest.importorskip("torch", reason="models are an optional extra")
    pytest.importorskip("transformers", reason="models are an optional extra")
    models = tiny_models(tmp_path / "models")
    folder = tmp_path / "regions"
    arguments = ["propose", str(dataset.folder), "-o", str(folder), "--device", "cpu", "--json"]
    arguments += ["--detector", str(models / "detector"), "--segmenter", str(models / "segmenter")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["samples"] == 3
    place = str(tmp_path / "r.sqlite")
    service = open_review([dataset.folder], kinds=["mask"], db=place, proposals=folder)
    rater = Review(service).person("Ada")
    for item in rater.take("mask", 5):
        files = [decode_png(p.read_bytes()) for p in sorted(folder.glob(f"{item['sample_id']}_?.png"))]
        fresh = [not any((f == g).all() for g in files[:n]) for n, f in enumerate(files)]
        kept = [f for f, is_fresh in zip(files, fresh, strict=True) if is_fresh and f.any()]
        shown = [decode_png(rater.http.get(one["image"]).content) for one in item["proposals"]]
        found = [any(np.array_equal(one, mask) for one in shown) for mask in kept]
        assert all(found) == (item["sample_id"] != "bb")
        assert len(shown) == {"aa": len(kept) + 1, "bb": 3, "cc": len(kept)}[item["sample_id"]]
    service.database.close()
