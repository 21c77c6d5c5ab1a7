"""The network as ONNX gives what torch gives."""

import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")
for name in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(name, reason="the export needs the extra `onnx`")

from typer.testing import CliRunner  # noqa: E402

from mie.cli import app  # noqa: E402
from mie.editors.compact import onnx as exporting  # noqa: E402
from mie.errors import ConfigError, MieError  # noqa: E402
from mie.networks.compact import NetConfig, load_network  # noqa: E402
from mie.networks.shipped import COMPACT, shipped_weights  # noqa: E402
from mie.networks.text import TextEncoder  # noqa: E402
from mie.networks.trunk import BACKBONES, MOBILENET  # noqa: E402
from tests.conftest import crop  # noqa: E402
from tests.editors.compact import tiny  # noqa: E402

# Exporting takes long, and the longer the more layers there are: half a minute for the network that ships.
# The tiny one has all its parts, and a trunk with one block of each stride and one that adds its input.
TRUNK = replace(
    MOBILENET,
    stages=((1, 8, 1, 1, 3), (2, 8, 2, 2, 3), (1, 8, 1, 2, 3), (1, 8, 1, 2, 3), (1, 8, 1, 2, 3)),
    taps={1: 8, 3: 8, 4: 8, 5: 8, 6: 8},
)


@pytest.fixture(scope="module", params=["tiny", pytest.param("shipped", marks=pytest.mark.nightly)])
def exported(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("onnx")
    patch = pytest.MonkeyPatch()
    patch.setitem(BACKBONES, "tiny", TRUNK)
    weights, editor = shipped_weights(COMPACT, fix=""), "compact"
    if request.param == "tiny":
        weights = tiny.weights(
            folder / "w.safetensors", "transformation", config=replace(tiny.RESTORATION, backbone="tiny")
        )
        editor = f"compact:{weights}"
    path = folder / "m.onnx"
    done = CliRunner().invoke(app, ["export-model", "-e", editor, "-o", str(path), "--json"])
    assert done.exit_code == 0, done.output
    yield weights, path, json.loads(done.stdout)
    patch.undo()


def test_the_differences_are_small_and_reported(exported):
    _, path, document = exported
    heads = {"overlay", "residual", "perspective", "presence"}
    assert set(document["differences"]) == heads | {"change"}
    assert 0 < max(document["differences"].values()) < 1e-3
    assert document["bytes"] == path.stat().st_size


def test_a_real_image_of_another_shape(exported):
    import onnxruntime

    weights, path, _ = exported
    net, meta = load_network(weights)
    image = torch.from_numpy(crop(0, 96, 160)).permute(2, 0, 1)[None].float() / 255
    tokens, mask = TextEncoder().encode(["Denoise this MRI slice."])
    hole = (torch.arange(160) < 70).float().expand(1, 1, 96, 160).clone()
    given = {"image": image, "tokens": tokens.float(), "mask": mask, "hole": hole}
    with torch.inference_mode():
        wanted = net(*given.values()).known()
        assert wanted["perspective"].argmax() == tiny.PERSPECTIVES["transformation"]
        assert (wanted["residual"] - net.restore(image, tokens.float(), mask)).abs().max() > 1e-2
        wanted["residual"] = net.restore(image, tokens.float(), mask)
    session = onnxruntime.InferenceSession(path)
    assert [one.name for one in session.get_outputs()] == list(wanted)
    found = session.run(None, {name: value.numpy() for name, value in given.items()})
    for ours, theirs in zip(wanted.values(), found, strict=True):
        assert np.abs(ours.numpy() - theirs).max() < 1e-3
    facts = session.get_modelmeta().custom_metadata_map
    assert NetConfig.from_json(json.loads(facts["config"])) == net.config
    assert json.loads(facts["meta"]) == meta


def test_a_network_that_differs_is_not_written(tmp_path, monkeypatch, exported):
    weights, path, _ = exported
    other, _ = load_network(tiny.weights(tmp_path / "other", seed=1, config=load_network(weights)[0].config))
    assert max(exporting.differences(other, path).values()) > 1e-3
    monkeypatch.setattr(exporting, "TOLERANCE", 0.0)
    monkeypatch.setattr(exporting, "_export", lambda net, meta, to: to.write_bytes(path.read_bytes()))
    with pytest.raises(MieError, match="something else than torch"):
        exporting.export_onnx(weights, tmp_path / "m.onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    ("editor", "output", "word"),
    [
        ("otsu", "m.onnx", "only the compact editor"),
        ("compact:none", "m.onnx", "no such weights file"),
        ("compact", "m.pt", "written as ONNX"),
        ("compact", "nowhere/m.onnx", "no such folder"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, monkeypatch, editor, output, word):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["export-model", "-e", editor, "-o", output])
    assert isinstance(done.exception, ConfigError)
    assert word in str(done.exception)
