"""FLUX Fill as an inpainter, on a tiny pipeline with random weights, read from disk as the real one is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers", reason="flux-fill needs the extra `models`")
pytest.importorskip("peft", reason="flux-fill needs the extra `models`")

import torch
from diffusers import FluxFillPipeline
from safetensors import safe_open

from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.images.overlay import is_grey
from mie.perspectives.modification.inpainters import Inpainter, make_inpainter
from mie.perspectives.modification.inpainters.flux import PROMPTS, save_lora
from tests.conftest import crop, ellipse
from tests.perspectives.modification.inpainters.flux_tiny import write_tiny_flux

LAYER = "transformer_blocks.0.attn.to_q"
ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": [LAYER], "bias": "none"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_flux(tmp_path_factory.mktemp("flux") / "base")


@pytest.fixture(scope="module")
def skin(base: Path) -> Inpainter:
    return tiny(base)


def tiny(base: Path | str, options: str = "", family: str = "dermoscopy") -> Inpainter:
    return make_inpainter(f"flux-fill:{base},steps=2,size=64,device=cpu{options}", family=family)


def write_lora(path: Path, side: int = 32, family: str = "dermoscopy") -> Path:
    draw = torch.Generator().manual_seed(1)
    tensors = {
        f"{LAYER}.lora_A.weight": torch.randn(2, side, generator=draw),
        f"{LAYER}.lora_B.weight": torch.randn(side, 2, generator=draw),
    }
    save_lora(path, tensors, ADAPTER, {"family": family})
    return path


def test_it_is_imported_without_the_large_packages() -> None:
    code = (
        "import sys, mie.perspectives.modification.inpainters.flux;"
        "assert not {'torch', 'diffusers', 'transformers', 'peft'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_family_has_a_prompt_of_its_own() -> None:
    assert set(PROMPTS) == set(FAMILIES)
    assert len(set(PROMPTS.values())) == len(FAMILIES)


def test_the_same_seed_gives_the_same_bytes(base: Path, skin: Inpainter) -> None:
    image, mask = crop(1, 64, 64), ellipse(1, 64, 64)
    filled = skin.fill(image, mask, seed=5)
    assert np.array_equal(filled, skin.fill(image, mask, seed=5))
    assert np.array_equal(filled, tiny(base).fill(image, mask, seed=5)), "loaded anew"
    assert not np.array_equal(filled[mask], skin.fill(image, mask, seed=6)[mask])
    assert not np.array_equal(filled[mask], image[mask])


@pytest.mark.parametrize(("height", "width"), [(37, 53), (64, 48), (9, 200), (201, 90)])
def test_the_size_is_kept_and_what_is_under_the_hole_is_not_seen(
    skin: Inpainter, height: int, width: int
) -> None:
    image, mask = crop(2, height, width), ellipse(2, height, width)
    other = image.copy()
    other[mask] = 255 - other[mask]
    filled = skin.fill(image, mask, seed=1)
    assert filled.shape == image.shape
    assert filled.dtype == np.uint8
    assert np.array_equal(filled, skin.fill(other, mask, seed=1))


def test_the_pipeline_is_not_even_given_what_is_under_the_hole(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would mask it by itself, unless its scheduler begins below full noise."""
    given: list[np.ndarray] = []
    whole = FluxFillPipeline.__call__

    def catch(self: FluxFillPipeline, **inputs: Any) -> Any:
        given.append(inputs["image"])
        return whole(self, **inputs)

    monkeypatch.setattr(FluxFillPipeline, "__call__", catch)
    image, mask = crop(2, 200, 90), ellipse(2, 200, 90)
    other = np.where(mask[..., None], 255 - image, image)
    inpainter = tiny(base)
    for shown in (image, other):
        inpainter.fill(shown, mask, seed=1)
    assert np.array_equal(given[0], given[1])


def test_what_is_around_the_hole_is_seen(skin: Inpainter) -> None:
    image, mask = crop(2, 64, 64), ellipse(2, 64, 64)
    assert not np.array_equal(
        skin.fill(image, mask, seed=1)[mask], skin.fill(255 - image, mask, seed=1)[mask]
    )


def test_far_from_the_hole_nothing_changes(skin: Inpainter) -> None:
    image = crop(0, 300, 300)
    mask = np.zeros((300, 300), bool)
    mask[10:20, 10:25] = True
    changed = (skin.fill(image, mask, seed=0) != image).any(2)
    assert changed[mask].any()
    assert not changed[64:].any()
    assert not changed[:, 64:].any()


def test_without_a_hole_the_image_comes_back(skin: Inpainter) -> None:
    image = crop(0, 40, 40)
    assert np.array_equal(skin.fill(image, np.zeros((40, 40), bool), seed=0), image)


def test_grey_families_stay_grey(base: Path) -> None:
    image = np.repeat(crop(1, 64, 50)[..., 1:2], 3, 2)
    mask = ellipse(1, 64, 50)
    assert is_grey(tiny(base, family="ct").fill(image, mask, seed=0))
    assert not is_grey(tiny(base, family="fundus").fill(image, mask, seed=0))


def test_guidance_and_family_reach_the_model(base: Path, skin: Inpainter) -> None:
    image, mask = crop(1, 64, 64), ellipse(1, 64, 64)
    filled = [
        inpainter.fill(image, mask, seed=0).tobytes()
        for inpainter in (skin, tiny(base, ",guidance=2"), tiny(base, family="fundus"))
    ]
    assert len(set(filled)) == 3


def test_a_lora_changes_the_fill(base: Path, skin: Inpainter, tmp_path: Path) -> None:
    image, mask = crop(1, 64, 64), ellipse(1, 64, 64)
    lora = write_lora(tmp_path / "lora.safetensors")
    filled = tiny(base, f",lora={lora}").fill(image, mask, seed=5)
    assert not np.array_equal(filled[mask], skin.fill(image, mask, seed=5)[mask])


def test_a_lora_is_written_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    files = {write_lora(tmp_path / f"{n}.safetensors").read_bytes() for n in range(20)}
    assert len(files) == 1  # three entries of metadata have six orders
    with safe_open(tmp_path / "0.safetensors", framework="pt") as file:
        assert sorted(file.metadata()) == ["format", "lora_adapter_metadata", "mie"]
        draw = torch.Generator().manual_seed(1)
        assert torch.equal(
            file.get_tensor(f"transformer.{LAYER}.lora_A.weight"), torch.randn(2, 32, generator=draw)
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"side": 48}, r"does not fit the base model[\s\S]*to_q.lora_A.weight is \(2, 48\)"),
        ({"family": "ct"}, r"trained for another family[\s\S]*dermoscopy[\s\S]*ct"),
    ],
)
def test_a_lora_of_something_else_is_refused(base: Path, tmp_path: Path, change: dict, said: str) -> None:
    lora = write_lora(tmp_path / "lora.safetensors", **change)
    with pytest.raises(ConfigError, match=said):
        tiny(base, f",lora={lora}").fill(crop(1, 64, 64), ellipse(1, 64, 64), seed=0)


def test_a_lora_of_layers_that_are_not_there_is_refused(base: Path, tmp_path: Path) -> None:
    tensors = {"transformer_blocks.7.attn.to_q.lora_A.weight": torch.zeros(2, 32)}
    save_lora(tmp_path / "lora.safetensors", tensors, ADAPTER, {})
    with pytest.raises(ConfigError, match="is of no layer here"):
        tiny(base, f",lora={tmp_path / 'lora.safetensors'}").fill(crop(1, 64, 64), ellipse(1, 64, 64), seed=0)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("flux-fill", "needs an argument"),
        ("flux-fill:{base},step=3", "did you mean 'steps'"),
        ("flux-fill:{base},steps=0", "steps from 1"),
        ("flux-fill:{base},size=100", "multiple of 16"),
        ("flux-fill:{base},dtype=fp16", "auto, bf16 or fp32"),
        ("flux-fill:{base},lora=/no/such.safetensors", "the LoRA cannot be read"),
        ("flux-fill:/no/such/folder", "no such folder"),
        ("flux-fill:nobody/FLUX", r"hf download nobody/FLUX[\s\S]*Non-Commercial License"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(base: Path, spec: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_inpainter(spec.format(base=base), family="ct")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(base: Path) -> None:
    with pytest.raises(ConfigError, match="no GPU"):
        make_inpainter(f"flux-fill:{base},device=cuda", family="ct")


def test_a_hub_id_is_taken_from_the_local_cache(
    base: Path, skin: Inpainter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "models--somebody--tiny"
    shutil.copytree(base, kept / "snapshots" / ("0" * 40))
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    image, mask = crop(1, 64, 64), ellipse(1, 64, 64)
    filled = tiny("somebody/tiny").fill(image, mask, seed=5)
    assert np.array_equal(filled, skin.fill(image, mask, seed=5))


def test_another_pipeline_is_refused(base: Path, tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    with pytest.raises(ConfigError, match=r"not a FLUX Fill model[\s\S]*FluxPipeline"):
        tiny(tmp_path)
    (tmp_path / "model_index.json").unlink()
    with pytest.raises(ConfigError, match="no diffusers pipeline here"):
        tiny(tmp_path)


@pytest.mark.parametrize(
    ("part", "pickled"),
    [("vae", "diffusion_pytorch_model.bin"), ("text_encoder_2", "pytorch_model.bin")],
)
def test_pickled_weights_are_refused(base: Path, tmp_path: Path, part: str, pickled: str) -> None:
    folder = shutil.copytree(base, tmp_path / "base")
    (weights,) = (folder / part).glob("*.safetensors")
    weights.unlink()
    torch.save({}, folder / part / pickled)
    with pytest.raises(ConfigError, match="the base model cannot be read"):
        tiny(folder).fill(crop(1, 64, 64), ellipse(1, 64, 64), seed=0)
