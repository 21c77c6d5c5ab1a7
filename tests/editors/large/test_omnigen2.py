"""The editor `omnigen2` on a tiny model: the published layout, the true loading path, real images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("diffusers", reason="large editors need the extra `models`")

from mie.editors import EditError, Request, open_editor
from mie.errors import ConfigError
from tests.conftest import crop

ASKED = "Highlight the optic disc in red."


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    from tests.editors.large.tiny_omnigen2 import write_omnigen2

    return write_omnigen2(tmp_path_factory.mktemp("omnigen2") / "model")


@pytest.fixture(scope="session")
def editor(folder):
    return open_editor(f"omnigen2:{folder},steps=2,device=cpu")


def request_of(number: int, height: int = 70, width: int = 90, text: str = ASKED, **more) -> Request:
    return Request(crop(number, height, width), text, seed=number, **more)


def test_a_run_is_scored(folder, small, tmp_path):
    import mie

    run = mie.run(small, f"omnigen2:{folder},steps=2,device=cpu", tmp_path / "run", batch_size=2)
    edits = [json.loads(line) for line in (run.folder / "edits.jsonl").read_text().splitlines()]
    assert edits
    assert {edit["state"] for edit in edits} == {"done"}
    assert all(edit["size"] == [72, 72] for edit in edits)
    assert [step["step"] for step in edits[0]["meta"]["steps"]] == ["pad", "crop"]
    scores = mie.score(run, "miedb")
    assert len(scores.frame) == len(edits)


def test_the_same_seed_gives_the_same_bytes(editor, folder):
    first, again = editor.edit_request(request_of(3)), editor.edit_request(request_of(3))
    assert np.array_equal(first.image, again.image)
    assert first.image.shape == (70, 90, 3)
    fresh = open_editor(f"omnigen2:{folder},steps=2,device=cpu").edit_request(request_of(3))
    assert np.array_equal(first.image, fresh.image)
    other = Request(crop(3, 70, 90), ASKED, seed=4)
    assert not np.array_equal(first.image, editor.edit_request(other).image)


def test_a_batch_equals_single_edits(editor):
    requests = [
        request_of(1),
        request_of(2, 64, 64),  # another size: a batch of its own
        request_of(3, text="Remove the lesion from the retina, and nothing else."),
        request_of(4, references=(crop(9, 50, 66),)),
    ]
    for together, request in zip(editor.edit_batch(requests), requests, strict=True):
        alone = editor.edit_request(request)
        assert together.meta == alone.meta
        difference = np.abs(together.image.astype(int) - alone.image)
        assert difference.max() <= 1


def test_references_and_their_order_matter(editor):
    a, b = crop(9, 50, 66), crop(10, 64, 64)
    images = [
        editor.edit_request(request_of(1, references=others)).image for others in ((), (a,), (a, b), (b, a))
    ]
    assert all(not np.array_equal(x, y) for i, x in enumerate(images) for y in images[:i])
    assert editor.edit_request(request_of(1, references=(a, b))).meta["references"] == 2
    with pytest.raises(EditError) as error:
        editor.edit_request(request_of(1, references=(a,) * 5))
    assert error.value.reason == (
        "OmniGen2 does not take that many images; expected at most 4 beside the one to edit; found 5"
    )


def test_the_text_is_read_as_the_published_pipeline_reads_it(editor, folder):
    import torch
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

    system = "You are a helpful assistant that generates high-quality images based on user instructions."
    tokenizer = AutoTokenizer.from_pretrained(folder / "processor")
    whole = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder / "mllm").eval()
    texts = [ASKED, "Remove it."]
    states, lengths = editor.text_states(texts)
    assert lengths[0] > lengths[1]
    for text, state, length in zip(texts, states, lengths, strict=True):
        turns = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        ids = tokenizer(tokenizer.apply_chat_template(turns, tokenize=False), return_tensors="pt").input_ids
        assert ids.shape[1] == length
        with torch.no_grad():
            expected = whole(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
        torch.testing.assert_close(state[:length], expected, atol=1e-5, rtol=0)


def test_latents_are_drawn_and_not_the_mode(editor, folder):
    import torch
    from diffusers import AutoencoderKL

    vae = AutoencoderKL.from_pretrained(folder / "vae")
    image = crop(2, 64, 64)
    values = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 127.5 - 1
    with torch.no_grad():
        found = vae.encode(values).latent_dist
    noise = torch.randn(found.mean.shape[1:], generator=torch.Generator().manual_seed(7))
    ((latent,),) = editor._encoded([[image]], [torch.Generator().manual_seed(7)])
    expected = (found.mean[0] + found.std[0] * noise - 0.1) * 0.36
    torch.testing.assert_close(latent, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", ["native", "auto", "256"])
@pytest.mark.parametrize("shape", [(160, 160), (131, 177)])
def test_an_identity_edit_does_not_drift(editor, folder, monkeypatch, size, shape):
    from mie.scoring.metrics.drift import drift

    other = open_editor(f"omnigen2:{folder},size={size},device=cpu")
    unchanged = lambda _, seen, __: [image.astype(np.float32) / 127.5 - 1 for image in seen]
    monkeypatch.setattr(other, "_sampled", unchanged)
    image = crop(0, *shape)
    edited = other.edit_request(Request(image, ASKED))
    moved = drift(image, edited.image)
    assert moved.response > 0.7
    assert not moved.flag
    if size == "native":
        assert np.array_equal(edited.image, image)
    else:
        assert [step["step"] for step in edited.meta.get("steps", ())][:1] in ([], ["resize"])


def test_steps_are_reported(folder):
    editor = open_editor(f"omnigen2:{folder},steps=3,device=cpu")
    steps = []
    editor.on_step = lambda *at: steps.append(at)
    editor.edit_request(request_of(1))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_settings_change_the_output(editor, folder):
    plain = editor.edit_request(request_of(5)).image
    for change in ("text=2", "image=1", "end=0.4", "negative=blurry", "dtype=bf16"):
        other = open_editor(f"omnigen2:{folder},steps=2,device=cpu,{change}")
        assert not np.array_equal(plain, other.edit_request(request_of(5)).image), change


@pytest.mark.parametrize(
    "options", ["steps=0", "text=0.5", "start=0.6,end=0.5", "offload=disk", "size=7", "dtype=int8", "stepz=3"]
)
def test_settings_that_make_no_sense_are_rejected(folder, options):
    with pytest.raises(ConfigError):
        open_editor(f"omnigen2:{folder},{options}")


def test_offload_changes_no_pixel(editor, folder, monkeypatch):
    from mie.editors.diffusers.loader import Machine

    other = open_editor(f"omnigen2:{folder},steps=2,offload=model")
    monkeypatch.setattr(Machine, "checked", lambda _: Machine("fp32", "cpu", "model"))
    assert np.array_equal(editor.edit_request(request_of(1)).image, other.edit_request(request_of(1)).image)


def test_a_lora_is_what_peft_makes_of_it(folder, tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model

    from mie.editors.omnigen2.loader import find_lora, find_model, load_transformer, merge_lora

    model = find_model(str(folder))
    bare = load_transformer(model, torch.float32, "cpu")
    torch.manual_seed(1)
    lora = LoraConfig(r=4, lora_alpha=6, target_modules=["to_q", "to_v", "to_out.0"], init_lora_weights=False)
    adapted = get_peft_model(load_transformer(model, torch.float32, "cpu"), lora)
    adapted.save_pretrained(tmp_path / "lora")
    name = "layers.1.attn.to_q"
    merged = adapted.merge_and_unload().get_submodule(name).weight
    ours = load_transformer(model, torch.float32, "cpu", find_lora(str(tmp_path / "lora")))
    torch.testing.assert_close(ours.get_submodule(name).weight, merged)
    assert not torch.equal(merged, bare.get_submodule(name).weight)

    narrow = torch.nn.ModuleDict({"layers": torch.nn.Linear(3, 3)})
    with pytest.raises(ConfigError, match="does not fit"):
        merge_lora(narrow, tmp_path / "lora")
    edited = open_editor(f"omnigen2:{folder},steps=1,device=cpu,lora={tmp_path / 'lora'}")
    assert "lora" in edited.about()
    plain = open_editor(f"omnigen2:{folder},steps=1,device=cpu")
    assert not np.array_equal(
        edited.edit_request(request_of(1)).image, plain.edit_request(request_of(1)).image
    )
    with pytest.raises(ConfigError, match="no LoRA here"):
        open_editor(f"omnigen2:{folder},lora={tmp_path}")


def _without(*names):
    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def _pickled(folder: Path) -> None:
    for path in (folder / "vae").glob("*.safetensors"):
        path.rename(path.with_suffix(".bin"))


def _changed(part: str, **changes):
    def damage(folder: Path) -> None:
        path = folder / part / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def _cut(folder: Path) -> None:
    path = next((folder / "transformer").glob("*00001*.safetensors"))
    path.write_bytes(path.read_bytes()[:4])


def _renamed(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = next((folder / "transformer").glob("*00001*.safetensors"))
    state = load_file(path)
    state["layers.0.attn.to_query.weight"] = state.pop(next(iter(state)))
    save_file(state, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without("vae"), "the model's vae is missing"),
        (_without("mllm"), "the model's mllm is missing"),
        (_without("transformer/config.json"), "the model's transformer is missing"),
        (_without("mllm/model.safetensors"), "the weights of the mllm are missing"),
        (_without("transformer/diffusion_pytorch_model-00002-of-00002.safetensors"), "00002-of-00002"),
        (_without("processor"), "the tokenizer is missing"),
        (_pickled, "pickles can run code"),
        (_changed("transformer", hidden_size=36, axes_dim_rope=[3, 3, 3]), r"\(24, 48\) in the files"),
        (_changed("transformer", num_layers=3), "layers.2.attn.norm_k.weight: .* nothing in the files"),
        (_changed("transformer", num_layers=10**9), "not a config of OmniGen2"),
        (_changed("transformer", hidden_size="wide"), "not a config of OmniGen2"),
        (_changed("vae", latent_channels=16), "expected: latent_channels 4"),
        (_changed("mllm", model_type="qwen3"), "expected: model_type qwen2_5_vl"),
        (_renamed, "to_query.weight: nothing here"),
        (_cut, "weights that cannot be read"),
    ],
)
def test_a_damaged_folder_is_rejected_before_anything_is_loaded(folder, tmp_path, damage, message):
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    damage(copy)
    with pytest.raises(ConfigError, match=message):
        open_editor(f"omnigen2:{copy}")


@pytest.mark.parametrize(("part", "shape"), [("mllm", False), ("mllm", True), ("vae", False), ("vae", True)])
def test_parts_with_weights_that_do_not_fit_end_the_run_before_its_first_edit(
    folder, small, tmp_path, part, shape
):
    from safetensors.torch import load_file, save_file

    import mie

    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    (path,) = (copy / part).glob("*.safetensors")
    state = load_file(path)
    # Not of the eyes or the head, which are not used.
    body = [n for n in sorted(state) if "visual" not in n and "lm_head" not in n]
    name = next(n for n in body if state[n].ndim > 1)
    value = state.pop(name)
    if shape:
        state[name] = value[1:].contiguous()
    save_file(state, path, {"format": "pt"})
    with pytest.raises(ConfigError, match=part) as error:
        mie.run(small, f"omnigen2:{copy},steps=1,device=cpu", tmp_path / "run")
    assert str(copy) in str(error.value)
    assert not list((tmp_path / "run" / "outputs").glob("*"))


def test_a_folder_that_is_not_there_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        open_editor(f"omnigen2:{tmp_path / 'none'}")


def test_latents_that_are_not_numbers_fail_the_edit(folder):
    import torch

    editor = open_editor(f"omnigen2:{folder},steps=3,device=cpu")
    with torch.no_grad():
        editor.transformer.layers[0].norm2.weight[:] = float("inf")
    with pytest.raises(EditError, match=r"not finite after step 1; .* dtype=bf16"):
        editor.edit_request(request_of(1))


def test_weights_that_do_not_fit_into_memory_end_the_run(folder, small, tmp_path, monkeypatch):
    import torch

    import mie
    from mie.editors.omnigen2 import editor

    def fails(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(editor, "load_vae", fails)
    with pytest.raises(mie.MieError, match="do not fit into the GPU's memory"):
        mie.run(small, f"omnigen2:{folder},device=cpu", tmp_path / "run")


def test_a_run_that_ran_out_of_memory_resumes(folder, small, tmp_path, monkeypatch):
    import torch

    import mie
    from mie.networks import omnigen2_flow

    spec = f"omnigen2:{folder},steps=1,device=cpu"

    def fails(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(omnigen2_flow, "sample", fails)
        mie.run(small, spec, tmp_path / "run")
    edits = [json.loads(line) for line in (tmp_path / "run" / "edits.jsonl").read_text().splitlines()]
    assert {edit["state"] for edit in edits} == {"failed"}
    assert "out of GPU memory at 80x80: resume with offload=model" in edits[0]["reason"]
    mie.run(small, spec, tmp_path / "run", retry_failed=True)
    assert len(list((tmp_path / "run" / "outputs").iterdir())) == len(edits)
