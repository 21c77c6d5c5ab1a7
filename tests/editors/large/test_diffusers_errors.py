"""What is wrong with a folder, a LoRA or an edit is said clearly, and a run loses nothing by it."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import pytest

from mie.editors import EditError, open_editor
from mie.editors.run import run_editor
from mie.errors import ConfigError
from tests.conftest import crop
from tests.editors.large.test_diffusers import WORDS, quick, spec

KONTEXT = "FluxKontextPipeline"


@pytest.fixture
def kontext(tiny, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(tiny(KONTEXT), tmp_path / "kontext")


def change_index(folder, **changes):
    path = folder / "model_index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def weights(folder, part, change):
    """Rewrite a part's tensors with `change`."""
    from safetensors.torch import load_file, save_file

    path = next((folder / part).glob("*.safetensors"))
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def refused(folder, **options):
    with pytest.raises(ConfigError) as error:
        open_editor(spec(folder, **options)).load()
    return str(error.value)


def test_a_folder_that_is_no_pipeline(kontext, tmp_path):
    assert "no such folder" in refused(tmp_path / "nowhere")
    assert "neither a folder nor in the local cache" in refused("nobody/nothing-at-all")
    (tmp_path / "empty").mkdir()
    text = refused(tmp_path / "empty")
    assert "no pipeline of diffusers here" in text
    assert "model_index.json" in text
    (kontext / "model_index.json").write_text("[1, 2")
    assert "no pipeline of diffusers here" in refused(kontext)
    (kontext / "model_index.json").write_text("[]")
    assert "no pipeline of diffusers here" in refused(kontext)


def test_a_model_in_the_local_cache_is_found_by_its_id(kontext, tmp_path, monkeypatch):
    """In the layout of the hub's cache: nothing is downloaded."""
    import huggingface_hub.constants

    home = tmp_path / "hub" / "models--lab--kontext"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    shutil.copytree(kontext, home / "snapshots" / ("0" * 40))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    edited = open_editor(quick(kontext)).edit(crop(0, 64, 64), WORDS[0], seed=1, history=())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    cached = open_editor("diffusers:lab/kontext,steps=2").edit(crop(0, 64, 64), WORDS[0], seed=1, history=())
    assert np.array_equal(edited.image, cached.image)


def test_a_class_without_a_dialect_names_near_ones_and_says_how_to_add_a_row(kontext):
    change_index(kontext, _class_name="FluxContextPipeline")
    text = refused(kontext)
    assert "no dialect for the pipeline 'FluxContextPipeline'" in text
    assert "did you mean 'FluxKontextPipeline'?" in text
    assert "add a row" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"_class_name": ["my_pipeline", "MyPipeline"]},
        {"transformer": ["my_model", "FluxTransformer2DModel"]},
        {"transformer": ["diffusers.other", "FluxTransformer2DModel"]},
        {"tokenizer": ["transformers", "AutoTokenizer"]},
        {"vae": ["diffusers"]},
    ],
)
def test_code_of_a_folder_is_never_executed(changes, kontext, tmp_path):
    for name in ("my_pipeline.py", "transformer/my_model.py"):
        (kontext / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    change_index(kontext, **changes)
    text = refused(kontext)
    assert "needs code of its own" in text
    assert not (tmp_path / "ran").exists()


def test_pickled_weights_are_rejected(kontext):
    for path in (kontext / "vae").glob("*.safetensors"):
        path.rename(path.with_suffix(".bin"))
    text = refused(kontext)
    assert "the weights of the vae are pickled" in text
    assert "diffusion_pytorch_model.bin" in text


def test_a_missing_part_is_named(kontext):
    shutil.rmtree(kontext / "tokenizer_2")
    assert "the pipeline's tokenizer_2 is missing" in refused(kontext)


def test_a_tokenizer_without_its_vocabulary_is_rejected(kontext):
    for path in (kontext / "tokenizer").iterdir():
        if path.name != "tokenizer_config.json":
            path.unlink()
    assert "the vocabulary of the tokenizer is missing" in refused(kontext)


@pytest.mark.parametrize("part", ["transformer", "text_encoder"])
def test_weights_of_another_shape_are_rejected(part, kontext):
    def double(tensors):
        name = min(name for name in tensors if tensors[name].ndim == 2)
        tensors[name] = tensors[name].repeat(2, 1)

    weights(kontext, part, double)
    text = refused(kontext)
    assert "expected" in text.split("found:")[1]
    assert "32, 16" in text if part == "transformer" else "(154, 16), expected (77, 16)" in text


@pytest.mark.parametrize("part", ["transformer", "vae", "text_encoder", "text_encoder_2"])
def test_weights_that_lack_a_tensor_are_rejected_and_not_drawn_at_random(part, kontext):
    weights(kontext, part, lambda tensors: tensors.pop(sorted(tensors)[3]))
    text = refused(kontext)
    assert f"the weights of the {part} do not fit its config" in text
    assert "is missing" in text


def test_a_damaged_file_is_rejected(kontext):
    path = next((kontext / "vae").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:2000])
    assert "the pipeline cannot be loaded" in refused(kontext)


def test_a_model_that_makes_images_is_loaded_by_the_class_that_edits(tiny, tmp_path):
    """SDXL-turbo is published as StableDiffusionXLPipeline."""
    folder = shutil.copytree(tiny("StableDiffusionXLImg2ImgPipeline"), tmp_path / "Img2Img-turbo")
    change_index(folder, _class_name="StableDiffusionXLPipeline")
    turbo = open_editor(spec(folder, preset="paper"))
    assert turbo.about()["pipeline"] == "StableDiffusionXLImg2ImgPipeline"
    same = open_editor(spec(tiny("StableDiffusionXLImg2ImgPipeline"), preset="paper"))
    edits = [editor.edit(crop(0, 64, 64), WORDS[0], seed=1, history=()) for editor in (turbo, same)]
    assert np.array_equal(edits[0].image, edits[1].image)


def test_the_safety_checker_is_not_loaded(tiny, tmp_path):
    """The published InstructPix2Pix names one, which blacks out skin; its files need not be here."""
    folder = shutil.copytree(tiny("StableDiffusionInstructPix2PixPipeline"), tmp_path / "pix2pix")
    change_index(
        folder,
        safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"],
        requires_safety_checker=True,
    )
    editor = open_editor(quick(folder))
    assert editor.edit(crop(0, 64, 64), WORDS[0], seed=1, history=()).image.std() > 0
    assert editor.pipe.safety_checker is None


def test_a_variant_in_half_precision_is_found_by_its_name(kontext):
    editor = open_editor(quick(kontext))
    edited = editor.edit(crop(0, 64, 64), WORDS[0], seed=1, history=())
    for parts in (("text_encoder", "vae"), ("text_encoder_2", "transformer")):  # first some, then all
        for part in parts:
            (path,) = (kontext / part).glob("*.safetensors")
            path.rename(path.with_name(path.name.replace(".safetensors", ".fp16.safetensors")))
        same = open_editor(quick(kontext)).edit(crop(0, 64, 64), WORDS[0], seed=1, history=())
        assert np.array_equal(edited.image, same.image)


def test_what_this_computer_lacks_is_said(kontext, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no GPU that torch can use" in refused(kontext, device="cuda")
    assert "no such device" in refused(kontext, device="gpu")
    assert "offload needs a GPU" in refused(kontext, offload="model")
    assert "quantize needs a GPU" in refused(kontext, quantize="4bit")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "bitsandbytes" else find(name)
    )
    assert "pip install bitsandbytes" in refused(kontext, quantize="4bit")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "diffusers" else find(name))
    text = refused(kontext)
    assert "the editor diffusers needs diffusers" in text
    assert "[models]" in text


def test_a_pipeline_that_cannot_be_loaded_ends_the_run_before_the_first_edit(kontext, small, tmp_path):
    editor = quick(kontext)
    weights(kontext, "vae", lambda tensors: tensors.pop(sorted(tensors)[3]))
    with pytest.raises(ConfigError, match="do not fit"):
        run_editor(small, editor, tmp_path / "run")
    assert not (tmp_path / "run" / "edits.jsonl").exists()


@pytest.mark.parametrize(
    ("part", "method"), [("FluxTransformer2DModel", "forward"), ("AutoencoderKL", "decode")]
)
def test_out_of_memory_is_one_line_with_advice_and_the_run_resumes(
    kontext, small, tmp_path, monkeypatch, part, method
):
    """In the middle of an edit: at its first step, or when all steps are done and the image is decoded."""
    import diffusers
    import torch

    call, calls = getattr(getattr(diffusers, part), method), []

    def full(self, *arguments, **more):
        calls.append(method)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return call(self, *arguments, **more)

    monkeypatch.setattr(getattr(diffusers, part), method, full)
    run = run_editor(small, quick(kontext, steps=1), tmp_path / "run")
    assert (run.info["counts"]["done"], run.info["counts"]["failed"]) == (2, 1)
    (reason,) = [edit.reason for edit in run.edits().values() if edit.state == "failed"]
    assert reason.startswith("out of GPU memory at 80x80: resume with offload=model")
    for word in ("dtype=bf16", "size", "--retry-failed"):
        assert word in reason
    # `offload` changes no output, so that the same run may be resumed with it. Without a GPU it is refused.
    with pytest.raises(ConfigError, match="offload needs a GPU"):
        run_editor(small, quick(kontext, steps=1, offload="model"), tmp_path / "run", retry_failed=True)
    run = run_editor(small, quick(kontext, steps=1), tmp_path / "run", retry_failed=True)
    assert run.info["counts"]["done"] == 3
    assert len(calls) == 4


def test_a_batch_that_does_not_fit_is_made_one_by_one(kontext, small, tmp_path, monkeypatch):
    import diffusers
    import torch

    call = diffusers.FluxKontextPipeline.__call__

    def full(self, **arguments):
        if isinstance(arguments["prompt"], list):
            raise torch.OutOfMemoryError
        return call(self, **arguments)

    monkeypatch.setattr(diffusers.FluxKontextPipeline, "__call__", full)
    run = run_editor(small, quick(kontext), tmp_path / "run", batch_size=3)
    assert run.info["counts"]["done"] == 3


def test_an_output_of_another_size_comes_back_to_the_grid_of_the_image(kontext, monkeypatch):
    from types import SimpleNamespace

    import diffusers

    large = np.full((96, 160, 3), 0.5, np.float32)
    answer = lambda self, **_: SimpleNamespace(images=[large])
    monkeypatch.setattr(diffusers.FluxKontextPipeline, "__call__", answer)
    edited = open_editor(quick(kontext)).edit(crop(0, 64, 64), WORDS[0], seed=1, history=())
    assert edited.image.shape == (64, 64, 3)
    assert {"step": "resize", "from": [96, 160], "to": [64, 64]} in edited.meta["steps"]


def test_values_that_are_no_numbers_are_a_failed_edit_and_no_black_image(kontext):
    import torch

    editor = open_editor(quick(kontext))
    torch.nn.init.constant_(editor.pipe.transformer.x_embedder.weight, float("nan"))
    with pytest.raises(EditError, match=r"not numbers.*dtype=bf16"):
        editor.edit(crop(0, 64, 64), WORDS[0], seed=1, history=())


@pytest.fixture
def lora(tiny, tmp_path):
    """`lora(pipeline)` writes a LoRA of that tiny pipeline's attention, as diffusers saves it."""

    def write(name):
        import diffusers
        import torch
        from peft import LoraConfig
        from peft.utils import get_peft_model_state_dict

        kind = getattr(diffusers, name)
        pipe = kind.from_pretrained(tiny(name))
        pipe.transformer.add_adapter(LoraConfig(r=2, lora_alpha=2, target_modules=["to_q", "to_v"]))
        with torch.random.fork_rng():
            torch.manual_seed(1)
            tensors = {
                name: torch.randn_like(tensor)
                for name, tensor in get_peft_model_state_dict(pipe.transformer).items()
            }
        folder = tmp_path / f"lora-{name}"
        kind.save_lora_weights(folder, transformer_lora_layers=tensors)
        return folder

    return write


def test_a_lora_lies_on_top_and_is_a_part_of_the_record(tiny, lora):
    name = "FluxFillPipeline"  # as ICEdit does
    folder = lora(name)
    plain, changed = open_editor(quick(tiny(name))), open_editor(quick(tiny(name), lora=folder))
    edits = [editor.edit(crop(0, 64, 64), WORDS[0], seed=1, history=()) for editor in (plain, changed)]
    assert not np.array_equal(edits[0].image, edits[1].image)
    assert len(changed.about()["lora"]) == 64
    assert "lora" not in plain.about()
    (file,) = folder.iterdir()
    same = open_editor(quick(tiny(name), lora=file)).edit(crop(0, 64, 64), WORDS[0], seed=1, history=())
    assert np.array_equal(edits[1].image, same.image)


def test_a_lora_that_does_not_fit_is_rejected(tiny, lora, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = lora(KONTEXT)
    (file,) = folder.iterdir()
    tensors = load_file(file)
    layer = min(name for name in tensors if ".lora_A." in name)
    wrong = tmp_path / "wrong"
    for change in (
        {name.replace("transformer_blocks.0", "transformer_blocks.7"): t for name, t in tensors.items()},
        {**tensors, layer: tensors[layer].repeat(1, 2)},
        {"unrelated.weight": tensors[layer]},
    ):
        shutil.rmtree(wrong, ignore_errors=True)
        wrong.mkdir()
        save_file({name: t.contiguous() for name, t in change.items()}, wrong / "x.safetensors")
        assert "the LoRA does not fit the base model" in refused(tiny(KONTEXT), lora=wrong)
    shutil.rmtree(wrong)
    wrong.mkdir()
    (wrong / "pytorch_lora_weights.bin").write_bytes(b"\x80\x04")
    assert "no LoRA here" in refused(tiny(KONTEXT), lora=wrong)
    assert "no LoRA here" in refused(tiny(KONTEXT), lora=tmp_path / "nowhere")
