"""Weights files that ask for more than they hold, or would run code."""

import json
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from mie.errors import MieError
from mie.networks import weights
from mie.networks.pretrained import read_pth_tensors
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


def test_one_long_tensor_allows_no_more_blocks(tmp_path, state):
    """A block has tensors of its own: there are fewer blocks than tensors, however long one of these is."""
    config = {**CONFIG.as_json(), "down": [5000, 0, 0, 0, 1]}
    weights.save(tmp_path / "a", {**state, "long": torch.zeros(20_000)}, format="unet 1", config=config)
    file = weights.load(tmp_path / "a", format="unet 1")
    with pytest.raises(MieError, match="down of at most"):
        weights.build(lambda: pytest.fail("made"), file, tmp_path / "a")


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


class Evil:
    def __reduce__(self):
        return (print, ("code ran",))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickled_file_gives_tensors_and_runs_nothing(tmp_path, capsys, zipped):
    path = tmp_path / "a.pth"
    torch.save({"a": torch.arange(3.0)}, path, _use_new_zipfile_serialization=zipped)
    assert read_pth_tensors(path)["a"].tolist() == [0, 1, 2]
    torch.save({"a": torch.zeros(3), "b": Evil()}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(MieError, match=r"cannot be opened safely[\s\S]*print"):
        read_pth_tensors(path)
    assert "code ran" not in capsys.readouterr().out


def test_pickled_files_that_are_none_of_pytorchs(tmp_path):
    path = tmp_path / "a.pth"
    torch.save([torch.zeros(3)], path)
    with pytest.raises(MieError, match="tensors by name"):
        read_pth_tensors(path)
    torch.save({"a": torch.zeros(2**20)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:  # 4 MB in a few kB
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(MieError, match="more than the file has"):
        read_pth_tensors(path)
    for data in (b"", b"PK", b"\x80\x02}q\0.", path.read_bytes()[:-40], b"text"):
        path.write_bytes(data)
        with pytest.raises(MieError):
            read_pth_tensors(path)
