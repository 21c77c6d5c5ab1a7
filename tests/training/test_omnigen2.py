"""OmniGen2 is trained, whole and as a LoRA; it resumes to the same bytes and runs as an editor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")
pytest.importorskip("diffusers", reason="OmniGen2's autoencoder comes from diffusers")

import torch
from safetensors.torch import load_file

from mie.core.files import digest
from mie.errors import ConfigError, MieError
from mie.training.folder import read_log
from mie.training.loop import train
from mie.training.omnigen2 import OmniGen2
from mie.training.omnigen2_encoders import DROPPED
from tests import forked_python
from tests.training.omnigen2_tiny import omnigen2_config, write_edits

ROOT = Path(__file__).parents[2]
LORA: dict[str, Any] = {"model": {"lora": {"rank": 2, "alpha": 4, "merge": True}}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model, the dataset, and what was trained on it."""
    from tests.editors.large.tiny_omnigen2 import write_omnigen2

    root = tmp_path_factory.mktemp("omnigen2")
    write_omnigen2(root / "base")
    write_edits(root / "dataset")
    return root


def config(place: Path, **changes: Any) -> Any:
    return omnigen2_config(place / "base", place / "dataset", place / "cache", **changes)


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    assert train(config(place), place / "whole", device="cpu").complete
    return place / "whole"


@pytest.fixture(scope="module")
def lora(place: Path) -> Path:
    assert train(config(place, **LORA), place / "lora-out", device="cpu").complete
    return place / "lora-out"


def digests(out: Path) -> dict[str, str]:
    names = ["checkpoints/step-000008/model.safetensors", "checkpoints/step-000008/optimizer.safetensors"]
    files = [path for path in out.glob("*/**/*.safetensors") if path.parent.name in ("transformer", "lora")]
    return {str(path.relative_to(out)): digest(path) for path in [*(out / name for name in names), *files]}


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_log(out / "log.jsonl") if line["event"] == "train"]


def test_the_loss_falls_and_is_told_by_perspective_and_bin(whole: Path) -> None:
    found = losses(whole)
    assert len(found) == 8
    assert np.mean(found[-3:]) < 0.9 * np.mean(found[:3])
    lines = [line for line in read_log(whole / "log.jsonl") if line["event"] == "train"]
    names = set().union(*lines)
    assert {"perception", "transformation", "bin_32", "bin_48", "tflops", "data_wait"} <= names
    (validation,) = [line for line in read_log(whole / "log.jsonl") if line["event"] == "validation"]
    assert set(validation["figures"]) == {"score", "flow", "flow_perception", "flow_transformation"}
    assert (whole / "grids/step-000008.png").is_file()
    assert not (whole / "checkpoints/step-000008/ema.safetensors").exists()


def test_a_killed_training_ends_with_the_same_bytes(place: Path, whole: Path, tmp_path: Path) -> None:
    """Killed twice: before the first checkpoint, and after it."""
    out = tmp_path / "out"
    code = f"""
import os
from pathlib import Path
from mie.training import loop, omnigen2
from tests import forked_python
from tests.training.omnigen2_tiny import Mortal, omnigen2_config
place, out = Path({str(place)!r}), Path({str(out)!r})
def sitting(death):
    if os.fork() == 0:
        os.environ["MIE_TEST_DIE"] = death
        omnigen2.OmniGen2 = Mortal
        paths = [place / name for name in ("base", "dataset", "cache")]
        config = omnigen2_config(*paths, model={{"grid_steps": 0}})
        loop.train(config, out, device="cpu")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.wait()[1])
if __name__ == "__main__":
    print([sitting(death) for death in ("0:2", "0:5", "")])
"""
    script = tmp_path / "killed.py"
    script.write_text(code)
    done = forked_python.run([sys.executable, str(script)], env=environment())
    assert done.stdout.strip() == "[-9, -9, 0]", done.stderr[-3000:]
    assert digests(out) == digests(whole)


def test_the_trained_model_edits_and_is_scored(place: Path, whole: Path, tmp_path: Path) -> None:
    import mie

    dataset = mie.Dataset(place / "dataset")
    run = mie.run(
        dataset.filter(split="test"),
        f"omnigen2:{whole / 'model'},steps=2,size=64,device=cpu,dtype=fp32",
        tmp_path / "run",
    )
    results = mie.score(run, "miedb")
    assert len(results.frame) == 6
    assert results.frame["dice"].notna().sum() == 3
    before = load_file(place / "base/transformer/diffusion_pytorch_model-00001-of-00002.safetensors")
    after = load_file(whole / "model/transformer/diffusion_pytorch_model.safetensors")
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_lora_is_small_merges_and_edits_alike(place: Path, lora: Path) -> None:
    from mie.editors import open_editor

    found = losses(lora)
    assert np.mean(found[-3:]) < np.mean(found[:3])
    names = set(load_file(lora / "checkpoints/step-000008/model.safetensors"))
    assert names
    assert all("lora_" in name for name in names), "checkpoints hold the adapter alone"
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    options = "steps=2,device=cpu,dtype=fp32"
    outputs = []
    for spec in (
        f"omnigen2:{place / 'base'},lora={lora / 'lora'},{options}",
        f"omnigen2:{lora / 'lora/merged'},{options}",
        f"omnigen2:{place / 'base'},{options}",
    ):
        editor = open_editor(spec)
        outputs.append(editor.edit(image, "Paint it red.", seed=3, history=()).image.astype(int))
        editor.close()
    assert np.abs(outputs[0] - outputs[1]).max() <= 1
    assert np.abs(outputs[0] - outputs[2]).max() > 1, "the adapter changes the edit"


def environment(**changes: str) -> dict[str, str]:
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **changes}


def mortal(place: Path) -> Any:
    return config(place, trainee="tests.training.omnigen2_tiny:Mortal", model={"grid_steps": 0})


def train_by_command(place: Path, out: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    path = place / "two.yaml"
    body = mortal(place).document()
    path.write_text(yaml.safe_dump(body))
    command = [sys.executable, "-m", "mie", "train", path, "-o", out, "--device", "cpu", "--processes", "2"]
    variables |= forked_python.quick_children(place / "bin")
    return forked_python.run([*map(str, command)], env=environment(**variables))


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="torch was built without gloo")
def test_two_processes_equal_one_and_survive_a_kill(place: Path, whole: Path, tmp_path: Path) -> None:
    """Two share the model (FSDP), one is killed, two resume; then one process resumes what two wrote."""
    out = tmp_path / "two"
    killed = train_by_command(place, out, MIE_TEST_DIE="1:4")
    assert killed.returncode == 1
    assert "process 2 of 2 was killed" in killed.stderr
    assert "resumes from step-000003" in killed.stderr
    done = train_by_command(place, out)
    assert done.returncode == 0, done.stderr[-3000:]
    np.testing.assert_allclose(losses(out), losses(whole), rtol=1e-5)
    one = load_file(whole / "model/transformer/diffusion_pytorch_model.safetensors")

    def equal_to_one() -> None:
        found = load_file(out / "model/transformer/diffusion_pytorch_model.safetensors")
        for name, value in one.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)

    equal_to_one()
    parts = sorted(path.name for path in (out / "checkpoints/step-000006").glob("model*"))
    assert parts == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    # As if the end had not been reached: one process resumes what two began.
    for name in ("checkpoints/step-000008", "model"):
        shutil.rmtree(out / name)
    info = json.loads((out / "train.json").read_text())
    (out / "train.json").write_text(json.dumps({**info, "status": "running"}))
    assert train(mortal(place), out, device="cpu").complete
    resumed = [json.loads(x) for x in (out / "log.jsonl").read_text().splitlines() if '"resume"' in x]
    assert [line["step"] for line in resumed] == [3, 6]
    equal_to_one()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 6}, r"this folder contains another training[\s\S]*batch"),
        ({"model": {"micro_batch": 3}}, "does not divide into micro-batches"),
        ({"data": {"datasets": ["none"]}}, "no finished dataset here"),
        ({"model": {"lora": {"targets": ["to_z"]}}}, r"another training|no linear layer"),
    ],
)
def test_changed_settings_are_refused(
    place: Path, whole: Path, changes: dict[str, Any], message: str
) -> None:
    before = digests(whole)
    with pytest.raises(MieError, match=message):
        train(config(place, **changes), whole, device="cpu")
    assert digests(whole) == before, "never a silent restart"


def test_changed_data_is_refused(place: Path, whole: Path, tmp_path: Path) -> None:
    other = write_edits(tmp_path / "dataset", more=1)
    with pytest.raises(ConfigError, match=r"another training[\s\S]*data_digests|datasets"):
        train(omnigen2_config(place / "base", other, place / "cache"), whole, device="cpu")


def test_a_damaged_entry_of_the_cache_ends_the_training(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "cache", tmp_path / "cache")
    for path in (tmp_path / "cache").glob("moments-*/*/*.safetensors"):
        path.write_bytes(path.read_bytes()[:-2] + b"no")
    own = omnigen2_config(place / "base", place / "dataset", tmp_path / "cache", model={"grid_steps": 0})
    with pytest.raises(MieError, match=r"cache of moments cannot be used[\s\S]*remove the file"):
        train(own, tmp_path / "out", device="cpu")


def test_captions_and_references_are_dropped_as_often_as_the_file_says(place: Path, whole: Path) -> None:
    trainee = OmniGen2(config(place, data={"caption_drop": 0.3, "reference_drop": 0.5}))
    trainee.check()
    trainee.prepare(torch.device("cpu"))
    row = trainee.parts["train"][0].rows[0]
    dropped = trainee._states(DROPPED)
    examples = [trainee._example(row, seed) for seed in range(400)]
    bare = [len(one.states) == len(dropped) and torch.equal(one.states, dropped) for one in examples]
    alone = [not one.references for one in examples]
    assert np.mean(bare) == pytest.approx(0.3, abs=0.07)
    assert np.mean(alone) == pytest.approx(0.15, abs=0.05)
    assert all(b for a, b in zip(alone, bare, strict=True) if a), "only without a caption"
    t = torch.stack([one.t for one in examples])
    assert ((t > 0) & (t < 1)).all()
    assert t.median() < 0.5, "shifted towards the noise"
