"""Weights in eight bits: what is lost, what is kept, and what is refused."""

import json
import struct
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from mie.core.files import digest  # noqa: E402
from mie.errors import ConfigError, MieError  # noqa: E402
from mie.networks import shipped  # noqa: E402
from mie.networks.compact import CompactNet, NetConfig, load_network, load_weights, save_weights  # noqa: E402  # noqa: E402
from mie.networks.weights import dequantise, quantise  # noqa: E402
from tests.editors.compact import tiny  # noqa: E402


@given(
    st.lists(st.lists(st.floats(-500, 500, width=32), min_size=3, max_size=3), min_size=1, max_size=6),
    st.sampled_from([1.0, 1e-3, 1e-6]),
)
def test_no_weight_is_off_by_more_than_half_a_step(rows, factor):
    weight = factor * torch.tensor(rows)
    whole, scale = quantise(weight)
    assert (whole.dtype, scale.dtype) == (torch.int8, torch.float16)
    error = (dequantise(whole, scale) - weight).abs()
    assert (error <= scale.float()[:, None] * (0.5 + 1e-5) + 1e-36).all()  # float32 itself ends there
    # The step is a 127th of the row's largest weight, as nearly as a float16 can say it.
    exact = weight.abs().amax(1) / 127
    assert (scale.float() >= exact).all()
    assert (scale.float() <= exact * (1 + 2**-10) + 6e-8).all()


@pytest.mark.parametrize(
    "config",
    [tiny.CONFIG, tiny.CHANGE, tiny.RESTORATION, tiny.EFFICIENT],
    ids=["first", "change", "restoration", "efficientnet"],
)
def test_a_network_comes_back(tmp_path, config):
    path = tmp_path / "w.safetensors"
    net = tiny.network("perception", config=config)
    save_weights(path, net.state_dict(), net.config, {"steps": 3})
    loaded, meta = load_network(path)
    assert meta == {"steps": 3}
    assert loaded.config == net.config
    state = loaded.state_dict()
    for name, value in net.state_dict().items():
        least = value.abs().max() / 127 if value.ndim >= 2 else value.abs().max() / 2048
        assert (state[name] - value).abs().max() <= least + 1e-7, name
        assert state[name].dtype == torch.float32
    tokens, mask = tiny.Words().encode(["mark the vessels"])
    for ours, theirs in zip(
        loaded(torch.ones(1, 3, 64, 32) / 3, tokens.float(), mask).known().values(),
        net(torch.ones(1, 3, 64, 32) / 3, tokens.float(), mask).known().values(),
        strict=True,
    ):
        assert torch.allclose(ours, theirs, atol=0.05)


def test_convolutions_and_matrices_take_one_byte_and_saving_twice_gives_the_same_bytes(tmp_path):
    one, two = (tiny.weights(tmp_path / name) for name in ("1", "2"))
    assert one.read_bytes() == two.read_bytes()
    tensors = load_file(one)
    assert tensors["down.0.weight"].dtype == torch.int8
    assert tensors["down.0.weight.scale"].shape == (8,)
    assert {t.dtype for n, t in tensors.items() if n.endswith("bias")} == {torch.float16}
    saved, config, _ = load_weights(one)
    save_weights(tmp_path / "3", saved, config, {"note": "random"})
    assert (tmp_path / "3").read_bytes() == one.read_bytes()


@pytest.mark.parametrize("at", [0.02, 0.5, 0.999])
def test_a_flipped_bit_anywhere_is_found(tmp_path, at):
    path = tiny.weights(tmp_path / "w")
    data = bytearray(path.read_bytes())
    (header,) = struct.unpack("<Q", data[:8])
    body = 8 + header
    data[body + int(at * (len(data) - body))] ^= 16
    path.write_bytes(data)
    with pytest.raises(MieError, match="damaged"):
        load_weights(path)


def test_a_torn_file_a_missing_one_and_somebody_elses_are_refused(tmp_path):
    path = tiny.weights(tmp_path / "w")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(MieError, match="damaged"):
        load_weights(path)
    path.write_bytes(b"")
    with pytest.raises(MieError, match="damaged"):
        load_weights(path)
    with pytest.raises(ConfigError, match="no such weights file"):
        load_weights(tmp_path / "none")
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(MieError, match="not a weights file of the compact"):
        load_weights(path)
    save_file({"a": torch.zeros(2)}, path, {"mie": json.dumps({"format": "compact 9"})})
    with pytest.raises(MieError, match="compact 9"):
        load_weights(path)


def test_another_architecture_is_refused_by_name_and_shape(tmp_path):
    net = tiny.network()
    state = net.state_dict()
    other = replace(tiny.CONFIG, pixel=6)
    save_weights(tmp_path / "w", state, other)
    with pytest.raises(MieError, match=r"embed.weight: 6×6×1×1 here, 4×4×1×1 in the file.*more"):
        load_network(tmp_path / "w")
    save_weights(tmp_path / "w", state, tiny.EFFICIENT)
    with pytest.raises(MieError, match=r"from_top.weight: 8×352×1×1 here, 8×320×1×1 in the file.*more"):
        load_network(tmp_path / "w")
    state["extra.weight"] = state.pop("down.0.weight")
    save_weights(tmp_path / "w", state, tiny.CONFIG)
    with pytest.raises(
        MieError, match=r"down.0.weight: 8×8×3×3 here, nothing in the file; extra.weight: nothing here"
    ):
        load_network(tmp_path / "w")


def test_a_file_from_before_a_field_loads_and_one_from_after_does_not(tmp_path, monkeypatch):
    net, path = tiny.network(), tmp_path / "w"
    whole, later = NetConfig.as_json, ("change", "mender", "backbone")
    monkeypatch.setattr(NetConfig, "as_json", lambda c: {k: v for k, v in whole(c).items() if k not in later})
    save_weights(path, net.state_dict(), net.config)
    monkeypatch.setattr(NetConfig, "as_json", whole)
    assert load_network(path)[0].config == net.config
    monkeypatch.setattr(NetConfig, "as_json", lambda c: {**whole(c), "later": 1})
    save_weights(path, net.state_dict(), net.config)
    monkeypatch.setattr(NetConfig, "as_json", whole)
    with pytest.raises(MieError, match=r"another architecture[\s\S]*later"):
        load_weights(path)
    monkeypatch.setattr(NetConfig, "as_json", lambda c: {**whole(c), "backbone": "resnet"})
    save_weights(path, net.state_dict(), net.config)
    monkeypatch.setattr(NetConfig, "as_json", whole)
    with pytest.raises(MieError, match=r"another architecture[\s\S]*mobilenetv2[\s\S]*resnet"):
        load_network(path)


def test_not_a_number_is_not_saved(tmp_path):
    state = CompactNet(tiny.CONFIG).state_dict()
    state["stem.bias"][0] = float("nan")
    with pytest.raises(MieError, match=r"not finite[\s\S]*stem.bias"):
        save_weights(tmp_path / "w", state, tiny.CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_shipped_weights_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    monkeypatch.setattr(shipped, "SHIPPED", {})
    with pytest.raises(ConfigError, match=r"no weights in this installation[\s\S]*mie train"):
        shipped.shipped_weights(shipped.COMPACT, fix="run mie train")
    path = tiny.weights(tmp_path / shipped.COMPACT)
    monkeypatch.setattr(shipped, "SHIPPED", {shipped.COMPACT: digest(path)})
    assert shipped.shipped_weights(shipped.COMPACT, fix="run mie train") == path
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(MieError, match="not the ones that were published"):
        shipped.shipped_weights(shipped.COMPACT, fix="run mie train")


@pytest.mark.parametrize("name", shipped.SHIPPED)
def test_the_files_in_the_package_are_the_ones_in_the_list(name):
    assert shipped.shipped_weights(name, fix="").is_file()
