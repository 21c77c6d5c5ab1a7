"""One recipe with several perspectives: one dataset, one digest, one leak check, each image read once."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import cv2
import numpy as np
import pytest

import mie
from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.datasets.imports import import_dataset
from mie.datasets.recipe import parse_recipe, read_recipe
from mie.datasets.rejected import read_rejected
from mie.datasets.stats import dataset_stats
from mie.datasets.verify import verify
from mie.errors import ConfigError
from mie.sources import folder as folder_module
from mie.sources.catalog import catalog
from mie.training.pack_datasets import pack_datasets
from tests.conftest import folder_source, grainy
from tests.perspectives.modification.lesions import disc, tissue, with_lesions

MODIFICATION = {"kind": "modification", "inpainter": "exemplar", "detector": None, "candidates": 1}
TRANSFORMATION = {"kind": "transformation", "targets": ["mri_noise", "mri_bias_field"], "per_case": 1}
KINDS = ["perception", "modification", "transformation"]


def write_scans(root: Path, count: int = 8) -> Path:
    """Brain scans with a dark lesion, two of each patient."""
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for n in range(count):
        mask = disc(45 + n, 50 + n, 7)
        image = with_lesions(tissue(n, grey=True), [mask])
        name = f"p{n // 2}_{n}.png"
        cv2.imwrite(str(root / "images" / name), grainy(image[..., 0], n))
        cv2.imwrite(str(root / "masks" / name), mask.astype(np.uint8) * 255)
    return root


def scans(root: Path, **changes: object) -> dict:
    source = folder_source(root, name="scans", modality="MRI", anatomy="brain", **changes)
    source["layout"] = {
        "kind": "folder",
        "images": "images/{patient}_{id}.png",
        "masks": "masks/{patient}_{id}.png",
    }
    source["targets"] = [{"name": "brain lesion", "kind": "lesion", "value": 255}]
    return source


def recipe(*sources: dict, perspectives: object = None, **changes: object):
    body = {"name": "all", "seed": 3, "split": {"test": 0.4}, "sources": list(sources), **changes}
    body["perspectives"] = perspectives or ["perception", MODIFICATION, TRANSFORMATION]
    return parse_recipe(body, where="t", base=Path())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scans(tmp_path_factory.mktemp("scans") / "s")


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "d"
    build(recipe(scans(root)), folder, workers=1)
    return folder


def single(root: Path, settings: object, folder: Path, **changes: object) -> Dataset:
    body = {"name": "one", "seed": 3, "split": {"test": 0.4}, "recipe": settings, "sources": [scans(root)]}
    build(parse_recipe({**body, **changes}, where="t", base=Path()), folder, workers=1)
    return Dataset(folder)


def test_one_dataset_holds_the_samples_of_three_builds(root, whole, tmp_path):
    """The same ids and the same contents, sample by sample, as three separate builds."""
    apart: dict[str, str] = {}
    for at, settings in enumerate(("perception", MODIFICATION, TRANSFORMATION)):
        table = single(root, settings, tmp_path / str(at)).table(["id", "sha256"])
        apart |= dict(zip(*table.values(), strict=True))
    dataset = Dataset(whole)
    assert list(dataset.info["counts"]["by_perspective"]) == sorted(KINDS)
    assert dict(zip(*dataset.table(["id", "sha256"]).values(), strict=True)) == apart
    assert verify(whole, workers=1).problems == []
    assert list(dataset.info["weights"]) == ["mri"]
    assert dataset.info["recipe"].keys() >= {"perspectives", "sources"}
    assert "recipe" not in dataset.info["recipe"]


def test_a_patient_is_on_one_side_for_every_perspective(whole):
    sides = defaultdict(set)
    kinds = defaultdict(set)
    for patient, split, kind in zip(
        *Dataset(whole).table(["patient_id", "split", "perspective"]).values(), strict=True
    ):
        sides[patient].add(split)
        kinds[patient].add(kind)
    assert all(len(found) == 1 for found in sides.values())
    assert {len(found) for found in kinds.values()} == {3}
    assert set().union(*sides.values()) == {"train", "test"}


def test_a_patient_that_one_data_set_trains_on_and_another_tests_on_stays_in_test(root, tmp_path):
    """Separate builds put such a patient into training for one perspective and into test for another."""
    train = scans(root, split="train", cohort="one", perspectives=["transformation"])
    test = {**scans(root, split="test", cohort="one", perspectives=["perception"]), "name": "again"}
    config = recipe(train, test, perspectives=["perception", TRANSFORMATION], split={"test": 1.0})
    build(config, tmp_path / "d", workers=1)
    dataset = Dataset(tmp_path / "d")
    assert dataset.info["counts"]["by_perspective"] == {"perception": 8}
    gone = [r for r in read_rejected(tmp_path / "d/rejected.parquet") if r.gate == "leak"]
    assert len(gone) == 8
    assert {r.perspective for r in gone} == {"transformation"}
    assert "is also in test" in gone[0].reason


def test_a_clean_target_image_leaks_like_an_input(root, tmp_path):
    """Without patients: a transformation's goal is the image that perception tests on."""
    plain = {"kind": "folder", "images": "images/{id}.png", "masks": "masks/{id}.png"}
    train = {**scans(root, split="train", perspectives=["transformation"]), "layout": plain}
    test = {**scans(root, split="test", perspectives=["perception"]), "layout": plain, "name": "again"}
    noisy = {"kind": "transformation", "targets": ["mri_noise"], "severity": {"mri_noise": {"percent": 15}}}
    config = recipe(train, test, perspectives=["perception", noisy], split={"test": 1.0})
    build(config, tmp_path / "d", workers=1)
    assert Dataset(tmp_path / "d").info["counts"]["by_perspective"] == {"perception": 8}


def test_each_image_is_decoded_once(root, tmp_path, monkeypatch):
    reads: Counter[str] = Counter()
    real = folder_module.read_picture

    def counted(path, **options):
        reads[path.name] += 1
        return real(path, **options)

    monkeypatch.setattr(folder_module, "read_picture", counted)
    build(recipe(scans(root), perspectives=["perception", TRANSFORMATION]), tmp_path / "d", workers=1)
    assert set(reads.values()) == {1}
    assert len(reads) == 8


def test_sources_and_limits_by_perspective(root, tmp_path):
    source = scans(root, limit={"modification": 2, "transformation": 1})
    config = recipe(source)
    build(config, tmp_path / "d", workers=1)
    cases = defaultdict(set)
    for kind, case in zip(*Dataset(tmp_path / "d").table(["perspective", "case_id"]).values(), strict=True):
        cases[kind].add(case)
    assert {kind: len(found) for kind, found in cases.items()} == {
        "perception": 8,
        "modification": 2,
        "transformation": 1,
    }
    assert config.limited(1).sources[0].limit == dict.fromkeys(KINDS, 1)


def test_rejections_say_their_perspective(root, tmp_path):
    strict = {**MODIFICATION, "limits": {"min_pixels": 5000}}
    build(recipe(scans(root), perspectives=["perception", strict]), tmp_path / "d", workers=1)
    rejected = read_rejected(tmp_path / "d/rejected.parquet")
    assert {r.perspective for r in rejected} == {"modification"}
    info = Dataset(tmp_path / "d").info
    assert info["modification"]["MRI"]["pairs"] == 0
    card = (tmp_path / "d/README.md").read_text()
    assert "| perspective | perception |" in card
    assert "modification: `inpainter`" in card
    assert "Counterfactual pairs" in card


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"perspectives": "perception"}, "`perspectives` is a list"),
        ({"perspectives": ["perception", "perseption"]}, "did you mean 'perception'"),
        ({"perspectives": ["perception", "perception"]}, "perspective listed twice: perception"),
        ({"recipe": "perception"}, "for one perspective or `perspectives` for several"),
        ({"source": {"perspectives": ["transformaton"]}}, "did you mean 'transformation'"),
        ({"source": {"perspectives": ["perception"]}}, "no data set is for the perspective 'modification'"),
        ({"source": {"limit": {"dialogue": 3}}}, "is for the perspective 'dialogue'"),
        ({"source": {"limit": {"perception": 0}}}, "greater than or equal to 1"),
        ({"source": {"perspectives": []}}, "at least 1"),
    ],
)
def test_recipes_that_make_no_sense(root, changes, says):
    source = scans(root, **changes.pop("source", {}))
    with pytest.raises(ConfigError, match=says):
        recipe(source, **changes)


def test_a_recipe_of_one_perspective_is_stored_as_ever(root):
    body = {"name": "one", "recipe": "perception", "sources": [scans(root)]}
    stored = parse_recipe(body, where="t", base=Path()).public()
    assert "perspectives" not in stored
    assert list(stored["sources"][0]) == ["entry", "limit"]


def test_every_verb_takes_a_dataset_of_several_perspectives(whole, tmp_path):
    dataset = Dataset(whole)
    assert set(dataset_stats(dataset).by_perspective) == set(KINDS)
    for layout in ("miedb", "folder"):
        assert export(dataset, tmp_path / layout, layout) == len(dataset)
    again = import_dataset(tmp_path / "miedb", tmp_path / "again", "miedb")
    assert again.info["counts"]["by_perspective"] == dataset.info["counts"]["by_perspective"]
    run = mie.run(dataset, "identity", tmp_path / "run", split="test")
    results = mie.score(run, workers=1)
    assert {"dice@1", "changed_psnr@1", "psnr@1"} <= set(results.keys)
    mie.report([run], tmp_path / "report")
    assert (tmp_path / "report/index.html").is_file()
    packed = pack_datasets([whole])
    assert {row.perspective for row in packed.rows} == set(KINDS)
    assert packed.facts["left_out"] == {}


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_of_all_perspectives_has_what_the_three_have(monkeypatch):
    monkeypatch.setenv("MIE_DATA", "/data")
    whole = read_recipe(EXAMPLES / "miedb.yaml")
    assert [maker.kind for maker in whole.makers] == KINDS
    for maker in whole.makers:
        one = read_recipe(EXAMPLES / f"{maker.kind}.yaml")
        used = {source.entry.name: source for source in whole.sources_of(maker)}
        own = {source.entry.name: source for source in one.sources}
        if maker.kind == "modification":  # alone it has data-2, microscopy and what is painted too
            painted = {lesion["source"] for lesion in one.makers[0].model_dump()["health"]}
            own = {name: s for name, s in own.items() if "data-2" not in str(s.root) and name not in painted}
            assert own.keys() - used.keys() == {"rings_prostate_glands"}
            assert used.keys() - own.keys() == {"idrid_exudates"}  # of which idrid_lesions in data-2 has all
        else:
            assert used.keys() == own.keys()
        assert all(used[name].root == own[name].root for name in used.keys() & own.keys())
    sides = defaultdict(set)
    for source in whole.sources:
        sides[source.entry.patient_cohort].add(source.entry.split)
    assert all(len(splits) == 1 for splits in sides.values())


def test_the_example_of_the_paper_names_every_entry_that_it_has(monkeypatch):
    monkeypatch.setenv("MIEDB_DATA", "/data")
    paper = read_recipe(EXAMPLES / "miedb-100k.yaml")
    names = {source.entry.name for source in paper.sources}
    new = {entry.name for entry in catalog().values() if entry.layout_basis != "files"}
    family = {entry.name for entry in catalog().values() if entry.layout.kind == "medsegbench"}
    assert names == new | family
    for source in paper.sources:
        paired = source.entry.pairing is not None
        assert (source.perspectives == ("transformation",)) == paired
