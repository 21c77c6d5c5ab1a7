"""Offload, quantize, tiling and compile: what reaches the libraries, as far as one can see without a GPU."""

from __future__ import annotations

import importlib.util
import shutil

import numpy as np
import pytest

from mie.editors import open_editor
from mie.editors.attention import check_watchable
from mie.editors.base import StopRunError
from mie.editors.diffusers import compiling
from mie.editors.diffusers.loader import Machine, find_pipeline, load_pipeline
from mie.editors.run import run_editor
from mie.errors import ConfigError
from tests.conftest import crop
from tests.editors.large.test_diffusers import WORDS, quick, spec

KONTEXT = "FluxKontextPipeline"
PIX2PIX = "StableDiffusionInstructPix2PixPipeline"


@pytest.fixture(scope="module")
def plain(tiny):
    """The pixels of an edit without any of the options."""
    return edited(quick(tiny(KONTEXT)))


@pytest.fixture(scope="module")
def omnigen2(tmp_path_factory):
    from tests.editors.large.tiny_omnigen2 import write_omnigen2

    return write_omnigen2(tmp_path_factory.mktemp("omnigen2") / "model")


def edited(editor):
    editor = open_editor(editor) if isinstance(editor, str) else editor
    return editor.edit(crop(3, 64, 64), WORDS[0], seed=1, history=()).image


def test_offload_layer_by_layer_changes_no_pixel(tiny, plain, monkeypatch):
    """The hooks of accelerate are its own; the GPU that the layers go to is this processor.

    diffusers would call it "cpu:0", at which accelerate 1.15 fails, so its method is replaced.
    """
    import accelerate
    import diffusers
    import torch

    def offload(pipe, device):
        for part in (pipe.text_encoder, pipe.text_encoder_2, pipe.transformer, pipe.vae):
            accelerate.cpu_offload(part, torch.device(device), offload_buffers=True)

    monkeypatch.setattr(diffusers.FluxKontextPipeline, "enable_sequential_cpu_offload", offload)
    monkeypatch.setattr(Machine, "checked", lambda _: Machine("fp32", "cpu", "sequential"))
    editor = open_editor(quick(tiny(KONTEXT), offload="sequential"))
    assert all(parameter.is_meta for parameter in editor.pipe.transformer.parameters())  # they wait elsewhere
    assert np.array_equal(edited(editor), plain)


@pytest.mark.parametrize("offload", ["model", "sequential"])
def test_offload_is_asked_of_diffusers_with_the_device(tiny, monkeypatch, offload):
    import diffusers

    asked = []
    for name in ("enable_model_cpu_offload", "enable_sequential_cpu_offload", "to"):
        record = lambda _self, *args, name=name, **given: asked.append((name, args, given))
        monkeypatch.setattr(diffusers.FluxKontextPipeline, name, record)
    load_pipeline(find_pipeline(str(tiny(KONTEXT))), Machine("fp32", "cuda:1", offload))
    assert asked == [(f"enable_{offload}_cpu_offload", (), {"device": "cuda:1"})]


@pytest.mark.parametrize(
    ("bits", "kind"), [("8bit", {"load_in_8bit": True}), ("4bit", {"load_in_4bit": True})]
)
def test_the_large_parts_are_quantized_and_the_others_moved(tiny, monkeypatch, bits, kind):
    import diffusers
    import torch

    found = find_pipeline(str(tiny(KONTEXT)))
    real = diffusers.FluxKontextPipeline.from_pretrained(found.folder)
    given, moved = {}, []

    def read(folder, **options):
        given.update(options)
        return real

    monkeypatch.setattr(diffusers.FluxKontextPipeline, "from_pretrained", read)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *to: moved.append((type(self).__name__, *to)))
    load_pipeline(found, Machine("bf16", "cuda", quantize=bits))
    config = given["quantization_config"]
    assert config.quant_backend == f"bitsandbytes_{bits}"
    assert config.quant_kwargs.items() >= kind.items()
    assert set(config.components_to_quantize) == {"transformer", "text_encoder", "text_encoder_2"}
    if bits == "4bit":
        assert config.quant_kwargs["bnb_4bit_compute_dtype"] is torch.bfloat16
    assert moved == [("AutoencoderKL", "cuda")]  # the quantized parts are on the GPU already


def test_tiling_is_asked_of_the_autoencoder(tiny):
    editor = open_editor(quick(tiny(KONTEXT), tiling="true"))
    assert editor.pipe.vae.use_tiling
    assert not open_editor(quick(tiny(KONTEXT))).pipe.vae.use_tiling


def test_compiled_blocks_give_the_same_pixels(tiny, omnigen2, plain, monkeypatch):
    """Traced by torch's compiler and run as traced; what its code generators round is theirs."""
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    editor = open_editor(quick(tiny(KONTEXT), compile="true"))
    assert np.array_equal(edited(editor), plain)
    blocks = [module for module in editor.pipe.transformer.modules() if module._compiled_call_impl]
    assert {type(block).__name__ for block in blocks} == {
        "FluxTransformerBlock",
        "FluxSingleTransformerBlock",
    }
    model = f"omnigen2:{omnigen2},steps=1,device=cpu"
    editor = open_editor(f"{model},compile=true")
    assert np.array_equal(edited(editor), edited(model))
    assert all(layer._compiled_call_impl for layer in editor.transformer.layers)
    with pytest.raises(ConfigError, match="leave out compile"):
        check_watchable(editor)


def test_a_network_without_known_blocks_is_compiled_as_a_whole():
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(2, 2))
    compiling.compile_blocks(network, ())
    assert network._compiled_call_impl is not None
    assert network[0]._compiled_call_impl is None


@pytest.mark.parametrize("name", [KONTEXT, "omnigen2"])
def test_a_compiler_that_fails_ends_the_run_with_what_to_do(
    tiny, omnigen2, small, tmp_path, monkeypatch, name
):
    def broken(graph, inputs):
        raise RuntimeError("no kernel for this")

    monkeypatch.setattr(compiling, "BACKEND", broken)
    model = f"omnigen2:{omnigen2},steps=1,device=cpu,compile=true"
    editor = model if name == "omnigen2" else quick(tiny(KONTEXT), compile="true")
    with pytest.raises(StopRunError, match="cannot compile this model here") as stopped:
        run_editor(small, editor, tmp_path / "run")
    assert "without compile=true" in stopped.value.fix
    assert "no kernel for this" in str(stopped.value)
    assert (tmp_path / "run" / "edits.jsonl").read_bytes() == b""


def test_what_compile_needs_is_said_before_anything_is_loaded(tiny, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "triton" else find(name))
    with pytest.raises(ConfigError, match="Triton"):
        compiling.check_compiler("cuda:0")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigError, match=r"C\+\+ compiler"):
        open_editor(quick(tiny(KONTEXT), compile="true")).load()
    with pytest.raises(ConfigError, match="offload=sequential"):
        open_editor(spec(tiny(KONTEXT), compile="true", offload="sequential"))
