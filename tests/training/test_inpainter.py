"""The experts' training: holes on healthy tissue only, grain that is learnt, files that the backend opens."""

import json
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `models`")

from mie.errors import ConfigError  # noqa: E402
from mie.networks.fill import FillConfig  # noqa: E402
from mie.perspectives.modification.inpainters.compact import open_compact  # noqa: E402
from mie.training import inpainter  # noqa: E402
from mie.training import inpainter as inpainter_data  # noqa: E402
from mie.training.config import parse_config  # noqa: E402
from mie.training.loop import train  # noqa: E402
from mie.training.pack import (  # noqa: E402
    TRAIN,
    VALIDATION,
    Instruction,
    Pack,
    Row,
    Wording,
    write_pack,
)
from tests.conftest import crop, ellipse  # noqa: E402


def made_pack(images=6, lesions=True):
    """Noisy ultrasound-like pictures, each with one lesion; the last two are held out."""
    pictures, masks, rows = [], [], []
    for at in range(images):
        noise = np.random.default_rng(at).normal(0, 18, (160, 160))
        pictures.append(np.clip(crop(at, 160, 160).mean(axis=2) * 0.3 + 90 + noise, 0, 255).astype(np.uint8))
        masks.append(ellipse(at).astype(np.uint8))
        fold = VALIDATION if at >= images - 2 else TRAIN
        rows.append(
            Row(f"r{at}", "perception", "lesion" if lesions else "structure", "lesion", None, "ultrasound",
                "breast", "made", f"p{at}", "", fold, at, None, at, 1, 0)
        )  # fmt: skip
    return Pack(pictures, masks, rows, [Instruction("a", (Wording("Mark it in RED", "t", ("red",)),))], {})


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(inpainter_data, "SIDE", 64)
    monkeypatch.setattr(inpainter, "FillConfig", lambda: FillConfig((16, 16, 16, 16), (1, 2)))
    monkeypatch.setattr(inpainter, "Critic", partial(inpainter.Critic, 8))


def config(tmp_path, **changes):
    body = {
        "name": "t", "trainee": "inpainter", "steps": 40, "batch": 4, "precision": "fp32", "ema": 0.8,
        "optimizer": {"lr": 3e-3, "warmup": 2}, "checkpoint": {"every": 40}, "validate": {"every": 40},
        "log_every": 10, "data": {"packs": [str(tmp_path / "pack")], "family": "ultrasound", "holes": 6},
    }  # fmt: skip
    return parse_config({**body, **changes})


def test_a_hole_never_touches_a_lesion_or_the_air():
    pack = made_pack()
    pack.images[0][:, 120:] = 0
    for healthy, place in zip(
        inpainter_data.healthy_images([pack], "ultrasound", TRAIN), range(4), strict=True
    ):
        assert not (healthy.allowed & (pack.masks[place] > 0)).any()
    shapes = inpainter_data.lesion_shapes([pack], "ultrasound", TRAIN)
    first = inpainter_data.healthy_images([pack], "ultrasound", TRAIN)[0]
    assert not first.allowed[:, 130:].any()
    found = [shapes.sample(np.random.default_rng(n), 160, 160, allowed=first.allowed) for n in range(20)]
    holes = [hole for hole in found if hole is not None]
    assert holes
    assert all((first.allowed | ~hole).all() for hole in holes)


def test_a_window_shows_its_hole_and_its_image():
    pack = made_pack()
    image = np.repeat(pack.images[0][..., None], 3, axis=2)
    hole = np.zeros((160, 160), bool)
    hole[20:60, 90:140] = True
    cut, mark = inpainter_data.window(image, hole, np.random.default_rng(0))
    assert cut.shape == (256, 256, 3)
    assert mark.sum() >= hole.sum()
    # What is under the hole is nowhere else in the window, in no mirror either.
    image[hole], image[~hole] = 255, 0
    again, same = inpainter_data.window(image, hole, np.random.default_rng(0))
    assert (same == mark).all()
    assert ((again == 255).all(axis=2) == mark).all()


def test_training_learns_grain_and_the_backend_opens_the_file(tmp_path, small):
    write_pack(tmp_path / "pack", made_pack())
    done = train(config(tmp_path, steps=80, validate={"every": 80}), tmp_path / "out", device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    energy = [line["energy"] for line in lines if line["event"] == "train"]
    figures = [line["figures"] for line in lines if line["event"] == "validation"]
    assert energy[-1] < 0.75 * energy[0]
    assert figures[-1]["variance_ratio"] > 0.3  # a mean has next to none: 0.02 here
    assert figures[-1]["psnr"] > 15
    expert = open_compact(str(done.folder / "weights.safetensors"), {}, "ultrasound")
    image, hole = np.repeat(made_pack().images[5][..., None], 3, axis=2), ellipse(40)
    filled = expert.fill(image, hole, seed=1)
    assert (filled[~hole] == image[~hole]).all()
    assert filled[hole].std() > 3
    assert (filled[..., 0] == filled[..., 2]).all()


def test_the_critic_and_the_fill_do_not_pull_each_other(small):
    torch.manual_seed(0)
    model = inpainter.Adversaries(FillConfig((16, 16, 16, 16), (1,)))
    image, hole = torch.rand(2, 3, 64, 64), torch.zeros(2, 1, 64, 64)
    hole[..., 20:40, 20:40] = 1
    judged = model(image, hole, torch.randn(2, 1, 64, 64), False)
    judged.seen.sum().backward(retain_graph=True)
    assert all(p.grad is None for p in model.critic.parameters())
    assert model.fill.mean.weight.grad is None  # the mean is the regression's business
    assert model.fill.grain[2].weight.grad.abs().sum() > 0
    model.zero_grad()
    judged.filled.sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in model.fill.parameters())
    assert any(p.grad.abs().sum() > 0 for p in model.critic.parameters())


def test_what_cannot_be_trained_is_said_before_it_begins(tmp_path, small):
    write_pack(tmp_path / "pack", made_pack())
    data = {"packs": [str(tmp_path / "pack")]}
    with pytest.raises(ConfigError, match="no such family"):
        train(config(tmp_path, data={**data, "family": "sonar"}), tmp_path / "a", device="cpu")
    with pytest.raises(ConfigError, match="no ct images to train on"):
        train(config(tmp_path, data={**data, "family": "ct"}), tmp_path / "b", device="cpu")
    write_pack(tmp_path / "none", made_pack(lesions=False))
    nothing = {"packs": [str(tmp_path / "none")], "family": "ultrasound"}
    with pytest.raises(ConfigError, match="no lesion masks"):
        train(config(tmp_path, data=nothing), tmp_path / "c", device="cpu")
