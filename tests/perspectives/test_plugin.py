"""A perspective of another package builds, verifies, gets a card, and comes back from an export."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mie.core.documents import facts_of
from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.datasets.imports import import_dataset
from mie.datasets.recipe import RecipeConfig, parse_recipe
from mie.datasets.verify import check_sample, verify
from mie.errors import ConfigError
from mie.perspectives import PERSPECTIVES
from tests.conftest import folder_source, write_folder

_PACKAGE = """
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from mie.perspectives import Card, Perspective, PerspectiveConfig
from mie.records import Rejection, Sample


class MirrorConfig(PerspectiveConfig):
    kind: Literal["mirroring"] = "mirroring"
    axis: Literal["rows", "columns"] = "columns"
    least: int = Field(3, ge=1)


@dataclass(frozen=True)
class Mirror:
    axis: int

    def samples(self, case, split, build_seed):
        if case.case_id.endswith("_3"):
            yield Rejection(case.source, case.case_id, "symmetry", "the image is its own mirror image")
            return
        yield Sample(
            id=f"{abs(hash((case.source, case.case_id))):016x}"[:16], perspective="mirroring", task="flip",
            target="image", modality=case.modality, anatomy=case.anatomy, prompt="Mirror the image.",
            prompt_template="Mirror the image.", description="mirrored", input=case.image,
            target_image=np.ascontiguousarray(np.flip(case.image, self.axis)), mask=None, colour=None,
            split=split, bin=None, source=case.source, case_id=case.case_id, patient_id=case.patient_id,
            recipe="mirroring", recipe_version=1, params={"axis": self.axis}, seed=0, license=case.license,
        )


def gate(sample):
    if (sample.input == sample.target_image).all():
        return Rejection(sample.source, sample.case_id, "symmetry", "mirrored to itself")


def prove(sample):
    same = (np.flip(sample.input, sample.params["axis"]) == sample.target_image).all()
    return [] if same else [("mirror", "the target image is no mirror image")]


def facts(rows, rejections, modalities):
    return {"mirrored": sum(row["task"] == "flip" for row in rows), "of": sorted(modalities.values())}


PERSPECTIVE = Perspective(
    name="mirroring",
    tasks=("flip",),
    edit="image",
    config=MirrorConfig,
    samples=lambda config, build: Mirror(1 if config.axis == "columns" else 0),
    gates=lambda config, limits: (gate,),
    prove=prove,
    metrics=("psnr",),
    facts=facts,
    card=Card(
        summary="; every image is mirrored",
        making=" Images are mirrored.",
        settings=(("mirror axis", "axis"),),
        gates={"symmetry": "the image is its own mirror image"},
        title="Mirrors",
        section=lambda facts: f"{facts['mirrored']} images.",
    ),
)
NOT_ONE = "a text"
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site = tmp_path / "site"
    (site / "mirrors-1.0.dist-info").mkdir(parents=True)
    (site / "mirrors.py").write_text(_PACKAGE)
    (site / "mirrors-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: mirrors\nVersion: 1.0\n"
    )
    (site / "mirrors-1.0.dist-info/entry_points.txt").write_text(
        "[mie.perspectives]\nmirroring = mirrors:PERSPECTIVE\nbroken = mirrors:NOT_ONE\ngone = nowhere:X\n"
    )
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("mirrors", None)


def recipe(root: Path, **config: object) -> RecipeConfig:
    body = {"name": "m", "recipe": {"kind": "mirroring", **config}, "sources": [folder_source(root)]}
    return parse_recipe(body, where="r.yaml", base=root)


@pytest.mark.usefixtures("plugin")
def test_a_perspective_of_another_package_works_everywhere(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", 12, patients=6, size=64)
    config = recipe(source, axis="rows")
    assert config.public()["recipe"] == {"kind": "mirroring", "axis": "rows", "least": 3}
    result = build(config, tmp_path / "d", workers=1)
    assert result.info["counts"]["by_perspective"] == {"mirroring": result.info["counts"]["samples"]}
    assert facts_of(result.info, "mirroring") == {
        "mirrored": result.info["counts"]["samples"],
        "of": [config.sources[0].entry.modality],
    }
    assert verify(tmp_path / "d", workers=1).problems == []
    card = (tmp_path / "d/README.md").read_text()
    for words in (
        "; every image is mirrored",
        "| mirror axis | rows |",
        "Images are mirrored.",
        "## Mirrors",
    ):
        assert words in card
    export(Dataset(tmp_path / "d"), tmp_path / "miedb", "miedb")
    again = import_dataset(tmp_path / "miedb", tmp_path / "again", "miedb")
    assert (again.info["digest"], again.rejections) == (result.info["digest"], ())


@pytest.mark.usefixtures("plugin")
def test_its_own_proof_and_gate_are_used(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", 6, patients=3, size=64)
    build(recipe(source), tmp_path / "d", workers=1)
    sample = next(Dataset(tmp_path / "d").samples())
    assert check_sample(sample) == []
    assert check_sample(replace(sample, target_image=sample.input)) == [
        ("mirror", "the target image is no mirror image")
    ]
    assert check_sample(replace(sample, task="rotation")) == [
        ("vocabulary", "unknown perspective or task: mirroring/rotation")
    ]


@pytest.mark.usefixtures("plugin")
def test_mistakes_in_its_recipe_are_named_as_ours_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        recipe(tmp_path, axes="rows")
    assert (error.value.what, error.value.where) == ("unknown key 'axes'", "r.yaml: recipe.axes")
    assert error.value.fix == "did you mean 'axis'?"
    with pytest.raises(ConfigError) as error:
        recipe(tmp_path, least=0)
    assert error.value.where == "r.yaml: recipe.least"
    schema = RecipeConfig.model_json_schema()
    kinds = schema["properties"]["recipe"]["discriminator"]["mapping"]
    assert set(kinds) == {"dialogue", "mirroring", "modification", "perception", "transformation"}
    assert schema["$defs"]["MirrorConfig"]["properties"]["least"]["minimum"] == 1


@pytest.mark.usefixtures("plugin")
def test_what_is_no_perspective_says_so(tmp_path: Path) -> None:
    for kind, words in (("broken", "'broken' is not a perspective"), ("gone", "cannot be imported")):
        body = {"name": "m", "recipe": kind, "sources": [folder_source(tmp_path)]}
        with pytest.raises(ConfigError, match=words):
            parse_recipe(body, where="r.yaml", base=tmp_path)


def test_ours_say_what_they_change() -> None:
    edits = {perspective.name: perspective.edit for perspective in PERSPECTIVES.values()}
    assert edits == {
        "dialogue": "image",
        "modification": "area",
        "perception": "overlay",
        "transformation": "image",
    }
    assert [PERSPECTIVES[name].needs_mask for name in sorted(edits)] == [False, True, True, False]
    assert PERSPECTIVES["perception"].patient_images == ("input",)
    assert PERSPECTIVES["modification"].patient_images == ("input", "target_image")


def test_a_perspective_that_nobody_offers_gets_the_nearest_name() -> None:
    with pytest.raises(ConfigError) as error:
        parse_recipe(
            {"name": "m", "recipe": "perseption", "sources": [{"name": "x"}]}, where="r", base=Path()
        )
    assert "x" in str(error.value)  # the data set comes first
    source = folder_source(Path("discs"))
    with pytest.raises(ConfigError) as error:
        parse_recipe({"name": "m", "recipe": "perseption", "sources": [source]}, where="r.yaml", base=Path())
    assert error.value.where == "r.yaml"
    assert error.value.fix == "did you mean 'perception'?"
