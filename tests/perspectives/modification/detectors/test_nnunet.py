"""A tiny nnU-Net model folder, made here as nnU-Net v2 writes it, loaded and put to work."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="detectors need the extra `models`")
pytest.importorskip("dynamic_network_architectures", reason="needs dynamic-network-architectures")

import torch
from dynamic_network_architectures.architectures import unet
from torch import nn

from mie.errors import ConfigError, MieError
from mie.perspectives.modification.detectors import make_detector
from mie.perspectives.modification.detectors.nnunet import normalised, starts
from tests.conftest import crop

KWARGS = {
    "n_stages": 3,
    "features_per_stage": [4, 8, 8],
    "conv_op": "torch.nn.modules.conv.Conv2d",
    "kernel_sizes": [[3, 3]] * 3,
    "strides": [[1, 1], [2, 2], [2, 2]],
    "n_conv_per_stage": [1, 1, 1],
    "n_conv_per_stage_decoder": [1, 1],
    "conv_bias": True,
    "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d",
    "norm_op_kwargs": {"eps": 1e-5, "affine": True},
    "dropout_op": None,
    "dropout_op_kwargs": None,
    "nonlin": "torch.nn.LeakyReLU",
    "nonlin_kwargs": {"inplace": True},
}


def built(channels: int, heads: int):
    torch.manual_seed(3)
    layers = {"conv_op": nn.Conv2d, "norm_op": nn.InstanceNorm2d, "nonlin": nn.LeakyReLU}
    return unet.PlainConvUNet(
        input_channels=channels, num_classes=heads, deep_supervision=False, **{**KWARGS, **layers}
    ).eval()


def write_folder(
    folder: Path,
    *,
    channels: int = 3,
    labels: dict | None = None,
    scheme: str = "ZScoreNormalization",
    masked: bool = False,
    patch: tuple[int, int] = (32, 32),
    architecture: dict | None = None,
    state: dict | None = None,
    low: float = 0.0,
) -> Path:
    labels = labels or {"background": 0, "organ": 1, "tumour": 2}
    regions = any(isinstance(value, list) and len(value) > 1 for value in labels.values())
    heads = len([v for v in labels.values() if not (regions and v == 0)])
    network = built(channels, heads)
    (folder / "fold_0").mkdir(parents=True)
    (folder / "dataset.json").write_text(
        json.dumps({"channel_names": {str(c): f"c{c}" for c in range(channels)}, "labels": labels})
    )
    base = {
        "patch_size": list(patch),
        "normalization_schemes": [scheme] * channels,
        "use_mask_for_norm": [masked] * channels,
        "architecture": architecture
        or {
            "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
            "arch_kwargs": KWARGS,
            "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
        },
    }
    found = {"mean": 90.0, "std": 40.0, "percentile_00_5": low, "percentile_99_5": 200.0}
    plans = {
        "transpose_forward": [0, 1, 2],
        "configurations": {"parent": base, "2d": {"inherits_from": "parent"}},
        "foreground_intensity_properties_per_channel": {str(c): found for c in range(channels)},
    }
    (folder / "plans.json").write_text(json.dumps(plans))
    # Everything that nnUNetTrainer.save_checkpoint puts in, NumPy's numbers of the log included.
    checkpoint = {
        "network_weights": network.state_dict(),
        "optimizer_state": torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9).state_dict(),
        "grad_scaler_state": None,
        "logging": {"mean_fg_dice": [np.float64(0.5)], "train_losses": [np.float32(-0.1)]},
        "_best_ema": np.float64(0.5),
        "current_epoch": 2,
        "init_args": {"plans": plans, "configuration": "2d", "fold": 0, "device": torch.device("cpu")},
        "trainer_name": "nnUNetTrainer",
        "inference_allowed_mirroring_axes": (0, 1),
    }
    torch.save({**checkpoint, **(state or {})}, folder / "fold_0/checkpoint_final.pth")
    return folder


def expected(image: np.ndarray, axes: bool) -> torch.Tensor:
    """Class probabilities of one patch that is the whole image, worked out step by step."""
    x = torch.from_numpy(image.astype(np.float32).transpose(2, 0, 1))
    x = (x - x.mean((1, 2), keepdim=True)) / x.std((1, 2), keepdim=True, correction=0)
    network = built(3, 3)
    ways = [(), (2,), (3,), (2, 3)] if axes else [()]
    with torch.no_grad():
        logits = sum(network(x[None].flip(way)).flip(way) for way in ways)[0] / len(ways)
    return logits.softmax(0)


@pytest.mark.parametrize("mirror", [True, False])
def test_one_patch_is_the_network_on_the_normalised_image(tmp_path: Path, mirror: bool) -> None:
    image = crop(3, 32, 32).clip(1)  # nothing is black: nothing is cut away
    detector = make_detector(
        f"nnunet:{write_folder(tmp_path / 'm')},lesions=tumour,mirror={str(mirror).lower()}", family="mri"
    )
    wanted = expected(image, mirror)[2].numpy()
    np.testing.assert_allclose(detector.probabilities(image), wanted, atol=1e-5)
    finding = detector.find(image)
    np.testing.assert_array_equal(finding.mask, detector.probabilities(image) >= 0.5)
    assert finding.score == pytest.approx(wanted.max(), abs=1e-5)
    assert detector.quality() is None


def test_without_a_choice_every_label_but_the_background_counts(tmp_path: Path) -> None:
    image = crop(3, 32, 32).clip(1)
    detector = make_detector(f"nnunet:{write_folder(tmp_path / 'm')}", family="mri")
    np.testing.assert_allclose(detector.probabilities(image), 1 - expected(image, True)[0].numpy(), atol=1e-5)


def test_a_black_frame_is_cut_away_and_stays_healthy(tmp_path: Path) -> None:
    inner = crop(3, 32, 32).clip(1)
    image = np.zeros((50, 60, 3), np.uint8)
    image[7:39, 11:43] = inner
    detector = make_detector(f"nnunet:{write_folder(tmp_path / 'm')},lesions=tumour", family="mri")
    found = detector.probabilities(image)
    np.testing.assert_allclose(found[7:39, 11:43], expected(inner, True)[2].numpy(), atol=1e-5)
    found[7:39, 11:43] = 0
    assert not found.any()
    assert not detector.find(np.zeros_like(image)).mask.any()


def test_masked_normalisation_leaves_black_black(tmp_path: Path) -> None:
    image = crop(3, 32, 32).clip(1)
    image[10:20, 12:18] = 0
    part = image.any(2)
    x = image.astype(np.float32)
    for c in range(3):
        x[part, c] = (x[part, c] - x[part, c].mean()) / x[part, c].std()
    with torch.no_grad():
        wanted = built(3, 3)(torch.from_numpy(x.transpose(2, 0, 1))[None])[0].softmax(0)[2]
    folder = write_folder(tmp_path / "m", masked=True)
    detector = make_detector(f"nnunet:{folder},lesions=tumour,mirror=false", family="mri")
    np.testing.assert_allclose(detector.probabilities(image), wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("shape", [(20, 24), (32, 80), (75, 50)])
def test_any_size_is_covered(tmp_path: Path, shape: tuple[int, int]) -> None:
    detector = make_detector(f"nnunet:{write_folder(tmp_path / 'm')}", family="mri")
    found = detector.probabilities(crop(5, *shape).clip(1))
    assert found.shape == shape
    assert np.isfinite(found).all()
    assert ((found > 0) & (found < 1)).all()


@pytest.mark.parametrize(("length", "patch"), [(64, 64), (65, 64), (110, 64), (500, 96), (97, 32)])
def test_patches_cover_everything_and_overlap_by_half(length: int, patch: int) -> None:
    places = starts(length, patch)
    assert places[0] == 0
    assert places[-1] == length - patch
    assert all(0 < b - a <= patch / 2 + 0.5 for a, b in itertools.pairwise(places))


def test_normalisations_by_hand() -> None:
    values = np.array([[0, 10], [20, 250]], np.float32)
    found = {"mean": 100.0, "std": 50.0, "percentile_00_5": 5.0, "percentile_99_5": 200.0}
    by = lambda scheme, inside=None: normalised(values, scheme, found, inside)
    np.testing.assert_allclose(by("CTNormalization"), [[-1.9, -1.8], [-1.6, 2.0]], rtol=1e-6)
    np.testing.assert_allclose(by("RescaleTo01Normalization"), values / 250)
    np.testing.assert_allclose(by("RGBTo01Normalization"), values / 255)
    np.testing.assert_array_equal(by("NoNormalization"), values)
    inside = np.array([[False, True], [True, False]])
    np.testing.assert_allclose(by("ZScoreNormalization", inside), [[0, -1], [1, 250]])
    with pytest.raises(ConfigError, match="normalisation"):
        by("Mine")


def test_regions_overlap(tmp_path: Path) -> None:
    labels = {"background": 0, "whole": [1, 2], "core": [2]}
    folder = write_folder(tmp_path / "m", channels=1, labels=labels)
    image = np.repeat(crop(3, 32, 32).clip(1)[..., :1], 3, axis=2)
    both = make_detector(f"nnunet:{folder},mirror=false", family="mri").probabilities(image)
    each = [
        make_detector(f"nnunet:{folder},mirror=false,lesions={name}", family="mri").probabilities(image)
        for name in ("whole", "core")
    ]
    np.testing.assert_allclose(both, np.maximum(*each))


def test_hounsfield_units_need_a_window(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", channels=1, scheme="CTNormalization", low=-900.0)
    with pytest.raises(ConfigError, match=r"Hounsfield[\s\S]*low=-160,high=240"):
        make_detector(f"nnunet:{folder}", family="ct")
    detector = make_detector(f"nnunet:{folder},low=-160,high=240", family="ct")
    image = np.full((32, 32, 3), 255, np.uint8)
    assert detector._channels(image)[0, 0, 0] == 240


class Evil:
    def __reduce__(self):
        return (print, ("code ran",))


def test_a_checkpoint_that_runs_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "m", state={"extra": Evil()})
    with pytest.raises(MieError, match="cannot be opened safely"):
        make_detector(f"nnunet:{folder}", family="ct")
    assert "code ran" not in capsys.readouterr().out


def refused(folder: Path, options: str = "") -> str:
    with pytest.raises(MieError) as error:
        make_detector(f"nnunet:{folder}{options}", family="ct")
    return str(error.value)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    assert "no dataset.json" in refused(tmp_path)
    good = write_folder(tmp_path / "good")
    assert "fold_0/checkpoint_final.pth" in refused(good, ",fold=3")
    assert "organ, tumour" in refused(good, ",lesions=cyst")
    assert "fold, checkpoint" in refused(good, ",folds=3")
    assert "go together" in refused(good, ",low=3")
    other = {"network_class_name": "os.system", "arch_kwargs": {}, "_kw_requires_import": []}
    assert "os.system" in refused(write_folder(tmp_path / "a", architecture=other))
    layer = {
        "network_class_name": "x.PlainConvUNet",
        "arch_kwargs": {**KWARGS, "nonlin": "subprocess.Popen"},
        "_kw_requires_import": ["conv_op", "nonlin"],
    }
    assert "subprocess.Popen" in refused(write_folder(tmp_path / "b", architecture=layer))
    assert "2d" in refused(write_folder(tmp_path / "c", patch=(8, 32, 32)))
    assert "another architecture" in refused(
        write_folder(tmp_path / "d", state={"network_weights": {"x": torch.ones(2)}})
    )
    assert "network_weights" in refused(_broken(tmp_path / "e"))


def _broken(folder: Path) -> Path:
    write_folder(folder)
    torch.save({"init_args": {"configuration": "2d"}}, folder / "fold_0/checkpoint_final.pth")
    return folder
