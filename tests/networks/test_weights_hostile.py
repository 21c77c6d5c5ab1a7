"""Weights files that ask for more than they hold."""

import json

import pytest
import torch
from safetensors.torch import save_file

from mie.errors import MieError
from mie.networks import weights
from mie.networks.unet import NetConfig, UNet

CONFIG = NetConfig((8, 8, 8, 8, 8), (0, 0, 0, 0, 1), (1, 1, 1, 1), 4, "none", 32)


def load(path):
    file = weights.load(path, format="unet 1")
    return weights.build(lambda: UNet(NetConfig.from_json(file.config)), file, path)


@pytest.fixture
def state():
    torch.manual_seed(0)
    return UNet(CONFIG).state_dict()


def test_a_good_file_gives_the_network(tmp_path, state):
    weights.save(tmp_path / "a", state, format="unet 1", config=CONFIG.as_json())
    net = load(tmp_path / "a")
    assert all(tensor.device.type == "cpu" for tensor in (*net.parameters(), *net.buffers()))
    assert net(torch.zeros(1, 3, 64, 64)).isfinite().all()


@pytest.mark.parametrize(
    "change",
    [
        {"down": [10**9, 0, 0, 0, 1]},
        {"up": [500, 1, 1, 1]},
        {"widths": [10**6] * 5},
        {"widths": [1000] * 5},
        {"pixel": 10**12},
        {"dowN": [1]},
        {"trunk": "oak"},
        {"widths": [8, -8, 8, 8, 8]},
    ],
)
def test_a_config_beyond_its_tensors_is_refused_before_anything_is_made(tmp_path, state, monkeypatch, change):
    weights.save(tmp_path / "a", state, format="unet 1", config={**CONFIG.as_json(), **change})
    monkeypatch.setattr(weights, "fit", lambda *_: pytest.fail("made"))
    with pytest.raises(MieError, match="another architecture"):
        load(tmp_path / "a")


@pytest.mark.parametrize(
    "header", ["[]", "7", '{"format": "unet 1"}', "[" * 100_000, '{"format": "unet 1", "config": 3}']
)
def test_headers_that_are_none_of_ours(tmp_path, header):
    save_file({"a": torch.zeros(1)}, tmp_path / "a", {"mie": header})
    with pytest.raises(MieError):
        weights.load(tmp_path / "a", format="unet 1")


def test_whole_numbers_without_their_scales(tmp_path):
    header = {"format": "unet 1", "config": {}, "meta": {}, "sha256": "?"}
    save_file({"a": torch.zeros(2, 2, dtype=torch.int8)}, tmp_path / "a", {"mie": json.dumps(header)})
    with pytest.raises(MieError, match="scales"):
        weights.load(tmp_path / "a", format="unet 1")
