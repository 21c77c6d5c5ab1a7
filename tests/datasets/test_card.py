from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from mie.datasets.card import GATES, data_card, source_counts
from mie.datasets.dataset import dataset_digest, shard_name, write_info
from mie.datasets.rejected import write_rejected
from mie.datasets.schema import SCHEMA, RowEncoder, ShardWriter
from mie.datasets.stats import Tally
from mie.perspectives.perception.samples import Perception
from mie.records import Case, Rejection, Sample, Target

OPEN = {"name": "CC BY 4.0", "use": "open", "basis": "stated"}


def make_info(**changes: Any) -> dict[str, Any]:
    """What a finished build writes, for nine samples from two data sets."""
    info = {
        "name": "tiny",
        "description": "Nine samples for a test.",
        "digest": "ab" * 32,
        "counts": {
            "samples": 9,
            "by_split": {"test": 3, "train": 6},
            "by_perspective": {"perception": 9},
            "by_task": {"holistic": 3, "structure": 6},
            "by_modality": {"fundus": 6, "surgical photo": 3},
            "by_source": {"a": 6, "b": 3},
            "patients_known": 2,
        },
        "rejected": {"area": 1234, "leak": 2},
        "licenses": {"a": OPEN, "b": OPEN},
        "deidentified": True,
        "recipe": {
            "name": "tiny",
            "seed": 77,
            "recipe": {"kind": "perception", "tasks": ["structure", "holistic"], "opacity": 0.61},
            "split": {"val": 0.0, "test": 0.23},
            "bins": [128, 512],
            "gates": {"min_pixels": 24, "max_fraction": 0.9},
            "sources": [{"entry": {"name": "a", "title": "Eyes", "home": "https://eyes.example"}}],
        },
        "versions": {"mie": "0.1.0", "numpy": "2.4.6"},
    }
    return {**info, **changes}


def front_matter(card: str) -> dict[str, Any]:
    start, body, _ = re.split(r"^---\n", card, maxsplit=2, flags=re.M)
    assert start == ""
    return yaml.safe_load(body)


def section(card: str, title: str) -> str:
    return card.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def cells(row: str) -> list[str]:
    """The cells of a Markdown table row: a bar ends a cell unless a backslash stands before it."""
    found = re.findall(r"((?:\\.|[^\\|])*)\|", row)
    return [cell.strip() for cell in found[1:]]


def table(text: str, first: str) -> list[list[str]]:
    """The rows of the table whose header begins with `first`."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return rows


def test_front_matter_names_the_data_and_not_the_refusals() -> None:
    matter = front_matter(data_card(make_info()))
    assert matter["task_categories"] == ["image-to-image"]
    assert matter["pretty_name"] == "tiny"
    assert matter["size_categories"] == ["n<1K"]
    assert "surgical-photo" in matter["tags"]
    # By name: val has no samples and no files, and a pattern without files is an error to `datasets`.
    (config,) = matter["configs"]
    assert config["data_files"] == [
        {"split": "train", "path": "data/train-*.parquet"},
        {"split": "test", "path": "data/test-*.parquet"},
    ]


@pytest.mark.parametrize(
    ("n", "category"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (99_999, "10K<n<100K"), (10**6, "1M<n<10M")],
)
def test_size_category(n: int, category: str) -> None:
    info = make_info()
    info["counts"]["samples"] = n
    assert front_matter(data_card(info))["size_categories"] == [category]


@pytest.mark.parametrize("name", ["1e5", "on", "2024", "null", "a.b-c_d"])
def test_a_name_that_yaml_could_misread_stays_text(name: str) -> None:
    assert front_matter(data_card(make_info(name=name)))["pretty_name"] == name


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (OPEN, OPEN, {"license": "cc-by-4.0"}),
        ({**OPEN, "name": "CC0"}, {**OPEN, "name": "cc0-1.0"}, {"license": "cc0-1.0"}),
        ({**OPEN, "name": "Apache-2.0"}, {**OPEN, "name": "Apache 2.0"}, {"license": "apache-2.0"}),
        # One licence, but from memory: do not state it as a fact.
        (OPEN, {**OPEN, "basis": "recalled"}, {"license": "other", "license_name": "cc-by-4.0-unverified"}),
        # Two licences: named by the strictest use.
        (OPEN, {**OPEN, "name": "MIT"}, {"license": "other", "license_name": "mixed-open"}),
        (
            {"name": "CC BY-NC 4.0", "use": "non-commercial", "basis": "stated"},
            {"name": "terms", "use": "research", "basis": "stated"},
            {"license": "other", "license_name": "mixed-research"},
        ),
        (
            OPEN,
            {"name": "?", "use": "unknown", "basis": "stated"},
            {"license": "other", "license_name": "mixed-unknown"},
        ),
        # One licence that the Hub does not know.
        (
            {"name": "GlaS terms, research", "use": "research", "basis": "stated"},
            {"name": "GlaS terms, research", "use": "research", "basis": "stated"},
            {"license": "other", "license_name": "glas-terms-research"},
        ),
    ],
)
def test_licence_is_the_most_restrictive_that_is_true(a: dict, b: dict, expected: dict[str, str]) -> None:
    matter = front_matter(data_card(make_info(licenses={"a": a, "b": b})))
    assert {k: v for k, v in matter.items() if k.startswith("license")} == expected


def test_a_source_without_a_licence_counts_as_unknown() -> None:
    card = data_card(make_info(licenses={"a": OPEN}))
    assert front_matter(card)["license_name"] == "mixed-unknown"
    assert "`b`: unknown" in section(card, "Terms of use")


def test_counts_settings_and_refusals_are_in_the_tables() -> None:
    card = data_card(make_info())
    assert table(card, "split") == [["train", "6"], ["test", "3"]]
    assert table(card, "task") == [["holistic", "3"], ["structure", "6"]]
    assert table(card, "modality") == [["fundus", "6"], ["surgical photo", "3"]]
    assert table(card, "source") == [
        ["`a`", "[Eyes](https://eyes.example)", "6", "CC BY 4.0", "open"],
        ["`b`", "b", "3", "CC BY 4.0", "open"],
    ]
    settings = dict(table(card, "setting"))
    assert settings["seed"] == "77"
    assert settings["overlay opacity"] == "0.61"
    assert settings["longer side of train and val images"] == "128 px, 512 px"
    assert settings["share of test where a data set has no split"] == "0.23"
    assert settings["gate `max_fraction`"] == "0.9"
    assert table(card, "gate") == [["`area`", "1,234", GATES["area"]], ["`leak`", "2", GATES["leak"]]]
    assert "ab" * 32 in card
    assert dict(table(card, "software")) == {"mie": "0.1.0", "numpy": "2.4.6"}


def test_samples_by_perspective_stand_beside_the_published_images() -> None:
    tally = Tally()
    for source, perspective, n in (("a", "perception", 4), ("a", "modification", 2), ("b", "perception", 3)):
        for at in range(n):
            fields = {"task": "t", "modality": "CT", "patient_id": None, "sha256": f"{at}{source}"}
            tally.keep({"split": "train", "source": source, "perspective": perspective, **fields})
    recipe = {"sources": [{"entry": {"name": "a", "published": 1234}}, {"entry": {"name": "b"}}]}
    info = tally.info(name="x", description="", recipe=recipe, licenses={}, deidentified=True)
    text = section(data_card(info), "What is in it").split("| source |")[1]
    assert [cells(line)[2:6] for line in text.splitlines()[2:4]] == [
        ["6", "2", "4", "1,234"],
        ["3", "0", "3", "not found"],
    ]
    assert "by_source_and_perspective" not in make_info()["counts"]
    columns, rows = source_counts(make_info())  # one perspective, nothing published: as before
    assert (columns, rows["a"]) == (["samples"], ["6"])


def test_every_column_is_explained() -> None:
    rows = table(data_card(make_info()), "column")
    assert [name.strip("`") for name, _, _ in rows] == SCHEMA.names
    assert all(kind and meaning for _, kind, meaning in rows)


def test_terms_list_what_is_not_open() -> None:
    closed = {"name": "CC BY-NC 4.0", "use": "non-commercial", "basis": "recalled"}
    terms = section(
        data_card(make_info(licenses={"a": OPEN, "b": closed}, deidentified=False)), "Terms of use"
    )
    assert "Not for clinical use" in terms
    assert "- `b`: non-commercial (CC BY-NC 4.0)" in terms
    assert "`a`" not in terms
    assert "not verified" in terms
    assert "Not every provider" in terms


def test_without_refusals_recipe_or_samples() -> None:
    nothing = {k: {} for k in make_info()["counts"] if k.startswith("by_")}
    counts = {"samples": 0, "patients_known": 0, **nothing}
    card = data_card(make_info(rejected={}, recipe={}, counts=counts, licenses={}, description=""))
    assert "configs" not in front_matter(card)
    assert section(card, "What was refused").strip() == "Nothing."
    assert "imported" in section(card, "How the samples were made")


def test_an_unknown_gate_is_listed_too() -> None:
    rows = table(data_card(make_info(rejected={"novel": 4})), "gate")
    assert rows == [["`novel`", "4", "see the column `reason`"]]


def test_same_info_same_card_without_dates() -> None:
    info = make_info()
    before = copy.deepcopy(info)
    card = data_card(info)
    assert info == before
    assert card == data_card(json.loads(json.dumps(before)))
    assert not re.search(r"20\d\d-\d\d", card)


@example(title="left | right \\| \\", licence="a|b\nc", description="---\n# |")
@given(title=st.text(max_size=40), licence=st.text(max_size=40), description=st.text(max_size=40))
def test_strange_text_breaks_neither_front_matter_nor_tables(
    title: str, licence: str, description: str
) -> None:
    info = make_info(description=description, licenses={"a": {**OPEN, "name": licence}, "b": OPEN})
    info["recipe"]["sources"][0]["entry"] = {"name": "a", "title": title, "home": None}
    card = data_card(info)
    assert front_matter(card)["configs"]
    rows = table(card, "source")
    assert [len(row) for row in rows] == [5, 5]
    assert rows[0][4] == "open"


def make_samples() -> list[Sample]:
    """Three samples of each of three crops of a real fundus photograph: one crop per split, test unscaled."""
    photo = skimage.data.retina()
    samples: list[Sample] = []
    for at, split in enumerate(("train", "val", "test")):
        image = np.ascontiguousarray(photo[300 + 100 * at : 396 + 100 * at, 400:528])
        masks = {name: np.zeros(image.shape[:2], bool) for name in ("optic disc", "retinal vessels")}
        masks["optic disc"][10:40, 20:60] = True
        masks["retinal vessels"][60:80, 5:100] = True
        targets = {name: Target(name, "anatomy", name.endswith("s")) for name in masks}
        case = Case("retina", f"crop{at}", image, "fundus", "eye", masks, targets, patient_id=f"p{at}")
        samples += Perception().samples(case, split, 0)
    return samples


_READ = """
import json
from PIL import Image
found = {}
for split, rows in data.items():
    images = [(row["input"], row["target_image"], row["mask"]) for row in rows]
    assert all(isinstance(image, Image.Image) for three in images for image in three)
    found[split] = {
        "ids": list(rows["id"]),
        "parents": list(rows["parents"]),
        "modes": sorted({"/".join(image.mode for image in three) for three in images}),
        "sizes": [list(three[0].size) for three in images],
    }
print(json.dumps({"splits": found, "mie": sample.id, "pandas": len(table)}))
"""


def test_the_card_makes_the_folder_open_with_its_own_code(tmp_path: Path) -> None:
    samples, folder = make_samples(), tmp_path / "tiny"
    digests = []
    for split in ("train", "val", "test"):
        encoder = RowEncoder()
        with ShardWriter(folder / "data" / shard_name(split, 0, 1)) as writer:
            for sample in samples:
                if sample.split == split:
                    row, _ = encoder.row(sample)
                    writer.write(row)
                    digests.append(row["sha256"])
    # What else lies in a dataset folder must not be taken for data.
    write_rejected(folder / "rejected.parquet", [Rejection("retina", "crop9", "empty", "nothing marked")])
    (folder / "stats").mkdir()
    (folder / "stats" / "modality.png").write_bytes(b"not a picture")
    info = make_info(digest=dataset_digest(digests), licenses={"retina": OPEN})
    info["counts"] = {
        "samples": len(samples),
        **{
            f"by_{name}": dict(Counter(getattr(s, name) for s in samples))
            for name in ("split", "perspective", "task", "modality", "source")
        },
        "patients_known": 3,
    }
    write_info(folder, info)
    card = data_card(info)
    (folder / "README.md").write_text(card, encoding="utf-8")

    code = "\n".join(re.findall(r"```python\n(.*?)```", card, flags=re.S))
    code = code.replace("pandas.read_parquet", "table = pandas.read_parquet")
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code + _READ], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found["splits"]) == ["train", "val", "test"]
    for split, rows in found["splits"].items():
        expected = [s for s in samples if s.split == split]
        assert len(expected) == 3
        assert rows["ids"] == [s.id for s in expected]
        assert rows["parents"] == [[], [], []]
        assert rows["modes"] == ["RGB/RGB/L"]
        assert rows["sizes"] == [[s.input.shape[1], s.input.shape[0]] for s in expected]
    assert found["mie"] == samples[2].id
    assert found["pandas"] == len(samples)
