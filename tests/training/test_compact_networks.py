"""The networks of the compact editor in training: restoration beside the rest, and edits of an area."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")
pytest.importorskip("transformers", reason="training needs the extra `models`")

import torch
from typer.testing import CliRunner

from mie.cli import app
from mie.core.files import digest
from mie.editors.compact import inference
from mie.errors import ConfigError
from mie.networks.compact import Heads, load_network, load_weights, save_weights
from mie.training import compact
from mie.training.compact_data import Views
from mie.training.folder import read_log
from mie.training.loop import train
from mie.training.pack import write_pack
from tests.conftest import crop
from tests.editors.compact.tiny import Words
from tests.training import compact_tiny
from tests.training.compact_tiny import RESTORATION, Encoder, changed_pack, compact_config


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> compact.Compact:
    """A trainee of all three kinds of rows, ready to be asked for losses."""
    write_pack(tmp_path / "pack", changed_pack())
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compact, "TextEncoder", Encoder)
    monkeypatch.setattr("mie.training.compact_data.SIDE", compact_tiny.SMALL)
    monkeypatch.setattr("mie.training.compact_data.LARGE", 2 * compact_tiny.SMALL)
    made = compact.Compact(compact_config(tmp_path / "pack", **changes))
    made.check()
    made.prepare(torch.device("cpu"))
    return made


def split(views: Views, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a row each, those of the network and those of the restoration network."""
    p, m = len(views.overlay), len(views.area)
    return torch.cat([seen[:p], seen[len(seen) - m :]]), seen[p : len(seen) - m]


def test_a_restoration_network_is_trained_validated_and_put_to_work(
    restoring: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = list(read_log(restoring / "log.jsonl"))
    parts = {"loss", "overlay", "restoration", "gate", "change", "texture", "perspective", "presence"}
    for line in lines:
        if line["event"] == "train":
            assert parts <= line.keys()
            assert all(np.isfinite(line[name]) for name in parts)
    figures = [line["figures"] for line in lines if line["event"] == "validation"][-1]
    assert {"dice_macro", "gain_db", "change_gain_db"} <= figures.keys()
    network, _ = load_network(restoring / "weights.safetensors")
    assert network.config.restoration == (8, 8, 8, 16)
    assert network.restoration.leave.weight.any(), "zero at first"
    tokens, mask = Words().encode(["Remove the noise"])
    assert network.restore(torch.rand(1, 3, 64, 64), tokens.float(), mask).any()
    monkeypatch.setattr(inference, "TextEncoder", Words)
    cv2.imwrite(str(tmp_path / "in.png"), crop(0, 75, 110))
    editor = f"compact:{restoring / 'weights.safetensors'},precision=fp32,device=cpu"
    command = ["edit", str(tmp_path / "in.png"), "Remove the noise", "-e", editor]
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out.png")])
    assert done.exit_code == 0, done.output


def test_each_network_sees_its_own_rows_and_is_judged_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is that of one network that gives the same maps, but for the rows that keep still no more."""
    made = prepared(tmp_path, monkeypatch, **RESTORATION)
    batch = made.batch(0, 0, 1)
    views = made.pool.views(batch, batch["seed"])
    seen = {}
    torch.manual_seed(0)
    one = Heads(
        overlay=torch.randn_like(views.image),
        residual=0.1 * torch.randn_like(views.image),
        perspective=torch.randn(6, 3),
        presence=torch.randn(6),
        change=torch.randn(6, 1, *views.image.shape[2:]),
    )

    def model(image, tokens, mask, hole, restore):
        seen.update(image=image, tokens=tokens, hole=hole, restore=restore)
        heads = {name: split(views, head) for name, head in one.known().items()}
        both = {name: ours for name, (ours, _) in heads.items()}
        both["perspective"] = torch.cat(heads["perspective"])
        return Heads(**both, restored=heads["residual"][1])

    loss, parts = made.loss(model, batch, 0)
    main, restored = split(views, views.image)
    assert torch.equal(seen["image"], main)
    assert torch.equal(seen["restore"][0], restored)
    tokens = made.tokens[views.prompt].float()
    assert torch.equal(seen["tokens"], split(views, tokens)[0])
    assert torch.equal(seen["restore"][1], split(views, tokens)[1])
    assert torch.equal(seen["hole"], split(views, views.hole)[0])
    whole, wanted = compact._total_loss(views, one, made.texture, made.shape.texture)
    assert {name: float(part) for name, part in parts.items()} == pytest.approx(
        {name: float(part) for name, part in wanted.items()}
    )
    closed = [torch.nn.functional.softplus(some).mean() for some in (one.overlay[2:], one.overlay[4:])]
    assert loss.item() == pytest.approx((whole - 0.1 * closed[0] + 0.1 * closed[1]).item(), abs=1e-5)


def test_a_restoration_network_alone_and_one_with_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {**RESTORATION, "data": {"shares": {"transformation": 1}}}
    made = prepared(tmp_path, monkeypatch, **changes)
    torch.manual_seed(0)
    net = made.model()
    loss, parts = made.loss(net, made.batch(0, 0, 1), 0)
    loss.backward()
    assert set(parts) == {"restoration", "perspective", "presence"}
    learns = {name.split(".")[0] for name, p in net.named_parameters() if p.requires_grad}
    assert learns == {"mender", "reader"}
    assert net.restoration.leave.weight.grad.any()
    idle = compact.Compact(
        compact_config(tmp_path / "pack", data={"shares": {"perception": 1}}, model=RESTORATION["model"])
    )
    assert idle.model().restoration is None


def test_a_restoration_network_starts_from_weights_and_the_rest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(tmp_path, monkeypatch, **RESTORATION)
    torch.manual_seed(1)
    first.save(first.model(), tmp_path / "start.safetensors", {})
    begun = load_weights(tmp_path / "start.safetensors")[0]
    model = {**RESTORATION["model"], "change": True, "start": str(tmp_path / "start.safetensors")}
    config = compact_config(tmp_path / "pack", data={"shares": {"transformation": 1}}, model=model)
    assert train(config, tmp_path / "out", device="cpu").complete
    ended, _, meta = load_weights(tmp_path / "out/weights.safetensors")
    differ = {name.split(".")[0] for name in begun if not torch.allclose(begun[name], ended[name], atol=1e-6)}
    assert differ == {"mender"}
    assert meta["data_digests"]["start"] == digest(tmp_path / "start.safetensors")
    wider = {**model, "mender": [16, 16, 16, 24]}
    other = compact_config(tmp_path / "pack", data={"shares": {"transformation": 1}}, model=wider)
    with pytest.raises(ConfigError, match="another shape") as refused:
        compact.Compact(other).check()
    assert "leave out restoration" in refused.value.fix


def test_perception_alone_goes_on_from_weights_that_do_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shape is that of the file; what no row trains stays as it was, and so does what it knows."""
    first = prepared(tmp_path, monkeypatch, **RESTORATION)
    torch.manual_seed(1)
    known = {"targets": {"CT": ["liver"]}}
    first.save(first.model(), tmp_path / "start.safetensors", {})
    state, shape, meta = load_weights(tmp_path / "start.safetensors")
    save_weights(tmp_path / "start.safetensors", state, shape, {**meta, **known})
    begun = load_weights(tmp_path / "start.safetensors")[0]
    model = {"start": str(tmp_path / "start.safetensors"), "dropout": 0.2}
    config = compact_config(tmp_path / "pack", data={"shares": {"perception": 1}}, model=model)
    assert train(config, tmp_path / "out", device="cpu").complete
    ended, ended_shape, ended_meta = load_weights(tmp_path / "out/weights.safetensors")
    assert ended_shape.dropout == 0.2
    assert replace(ended_shape, dropout=shape.dropout) == shape
    assert ended_shape.restoration
    same = {name for name in begun if torch.equal(begun[name], ended[name])}
    for part in ("mender.", "reader."):
        assert {name for name in begun if name.startswith(part)} <= same
    assert any(name.startswith("encode.") for name in begun.keys() - same)
    assert ended_meta["taught"] == meta["taught"]
    assert ended_meta["targets"]["CT"][0] == "liver"
    assert len(ended_meta["targets"]) > 1
    own = compact_config(tmp_path / "pack", data={"shares": {"perception": 1}}, model={"start": "shipped"})
    assert compact.Compact(own).model().restoration is not None


@pytest.fixture(scope="module")
def all_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Perception, transformation and modification trained together, with all that came later switched on."""
    folder = tmp_path_factory.mktemp("all")
    write_pack(folder / "pack", changed_pack())
    data = {
        "shares": {"perception": 2, "transformation": 1, "modification": 3},
        "holes": 0.34,
        "absent": 0.3,
        "merge": True,
        "patients": True,
        "augment": "strong",
        "smoothing": 0.05,
        "emphasis": {"mri_noise": 2},
        "validate_rows": 100,
    }
    model = {"detail": 1, "dropout": 0.1, "drop_path": 0.1, "texture": 0.2, "local": True}
    config = compact_config(folder / "pack", batch=6, steps=4, data=data, model=model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIE_CACHE", str(folder / "cache"))
        patch.setattr(compact, "TextEncoder", Encoder)
        patch.setattr("mie.training.compact_data.SIDE", compact_tiny.SMALL)
        patch.setattr("mie.training.compact_data.LARGE", 2 * compact_tiny.SMALL)
        assert train(config, folder / "out", device="cpu").complete
    return folder / "out"


def test_modification_is_trained_and_validated(all_three: Path) -> None:
    lines = list(read_log(all_three / "log.jsonl"))
    parts = {"loss", "overlay", "restoration", "gate", "change", "texture", "perspective", "presence"}
    for line in lines:
        if line["event"] == "train":
            assert parts <= line.keys()
            assert all(np.isfinite(line[name]) for name in parts)
            assert line["skipped"] == 0
    figures = [line["figures"] for line in lines if line["event"] == "validation"][-1]
    for task in ("removal", "addition", "inpainting", "simulation", "hole"):
        assert figures[f"change_gain_db/{task}"] is not None
    assert figures["change_b_psnr"] > 0
    dice, gain, change = (figures[name] for name in ("dice_macro", "gain_db", "change_gain_db"))
    assert figures["score"] == pytest.approx(dice + gain / 50 + change / 50)


def test_its_weights_modify(all_three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, _ = load_network(all_three / "weights.safetensors")
    assert network.config.change
    assert network.config.detail == 1
    assert not network.training
    monkeypatch.setattr(inference, "TextEncoder", Words)
    image = np.minimum(crop(3, 90, 70), 250)
    image[20:40, 20:40] = 255
    cv2.imwrite(str(tmp_path / "in.png"), image[..., ::-1])
    editor = f"compact:{all_three / 'weights.safetensors'},precision=fp32,device=cpu"
    command = ["edit", str(tmp_path / "in.png"), "Fill the white area with healthy mucosa", "-e", editor]
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out.png"), "--json"])
    assert done.exit_code == 0, done.output
    assert "confidence" in done.stdout


def test_every_head_learns_from_modifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is lowest for the right gate and the right pixels; beside the area nothing counts but calm."""
    write_pack(tmp_path / "pack", changed_pack())
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compact, "TextEncoder", Encoder)
    monkeypatch.setattr("mie.training.compact_data.SIDE", compact_tiny.SMALL)
    monkeypatch.setattr("mie.training.compact_data.LARGE", 2 * compact_tiny.SMALL)
    made = compact.Compact(compact_config(tmp_path / "pack", batch=8, data={"shares": {"modification": 1}}))
    made.check()
    made.prepare(torch.device("cpu"))
    views = made.pool.views(made.batch(0, 0, 1), 0)

    def loss(sure: float, drawn: float, beside: float = 0.0) -> float:
        residual = drawn * (views.goal - views.image) * views.area + beside * (1 - views.area)
        heads = Heads(
            overlay=torch.full_like(views.image, -20.0),
            residual=residual,
            perspective=20 * torch.eye(3)[views.perspective],
            presence=sure * (2 * views.removable - 1),
            change=sure * (2 * views.area - 1),
        )
        return compact._total_loss(views, heads, made.texture, 0.1)[0].item()

    best = loss(20, 1)
    assert best == pytest.approx(0, abs=0.01), "exact: 2 + 10 log10(1e-4) / 20"
    assert best < loss(2, 1) < loss(0, 1) < loss(-5, 1)
    assert best < loss(20, 0.9) < loss(20, 0.5) < loss(20, 0)
    assert best < loss(20, 1, 0.1)
