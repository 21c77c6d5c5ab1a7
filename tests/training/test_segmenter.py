"""A segmenter trained on a CPU from a small pack: which images it learns from, and what comes out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import torch

from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.networks.unet import UNet
from mie.perspectives.modification.detectors import make_detector
from mie.perspectives.modification.detectors.quality import measure
from mie.training.config import TrainConfig, parse_config, read_config
from mie.training.folder import read_log
from mie.training.loop import train
from mie.training.pack import TRAIN, VALIDATION, Instruction, Pack, Row, Wording, as_rgb, write_pack
from mie.training.segmenter import RowFilter, Segmenter, SegmenterData, counts, marked_images
from tests import forked_python
from tests.conftest import crop, ellipse

ROOT = Path(__file__).parents[2]
SIDE = 64
SAID = Wording("Mark it in RED", "Mark it in RED", ("red",))


def lesion_image(number: int) -> tuple[np.ndarray, np.ndarray]:
    """A real crop with a dark blue blot, and where it is."""
    mask = ellipse(number, 72, 96)
    image = crop(number, 72, 96)
    return np.where(mask[..., None], (image // 4 + (10, 10, 120)).astype(np.uint8), image), mask


def row(number: int, image: int, mask: int | None, **changes: Any) -> Row:
    body: dict[str, Any] = {
        "id": f"row-{number}", "perspective": "perception", "task": "lesion", "target": "skin lesion",
        "key": None, "modality": "dermoscopy", "anatomy": "skin", "source": "skin", "patient_id": f"p{image}",
        "license": "CC0-1.0", "fold": TRAIN, "input": image, "goal": None, "mask": mask, "classes": 1,
        "instruction": 0,
    }  # fmt: skip
    return Row(**body | changes)


def made_pack() -> Pack:
    """20 images with a blot (5 held out), two of them with a second lesion, and images without."""
    pack = Pack(
        [], [], [], [Instruction("perception/lesion/skin lesion/dermoscopy", (SAID,))], {"made": "here"}
    )
    for number in range(20):
        image, mask = lesion_image(number)
        fold = VALIDATION if number % 4 == 3 else TRAIN
        pack.images.append(image)
        pack.masks.append(mask.view(np.uint8))
        pack.rows.append(row(number, number, number, fold=fold))
    second = np.zeros((72, 96), np.uint8)
    second[60:70, 80:90] = 1
    pack.masks.append(second)
    pack.rows += [row(100 + at, at, 20, target="naevus") for at in (0, 1)]
    # The data set marks lesions, and marks none here: healthy. The other one marks only hair.
    for at, source, fold in ((20, "skin", TRAIN), (21, "skin", VALIDATION), (22, "hair only", TRAIN)):
        pack.images.append(crop(at, 72, 96))
        pack.rows.append(row(at, at, 0, task="structure", target="hair", source=source, fold=fold))
    ct = replace(row(30, 0, 0), modality="CT", source="ct", target="left kidney", task="structure")
    pack.images.append(crop(23, 72, 96)[..., 0])
    pack.rows += [replace(ct, input=23), replace(ct, id="row-31", input=23, target="liver")]
    return pack


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("segmenter") / "pack"
    write_pack(path, made_pack())
    return path


def configured(pack: Path, **changes: Any) -> TrainConfig:
    body: dict[str, Any] = {
        "name": "spots",
        "trainee": "segmenter",
        "seed": 3,
        "steps": 40,
        "batch": 8,
        "optimizer": {"lr": 0.01, "warmup": 4},
        "ema": 0.9,
        "precision": "fp32",
        "validate": {"every": 40},
        "log_every": 10,
        "data": {"packs": [str(pack)], "family": "dermoscopy", "side": SIDE},
        "model": {"encoder": "none", "widths": [8, 16, 16, 16, 16], "down": [1, 1, 0, 0, 1]},
    }
    return parse_config(body | changes)


@pytest.fixture(scope="module")
def trained(pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "out"
    train(configured(pack), out, device="cpu")
    return out


def test_all_lesions_of_an_image_are_one_mask_and_only_a_marking_data_set_says_healthy() -> None:
    pack = made_pack()
    images = marked_images([pack], RowFilter("lesion", family="dermoscopy"))
    assert counts(images) == {"images": 22, "healthy": 2, "patients": 22}
    np.testing.assert_array_equal(images[0].mask, (pack.masks[0] | pack.masks[20]) > 0)
    np.testing.assert_array_equal(images[2].mask, pack.masks[2] > 0)
    assert {one.source for one in images} == {"skin"}
    assert [one.patient for one in images if one.held_out] == ["p3", "p7", "p11", "p15", "p19", "p21"]
    assert [one.patient for one in images if not one.mask.any()] == ["p20", "p21"]


def test_a_specialist_sees_its_own_rows_alone() -> None:
    pack = made_pack()
    images = marked_images([pack], RowFilter("lesion", sources=("skin",), targets=("naevus",)))
    assert [one.patient for one in images] == ["p0", "p1"]
    np.testing.assert_array_equal(images[0].mask, pack.masks[20] > 0)
    kidney = marked_images([pack], RowFilter("structure", sources=("ct",), targets=("left kidney",)))
    liver = marked_images([pack], RowFilter("structure", sources=("ct",), targets=("liver",)))
    assert [one.flips for one in kidney + liver] == [False, True]
    assert not kidney[0].turns
    assert images[0].turns


def test_pairs_teach_removed_and_painted_lesions_of_other_patients_than_the_held_out() -> None:
    """Pairs lie in a pack of their own: what a data set marks, the other pack says."""
    first, pairs = made_pack(), made_pack()
    removal = replace(first.rows[0], task="removal", fold=TRAIN, input=1, goal=2)
    skin = [replace(removal, id=f"pair-{at}", patient_id=f"p{at}") for at in (0, 3)]  # p3 is held out
    pairs.rows = [*skin, replace(removal, id="pair-hair", source="hair only", patient_id="p22")]
    family = RowFilter("lesion", family="dermoscopy")
    plain = marked_images([first, pairs], family)
    added = marked_images([first, pairs], family, pairs=True)[len(plain) :]
    shown = [(one.patient, bool(one.mask.any()), one.held_out) for one in added]
    assert shown == [("p0", False, False), ("p22", False, False), ("p22", True, False)]
    np.testing.assert_array_equal(added[0].image, pairs.images[2])
    np.testing.assert_array_equal(added[2].image, pairs.images[1])
    np.testing.assert_array_equal(added[2].mask, pairs.masks[0] > 0)
    assert {one.patient for one in plain if one.held_out} >= {"p3"}


def test_who_is_held_out_in_one_pack_is_held_out_in_all() -> None:
    first, second = made_pack(), made_pack()
    second.rows = [replace(one, fold=TRAIN) for one in second.rows]
    images = marked_images([first, second], RowFilter("lesion", family="dermoscopy"))
    train_side = {one.patient for one in images if not one.held_out}
    assert not train_side & {one.patient for one in images if one.held_out}
    assert len(images) == 44


def test_parts_hold_out_every_patient_once_and_never_on_both_sides() -> None:
    family = RowFilter("lesion", family="dermoscopy")
    held: list[str] = []
    for part in range(3):
        images = marked_images([made_pack(), made_pack()], family, part=(part, 3))
        here = {one.patient for one in images if one.held_out}
        assert here
        assert not here & {one.patient for one in images if not one.held_out}
        held += here
    assert sorted(held) == sorted({one.patient for one in marked_images([made_pack()], family)})
    with pytest.raises(ConfigError, match="counted from 0"):
        Segmenter(configured(Path("x"), data={"packs": ["x"], "family": "ct", "part": [3, 3]}))


def test_views_show_image_and_mask_together_and_depend_on_the_seed_alone() -> None:
    images = marked_images([made_pack()], RowFilter("lesion", family="dermoscopy"))
    pool = SegmenterData(images, SIDE, torch.device("cpu"))
    place = torch.tensor([0, 5, 20] * 8)
    image, mask, counted = pool.views(place, 7)
    assert image.shape == (24, 3, SIDE, SIDE)
    assert mask.shape == counted.shape == (24, 1, SIDE, SIDE)
    assert set(mask.unique().tolist()) <= {0.0, 1.0}
    assert 0 <= image.min() <= image.max() <= 1
    for a, b in zip(pool.views(place, 7), (image, mask, counted), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert not torch.equal(pool.views(place, 8)[1], mask)
    # The blot is blue: within the mask blue is above red by far more than outside.
    blue = image[:, 2:] - image[:, :1]
    assert blue[mask > 0].mean() > blue[(mask == 0) & counted].mean() + 0.2
    assert not mask[2::3].any()  # the healthy image
    assert (mask.flatten(1).any(1)).sum() >= 8


def test_sources_are_drawn_by_the_root_of_their_size() -> None:
    images = marked_images([made_pack()], RowFilter("lesion", family="dermoscopy"))
    some = [replace(one, source="a" if at < 16 else "b") for at, one in enumerate(images[:20])]
    pool = SegmenterData(some, SIDE, torch.device("cpu"))
    chosen = pool.choose(np.random.default_rng(0), 6000)
    assert np.mean(chosen < 16) == pytest.approx(4 / 6, abs=0.03)


def test_it_learns_and_says_how_well(trained: Path) -> None:
    lines = read_log(trained / "log.jsonl")
    figures = next(line["figures"] for line in lines if line["event"] == "validation")
    assert figures["dice"] > 0.7
    assert figures["dice/skin"] == figures["dice"]
    assert figures["score"] > 0.6
    assert (figures["images"], figures["healthy"], figures["lesions"]) == (5, 1, 5)
    assert figures["auc"] is not None
    losses = [line["loss"] for line in lines if line["event"] == "train"]
    assert losses[-1] < losses[0]
    grid = cv2.imread(str(trained / "grids/step-000040.png"))
    assert grid.shape == (2 * 160, 4 * 3 * 160, 3)


def test_the_weights_find_the_lesions_of_held_out_patients(pack: Path, trained: Path) -> None:
    detector = make_detector(f"compact:{trained / 'weights.safetensors'}", family="dermoscopy")
    quality = detector.quality()
    assert quality["patients"] == 6
    assert "cross-fitted" in quality["threshold_chosen"]
    assert detector.meta["trained_on"] == {"images": 16, "healthy": 1, "patients": 16}
    assert detector.meta["family"] == "dermoscopy"
    assert detector.meta["config"]["seed"] == 3
    away = [
        one for one in marked_images([made_pack()], RowFilter("lesion", family="dermoscopy")) if one.held_out
    ]
    again = measure(detector, [(as_rgb(one.image), one.mask) for one in away])
    assert (again.images, again.healthy, again.lesions) == (5, 1, 5)
    assert again.dice == pytest.approx(quality["dice"], abs=0.1)  # at one threshold, not at two
    assert again.auc == quality["auc"]


def test_without_held_out_patients_nothing_is_measured(tmp_path: Path) -> None:
    pack = made_pack()
    pack.rows = [replace(one, fold=TRAIN) for one in pack.rows]
    write_pack(tmp_path / "pack", pack)
    train(configured(tmp_path / "pack", steps=2), tmp_path / "out", device="cpu")
    detector = make_detector(f"compact:{tmp_path / 'out/weights.safetensors'}", family="dermoscopy")
    assert detector.quality() is None
    assert detector.threshold == 0.5
    assert not (tmp_path / "out/grids").exists()


def test_the_cost_of_an_image_is_known(pack: Path) -> None:
    trainee = Segmenter(configured(pack))
    trainee.check()
    trainee.prepare(torch.device("cpu"))
    trainee.model()
    assert trainee.flops_per_image > 1e6


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"family": "xray"}, "nothing to train on[\\s\\S]*xray[\\s\\S]*mie pack"),
        ({"family": "skin"}, "no family 'skin'"),
        ({}, "give a family"),
        ({"sources": ["skim"]}, "'skim' is not in the packs[\\s\\S]*did you mean 'skin'"),
        ({"sources": ["skin"], "targets": ["nevus"]}, "'nevus' is not in the packs[\\s\\S]*naevus"),
        ({"sources": ["ct"], "targets": ["liver"]}, "nothing to train on[\\s\\S]*task lesion"),
        ({"family": "dermoscopy", "side": 100}, "multiple of 32"),
        ({"family": "dermoscopy", "sdie": 64}, "did you mean 'side'"),
    ],
)
def test_what_cannot_be_trained_is_refused(pack: Path, data: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Segmenter(configured(pack, data={"packs": [str(pack)], **data})).check()


def test_a_trunk_needs_an_encoder_and_a_file(pack: Path) -> None:
    for model, message in (
        ({"encoder": "none", "trunk": "x.pt"}, "encoder: short"),
        ({"encoder": "short", "trunk": "x.pt"}, "no such file of pretrained weights"),
    ):
        with pytest.raises(ConfigError, match=message):
            Segmenter(configured(pack, model=model)).check()


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "microscopy"])
def test_every_family_has_a_training_file(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIE_PACKS", "/packs")
    trainee = Segmenter(read_config(ROOT / f"examples/detectors/{family}.yaml"))
    assert trainee.data.family == family
    assert sum(p.numel() for p in UNet(trainee.net).parameters()) <= 450_000


def test_the_files_of_specialists(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ROOT / "examples/specialists/specialists.py"
    command = [sys.executable, str(script), "configs", str(pack), "-o", str(tmp_path), "--least", "3"]
    done = forked_python.run(command, check=True)
    assert done.stdout.split() == ["skin-skin-lesion"]  # the other targets have two images
    monkeypatch.setenv("MIE_PACKS", str(pack.parent))
    trainee = Segmenter(read_config(tmp_path / "skin-skin-lesion.yaml"))
    trainee.check()
    assert (counts(trainee.train)["images"], counts(trainee.held_out)["images"]) == (15, 5)


def test_training_imports_no_heavy_packages() -> None:
    code = (
        "import sys\n"
        "for name in ('pandas', 'pydicom', 'nibabel', 'monai', 'torchvision', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "import mie.training.segmenter"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
