"""The compact detector: a weights file there and back, images of any size, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="detectors need the extra `models`")

import torch

from mie.errors import ConfigError, MieError
from mie.networks import weights
from mie.networks.unet import NetConfig, UNet, mask_of, probabilities, score_of
from mie.perspectives.modification.detectors import DETECTORS, make_detector
from mie.perspectives.modification.detectors.compact import FORMAT, load_detector
from tests.conftest import crop

TINY = NetConfig(widths=(8, 8, 8, 8, 8), down=(1, 1, 0, 0, 1), trunk="none", side=64)


def bright_net() -> UNet:
    """Every pixel's logit is 20 (green - 0.5): the rest of the network is silent."""
    net = UNet(TINY)
    for parameter in net.parameters():
        torch.nn.init.zeros_(parameter)
    # The stem hands each of a block's four green values on, one channel each.
    with torch.no_grad():
        for k in range(4):
            net.stem.weight[k, 4 + k, 1, 1] = 1.0
            net.join[0].weight[k, 8 + k] = 1.0
            net.unfold.weight[k, k] = 1.0  # pixel_shuffle spreads channels 0..3 over the block
        net.logit.weight[0, 0] = 20.0
    return net.eval()


def write(path: Path, net: UNet | None = None, **meta: object) -> Path:
    net = net or bright_net()
    body = {"family": "dermoscopy", "threshold": 0.5, "quality": {"sensitivity": 0.9, "images": 7}, **meta}
    weights.save(path, net.state_dict(), format=FORMAT, config=net.config.as_json(), meta=body)
    return path


def spotted(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A dark image with one bright disc, and where it is."""
    y, x = np.mgrid[:height, :width]
    mask = (y - height * 0.6) ** 2 + (x - width * 0.3) ** 2 < (0.15 * min(height, width)) ** 2
    image = np.where(mask[..., None], 230, 25).astype(np.uint8).repeat(3, 2)
    return image, mask


@pytest.mark.parametrize("size", [(64, 64), (48, 64), (200, 130), (37, 90), (600, 601)])
def test_a_lesion_is_found_at_the_image_s_own_size(tmp_path: Path, size: tuple[int, int]) -> None:
    detector = make_detector(f"compact:{write(tmp_path / 'd.safetensors')}", family="dermoscopy")
    image, mask = spotted(*size)
    before = image.copy()
    finding = detector.find(image)
    assert finding.mask.shape == size
    assert finding.mask.dtype == np.bool_
    assert 2 * (finding.mask & mask).sum() / (finding.mask.sum() + mask.sum()) > 0.9
    assert finding.score > 0.9
    np.testing.assert_array_equal(image, before)
    again = detector.find(image)
    np.testing.assert_array_equal(again.mask, finding.mask)
    nothing = detector.find(np.full_like(image, 25))
    assert not nothing.mask.any()
    assert nothing.score < 0.1


def test_the_file_says_how_good_it_is(tmp_path: Path) -> None:
    path = write(tmp_path / "d.safetensors")
    assert make_detector(f"compact:{path}", family="dermoscopy").quality() == {
        "sensitivity": 0.9,
        "images": 7,
    }
    write(path, quality=None)
    assert make_detector(f"compact:{path}", family="dermoscopy").quality() is None


def test_the_threshold_is_the_file_s(tmp_path: Path) -> None:
    image, _ = spotted(64, 64)
    path = write(tmp_path / "d.safetensors", threshold=0.999999)
    assert not make_detector(f"compact:{path}", family="dermoscopy").find(image).mask.any()


def test_weights_there_and_back(tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = UNet(NetConfig()).eval()
    path = write(tmp_path / "d.safetensors", net)
    assert path.stat().st_size < 500_000
    assert sum(p.numel() for p in net.parameters()) <= 450_000
    found, _ = load_detector(path)
    image = crop(1, 90, 64)
    there, back = (probabilities(one, image, 96, torch.device("cpu")) for one in (net, found))
    assert np.abs(there - back).max() < 0.02


def test_specks_are_dropped() -> None:
    probability = np.zeros((128, 128), np.float32)
    probability[10:13, 10:13] = 0.9  # nine pixels, and a quarter of that as a network of side 64 sees them
    probability[40:50, 40:50] = 0.9
    assert mask_of(probability, 0.5, 64).sum() == 100
    assert mask_of(probability, 0.5, 128).sum() == 109


def test_the_score_is_the_mean_of_the_surest_pixels() -> None:
    probability = np.zeros((100, 100), np.float32)
    probability[3, :5] = (1.0, 0.9, 0.8, 0.7, 0.6)
    assert score_of(probability) == pytest.approx(0.8)  # 0.0005 of 10,000 pixels are five
    assert score_of(np.full((3, 3), 0.25, np.float32)) == 0.25


def test_missing_weights_name_the_command_that_trains_them(tmp_path: Path) -> None:
    for spec in (f"compact:{tmp_path / 'none.safetensors'}", "compact"):
        with pytest.raises(ConfigError, match=r"mie train examples/detectors/xray\.yaml"):
            make_detector(spec, family="xray")


def test_what_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "d.safetensors")
    with pytest.raises(ConfigError, match=r"other images[\s\S]*expected: mri[\s\S]*dermoscopy"):
        make_detector(f"compact:{path}", family="mri")
    with pytest.raises(ConfigError, match="no option 'speed'"):
        make_detector(f"compact:{path},speed=2", family="dermoscopy")
    with pytest.raises(ConfigError, match="did you mean 'compact'"):
        make_detector("compcat", family="mri")
    with pytest.raises(ConfigError, match="no modality family named 'skin'"):
        make_detector(f"compact:{path}", family="skin")
    net = UNet(TINY)
    weights.save(path, net.state_dict(), format="compact 1", config={})
    with pytest.raises(MieError, match="not a weights file of the detector"):
        load_detector(path)
    weights.save(path, net.state_dict(), format=FORMAT, config={"widths": [8]})
    with pytest.raises(MieError, match="another architecture"):
        load_detector(path)
    assert DETECTORS.names() == ["compact", "nnunet", "region"]


def test_detectors_import_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; "
    code += "import mie.perspectives.modification.detectors.quality"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
