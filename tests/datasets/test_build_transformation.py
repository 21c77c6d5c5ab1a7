"""`mie build` with `recipe: {kind: transformation}`: one path for pairs, simulations and windows."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.recipe import parse_recipe
from mie.datasets.rejected import read_rejected
from mie.datasets.verify import check_sample, verify
from mie.errors import ConfigError
from tests.conftest import crop, folder_source, grainy, write_folder


def recipe(root: Path, body: dict, **changes) -> dict:
    mri = folder_source(root / "mri", name="scans", modality="MRI", anatomy="brain", targets=[])
    mri["layout"] = {"kind": "folder", "images": "images/{patient}_{id}.png"}
    pairs = folder_source(root / "pairs", name="pairs", modality="MRI", anatomy="brain", targets=[])
    pairs["layout"] = {"kind": "paired", "images": "T1/{patient}_{id}.png", "pair": "T2/{patient}_{id}.png"}
    pairs["pairing"] = {"target": "mri_sequence", "image": "T1", "pair": "T2", "directions": "both"}
    return {"name": "t", "recipe": {"kind": "transformation", **body}, "sources": [mri, pairs], **changes}


def parse(root: Path, body: dict | None = None, **changes):
    made = recipe(root, body or {}, **changes)
    return parse_recipe({**made, "keep_names": True}, where="t", base=root)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_folder(root / "mri", 6, patients=3)
    for n, path in enumerate(sorted((root / "mri/images").iterdir())):
        cv2.imwrite(str(path), grainy(cv2.imread(str(path), 0), n))
    for name in ("T1", "T2"):
        (root / "pairs" / name).mkdir(parents=True)
    for n in range(4):
        grey = crop(10 + n)[..., 1]
        cv2.imwrite(str(root / f"pairs/T1/p{n}_0.png"), grey)
        second = {2: grey, 3: np.roll(255 - grey, 7, 0)}.get(n, 255 - grey)
        cv2.imwrite(str(root / f"pairs/T2/p{n}_0.png"), second)
    return root


@pytest.fixture(scope="module")
def built(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "d"
    build(parse(data, {"per_case": 3}), folder, workers=1)
    return folder


def test_builds_and_verifies(built) -> None:
    samples = list(Dataset(built).samples())
    assert len([s for s in samples if s.source == "scans"]) == 18
    assert len([s for s in samples if s.source == "pairs"]) == 4
    assert {s.perspective for s in samples} == {"transformation"}
    found = verify(built, workers=1)
    assert found.ok, found.problems
    patients = {s.patient_id: set() for s in samples}
    for s in samples:
        patients[s.patient_id].add(s.split)
    assert all(len(splits) == 1 for splits in patients.values())


def test_wrong_pairs_stand_in_the_refusals_with_their_numbers(built) -> None:
    wrong = {(r.where, r.gate): r.reason for r in read_rejected(built / "rejected.parquet")}
    assert "differ by at most 0.000 grey levels" in wrong["T1/p2_0.png", "identical"]
    assert "misaligned by 7." in wrong["T1/p3_0.png", "misaligned"]


def test_the_same_bytes_with_more_workers_and_after_a_limit(data, built, tmp_path) -> None:
    build(parse(data, {"per_case": 3}), tmp_path / "d", workers=2)
    assert Dataset(tmp_path / "d").digest == Dataset(built).digest


def test_registration_rescues_the_shifted_pair(data, tmp_path) -> None:
    config = parse(data, {"register": True, "targets": ["mri_sequence"]})
    assert config.public()["recipe"]["register"] is True
    build(config, tmp_path / "d", workers=1)
    rescued = [s for s in Dataset(tmp_path / "d").samples() if s.case_id == "T1/p3_0.png"]
    assert len(rescued) == 2
    assert all(s.params["before"]["error"] > 6 for s in rescued)


def test_verify_sees_what_is_wrong(built) -> None:
    from dataclasses import replace

    pair = next(s for s in Dataset(built).samples() if s.source == "pairs")
    assert check_sample(pair) == []
    assert check_sample(replace(pair, target_image=pair.input))[0][0] == "pair"
    assert check_sample(replace(pair, prompt="Do something."))[0][0] == "prompt"
    mask = np.zeros(pair.input.shape[:2], np.uint8)
    assert check_sample(replace(pair, mask=mask, colour="red"))[0][0] == "overlay"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"targets": ["mri_moton"]}, "did you mean 'mri_motion'"),
        ({"windows": ["lungs"]}, "did you mean 'lung'"),
        ({"severity": {"mri_motion": {"rotation": 90}}}, "out of range"),
        ({"severity": {"low_dose_ct_soft": {"photons": 1}}}, "out of range"),
        ({"severity": {"ct_mri": {"x": 1}}}, "no severity"),
        ({"per_case": 0}, "greater than or equal to 1"),
        ({"targets": []}, "at least 1"),
        ({"tragets": ["mri_noise"]}, "did you mean 'targets'"),
    ],
)
def test_options_that_make_no_sense(tmp_path, body, says) -> None:
    with pytest.raises(ConfigError) as error:
        parse(tmp_path, body)
    assert says in str(error.value)


def test_an_unknown_kind_and_an_unknown_pairing(tmp_path) -> None:
    with pytest.raises(ConfigError):
        parse(tmp_path, {"kind": "transmutation"})
    body = recipe(tmp_path, {})
    body["sources"][1]["pairing"] = {"target": "ct_mir", "image": "CT", "pair": "MRI"}
    with pytest.raises(ConfigError) as error:
        parse_recipe(body, where="t", base=tmp_path)
    assert "did you mean 'ct_mri'" in str(error.value)
