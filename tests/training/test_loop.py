from __future__ import annotations

import json
import resource
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import cv2
import torch
from safetensors.torch import load_file

from mie.errors import ConfigError, MieError
from mie.training import loop
from mie.training.folder import read_log
from mie.training.loop import Progress, train
from tests.training.tiny import Tiny, tiny_config


def events(out: Path, kind: str) -> list[dict]:
    return [line for line in read_log(out / "log.jsonl") if line["event"] == kind]


def test_it_learns_and_writes_what_it_promises(tmp_path: Path) -> None:
    shown: list[Progress] = []
    result = train(tiny_config(steps=40), tmp_path, device="cpu", progress=shown.append)
    assert result.complete
    lines = events(tmp_path, "train")
    assert [line["step"] for line in lines] == sorted({*range(2, 41, 2)})
    assert lines[-1]["loss"] < lines[0]["loss"] / 2
    assert lines[-1]["rmse"] == pytest.approx(lines[-1]["loss"] ** 0.5, rel=0.1)
    assert shown[-1].steps == 40
    assert {p.name for p in tmp_path.iterdir()} >= {
        "train.json",
        "log.jsonl",
        "best.json",
        "weights.safetensors",
    }
    grid = cv2.imread(str(tmp_path / "grids/step-000040.png"))
    assert grid.shape == (12, 24, 3)
    info = json.loads((tmp_path / "train.json").read_text())
    assert (info["status"], info["step"], info["config"]["batch"]) == ("complete", 40, 4)
    assert info["versions"]["torch"]


def test_the_first_step_is_the_one_of_plain_pytorch(tmp_path: Path) -> None:
    """Seed, batch, clipping, AdamW, decay of maps alone: written out with torch's own pieces."""
    config = tiny_config(
        steps=3, checkpoint={"every": 1, "keep": 9}, model={"dropout": 0.0}, channels_last=False
    )
    train(config, tmp_path, device="cpu")
    tiny = Tiny(config)
    loop.seed_step(config.seed, -1)
    model = tiny.model()
    maps = [p for p in model.parameters() if p.ndim > 1]
    flat = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": maps, "weight_decay": 0.02}, {"params": flat, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.99), foreach=False)
    mean = {name: value.clone() for name, value in model.state_dict().items()}
    for step, rate in enumerate((1e-2 / 3, 2e-2 / 3, 1e-2)):
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.zero_grad()
        tiny.loss(model, tiny.batch(step, 0, 1), step)[0].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        decay = min(0.998, (2 + step) / (11 + step))
        mean = {name: decay * mean[name] + (1 - decay) * value for name, value in model.state_dict().items()}
        folder = tmp_path / f"checkpoints/step-{step + 1:06d}"
        for file, wanted in (("model", model.state_dict()), ("ema", mean)):
            found = load_file(folder / f"{file}.safetensors")
            for name, value in wanted.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_the_best_average_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = iter([3.0, None, 7.0, 5.0, 7.0])
    monkeypatch.setattr(Tiny, "validate", lambda self, model: {"psnr": next(figures)})
    train(
        tiny_config(steps=10, validate={"every": 2}, checkpoint={"every": 5, "keep": 1}),
        tmp_path,
        device="cpu",
    )
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 6
    assert [p.name for p in sorted(tmp_path.glob("checkpoints/*"))] == ["step-000006", "step-000010"]
    average = load_file(tmp_path / "checkpoints/step-000006/ema.safetensors")
    shipped = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(shipped[name], average[name]) for name in average)
    figures_logged = [line["figures"]["psnr"] for line in events(tmp_path, "validation")]
    assert figures_logged == [3.0, None, 7.0, 5.0, 7.0]


def test_validation_sees_the_average_without_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def validate(self: Tiny, model: torch.nn.Module) -> dict[str, float | None]:
        assert not model.training
        assert not torch.is_grad_enabled()
        assert not torch.backends.cudnn.benchmark  # which would time every size of an image
        seen.update({name: value.clone() for name, value in model.state_dict().items()})
        return {"psnr": None}

    monkeypatch.setattr(Tiny, "validate", validate)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    result = train(tiny_config(), tmp_path, device="cpu")
    assert torch.backends.cudnn.benchmark
    average = load_file(tmp_path / "checkpoints/step-000012/ema.safetensors")
    assert all(torch.equal(seen[name], average[name]) for name in average)
    # Nothing was scored: the last average is shipped, and no number is made up.
    assert result.info["best"] is None
    assert all(torch.equal(v, average[k]) for k, v in load_file(tmp_path / "weights.safetensors").items())


def test_a_bad_step_changes_nothing(tmp_path: Path) -> None:
    """The weights after a skipped step are those before it; batch norm's means too."""
    bad = {"bad_steps": [2, 3]}
    config = tiny_config(data=bad, model={"norm": True}, steps=6, checkpoint={"every": 1, "keep": 9})
    train(config, tmp_path, device="cpu")
    at = [load_file(tmp_path / f"checkpoints/step-{n:06d}/model.safetensors") for n in range(1, 7)]
    same = [all(torch.equal(a[k], b[k]) for k in a if "tracked" not in k) for a, b in pairwise(at)]
    assert same == [False, True, True, False, False]
    assert all(value.isfinite().all() for value in at[-1].values())
    moments = [load_file(tmp_path / f"checkpoints/step-{n:06d}/optimizer.safetensors") for n in (2, 4)]
    assert all(torch.equal(moments[0][k], moments[1][k]) for k in moments[0])
    assert [line["skipped"] for line in events(tmp_path, "train")] == [0, 0, 1, 2, 2, 2]
    assert all(line["loss"] is None or np.isfinite(line["loss"]) for line in events(tmp_path, "train"))


def test_many_bad_steps_stop_the_training(tmp_path: Path) -> None:
    config = tiny_config(steps=60, data={"bad_steps": list(range(5, 60))}, validate={"every": 60})
    with pytest.raises(MieError, match=r"not finite in \d\d steps in a row[\s\S]*step-000024") as caught:
        train(config, tmp_path, device="cpu")
    assert (
        caught.value.where == "step 26"
    )  # twenty bad steps after five good ones, at the next line of the log
    assert json.loads((tmp_path / "train.json").read_text())["status"] == "interrupted"


def test_out_of_memory_names_the_batch_that_fits(tmp_path: Path) -> None:
    with pytest.raises(MieError, match=r"batch: 2 fits") as caught:
        train(tiny_config(batch=16, data={"fits": 3}), tmp_path / "a", device="cpu")
    assert "16" in caught.value.what
    assert "7 GiB" in str(caught.value.found)
    with pytest.raises(MieError, match="no smaller batch fits"):
        train(tiny_config(batch=16, data={"fits": 0}), tmp_path / "b", device="cpu")


def test_an_error_in_the_batch_thread_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such picture"):
        train(tiny_config(data={"fail_at": 7}), tmp_path, device="cpu")
    assert [line["step"] for line in events(tmp_path, "train")] == [2, 4, 6]


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    config = tiny_config(model={"width": 64})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(at: Progress) -> None:
        if at.step >= 6:  # a file of the checkpoint does not fit, lines of the log do
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))

    try:
        with pytest.raises(MieError, match="disk is full"):
            train(config, tmp_path / "a", device="cpu", progress=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in (tmp_path / "a/checkpoints").iterdir()] == ["step-000004"]
    assert train(config, tmp_path / "a", device="cpu").complete
    train(config, tmp_path / "b", device="cpu")
    assert (tmp_path / "a/weights.safetensors").read_bytes() == (
        tmp_path / "b/weights.safetensors"
    ).read_bytes()


def test_the_profile_has_every_phase(tmp_path: Path) -> None:
    result = train(tiny_config(steps=16), tmp_path, device="cpu", profile=4)
    assert result.profile is not None
    assert list(result.profile["phases"]) == ["data wait", "forward", "backward", "optimizer"]
    assert sum(one["share"] for one in result.profile["phases"].values()) == pytest.approx(1, abs=1e-3)
    assert result.profile["tflops"] == pytest.approx(result.profile["images_per_second"] / 1e6, abs=0.01)
    (line,) = events(tmp_path, "profile")
    assert (line["step"], line["steps"]) == (14, 4)


def test_half_precision_and_compiling_keep_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    compile_, loss = torch.nn.Module.compile, Tiny.loss

    def watched(self: Tiny, model: torch.nn.Module, batch: Any, step: int) -> Any:
        seen.append(model(batch.image).dtype)
        return loss(self, model, batch, step)

    monkeypatch.setattr(Tiny, "loss", watched)
    # Traced as ever, but run by Python: not every machine has a compiler.
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, dynamic: compile_(self, backend="eager"))
    config = tiny_config(steps=2, precision="bf16", compile=True)
    train(config, tmp_path, device="cpu")
    names = set(load_file(tmp_path / "checkpoints/step-000002/model.safetensors"))
    assert names == set(Tiny(config).model().state_dict())
    assert set(seen) == {torch.float32}


def test_wrong_devices_and_figures_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such device"):
        train(tiny_config(), tmp_path / "a", device="tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no GPU"):
        train(tiny_config(), tmp_path / "b", device="cuda")
    monkeypatch.setattr(Tiny, "validate", lambda self, model: {"dice": 1.0})
    with pytest.raises(MieError, match="lacks the figure"):
        train(tiny_config(), tmp_path / "c", device="cpu")
