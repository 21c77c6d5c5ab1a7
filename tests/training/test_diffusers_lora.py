"""LoRAs of diffusers' pipelines are trained on a dataset and load in the editor `diffusers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")
pytest.importorskip("diffusers", reason="the pipelines come from diffusers")

import torch
from safetensors.torch import load_file

from mie.editors import open_editor
from mie.errors import ConfigError
from mie.training.config import parse_config
from mie.training.diffusers_lora import DiffusersLora
from mie.training.folder import read_log
from mie.training.loop import train
from mie.training.teaching import pack
from tests.training.omnigen2_tiny import write_edits


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_edits(tmp_path_factory.mktemp("edits") / "dataset")


def config(base: Path, dataset: Path, cache: Path, **changes: Any) -> Any:
    body: dict[str, Any] = {
        "name": "lora",
        "trainee": "diffusers-lora",
        "steps": 6,
        "batch": 2,
        "ema": 0,
        "precision": "fp32",
        "optimizer": {"lr": 2e-2, "warmup": 0, "schedule": "constant"},
        "checkpoint": {"every": 6},
        "validate": {"every": 6},
        "log_every": 1,
        "data": {"datasets": [str(dataset)], "bins": [48], "cache": str(cache), "validate_samples": 2},
        "model": {"base": str(base), "lora": {"rank": 2, "alpha": 4}},
    }
    return parse_config({**body, **changes})


NAMES = [
    "FluxKontextPipeline",
    "QwenImageEditPipeline",
    "QwenImageEditPlusPipeline",
    "StableDiffusionInstructPix2PixPipeline",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_lora_is_trained_and_loads_in_the_editor(name: str, dataset: Path, tmp_path: Path) -> None:
    from tests.editors.large.tiny_pipelines import write_pipeline

    base = write_pipeline(name, tmp_path / "base")
    out = tmp_path / "out"
    assert train(config(base, dataset, tmp_path / "cache"), out, device="cpu").complete
    lines = read_log(out / "log.jsonl")
    losses = [line["loss"] for line in lines if line["event"] == "train"]
    assert np.isfinite(losses).all()
    (figures,) = [line["figures"] for line in lines if line["event"] == "validation"]
    assert {"score", "flow", "flow_perception", "flow_transformation"} == set(figures)
    saved = load_file(out / "lora/lora.safetensors")
    assert all(key.startswith(("transformer.", "unet.")) and ".lora_" in key for key in saved)
    assert any(value.abs().max() > 0 for key, value in saved.items() if "lora_B" in key), (
        "something was learnt"
    )
    spec = DiffusersLora(config(base, dataset, tmp_path / "cache")).editor(out / "lora")
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    outputs = []
    for text in (spec, f"diffusers:{base}"):
        editor = open_editor(f"{text},steps=2,device=cpu,dtype=fp32")
        outputs.append(editor.edit(image, "Remove the noise.", seed=1, history=()).image.astype(int))
        editor.close()
    assert np.abs(outputs[0] - outputs[1]).max() > 0, "the adapter changes the edit"


def test_a_pipeline_that_cannot_be_trained(dataset: Path, tmp_path: Path) -> None:
    from tests.editors.large.tiny_pipelines import write_pipeline

    base = write_pipeline("StableDiffusionXLImg2ImgPipeline", tmp_path / "base")
    with pytest.raises(ConfigError, match=r"no way to train the pipeline[\s\S]*FluxKontextPipeline"):
        DiffusersLora(config(base, dataset, tmp_path / "cache")).check()


def test_latents_are_packed_as_the_pipelines_do() -> None:
    from diffusers import FluxKontextPipeline, QwenImageEditPipeline

    latents = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 6)
    for pipeline in (FluxKontextPipeline, QwenImageEditPipeline):
        assert torch.equal(pack(latents), pipeline._pack_latents(latents, 2, 3, 4, 6))
