"""The editor `diffusers` with tiny pipelines of every dialect, from their folders to scores."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.editors import EditError, Request, Turn, open_editor
from mie.editors.diffusers.dialects import DIALECTS, Dialect
from mie.editors.run import run_editor
from mie.editors.sizes import SizeRule
from mie.errors import ConfigError
from mie.images.png import decode_png
from mie.scoring.score import score
from tests.conftest import crop

WORDS = ["Highlight the optic disc in red.", "Remove the lesion from the retina."]


def quick(folder, **options):
    """The spec of a tiny pipeline, with as few steps as it takes."""
    least = {"steps": 2, **({"strength": 0.9} if "Img2Img" in folder.name else {})}
    return spec(folder, **{**least, **options})


def spec(folder, **options):
    return ",".join([f"diffusers:{folder}", *(f"{key}={value}" for key, value in options.items())])


def difference(a, b):
    return int(np.abs(a.image.astype(int) - b.image).max())


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_runs(name, tiny, small, tmp_path):
    run = run_editor(small, quick(tiny(name)), tmp_path / "run")
    assert run.info["counts"]["failed"] == 0, [edit.reason for edit in run.edits().values()]
    assert run.info["counts"]["done"] == len(Dataset(small))
    assert run.info["editor"]["meta"]["pipeline"] == name
    for edit in run.edits().values():
        assert edit.size == (72, 72)
        steps = [step["step"] for step in edit.meta.get("steps", ())]
        assert steps == ([] if 72 % DIALECTS[name].size.multiple == 0 else ["pad", "crop"])


@pytest.mark.parametrize("name", DIALECTS)
def test_a_seed_decides_the_bytes_and_steps_are_told(name, tiny):
    editor = open_editor(quick(tiny(name)))
    told = []
    editor.on_step = lambda done, total: told.append((done, total))
    request = Request(crop(1, 70, 90), WORDS[0], seed=5)
    first, same = editor.edit_request(request), editor.edit_request(request)
    assert first.image.shape == (70, 90, 3)
    assert np.array_equal(first.image, same.image)
    assert difference(first, editor.edit_request(replace(request, seed=6))) > 0
    assert difference(first, editor.edit_request(replace(request, image=crop(2, 70, 90)))) > 0
    assert difference(first, editor.edit_request(replace(request, instruction=WORDS[1]))) > 0
    count = len(told) // 5
    assert count >= 1
    assert told[:count] == [(done + 1, count) for done in range(count)]


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if dialect.batches])
def test_a_batch_equals_single_edits_up_to_rounding(name, tiny):
    """Images of two sizes, so that they cannot all go together."""
    editor = open_editor(quick(tiny(name)))
    requests = [Request(crop(k, 70, 90 if k < 2 else 64), WORDS[k % 2], seed=k) for k in range(3)]
    calls, call = [], editor._call
    editor._call = lambda images, *rest: calls.append(len(images)) or call(images, *rest)
    batch = editor.edit_batch(requests)
    assert calls == [2, 1]
    for outcome, request in zip(batch, requests, strict=True):
        assert outcome.image.shape == request.image.shape
        assert difference(outcome, editor.edit_request(request)) <= 1
    assert difference(batch[0], editor.edit_request(requests[1])) > 1


def test_a_pipeline_without_batches_takes_one_image_after_the_other(tiny):
    editor = open_editor(quick(tiny("Flux2KleinPipeline")))
    requests = [Request(crop(k, 64, 64), WORDS[0], seed=k) for k in range(2)]
    for outcome, request in zip(editor.edit_batch(requests), requests, strict=True):
        assert np.array_equal(outcome.image, editor.edit_request(request).image)


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if dialect.references])
@pytest.mark.parametrize("size", ["native", "64x96"])
def test_references_and_earlier_turns_reach_models_that_take_several_images(name, size, tiny):
    editor = open_editor(quick(tiny(name), history=1, size=size))
    request = Request(crop(0, 64, 64), WORDS[0], seed=1)
    alone = editor.edit_request(request)
    with_reference = editor.edit_request(replace(request, references=(crop(1, 80, 64),)))
    assert with_reference.image.shape == (64, 64, 3)
    assert with_reference.meta["references"] == 1
    assert difference(alone, with_reference) > 0
    turns = [Turn(WORDS[0], crop(k + 5, 64, 64)) for k in range(3)]
    # The last turn's image is the one to edit; of the others, the newest is passed.
    remembered = editor.edit_request(replace(request, history=turns))
    assert remembered.meta["references"] == 1
    same = editor.edit_request(replace(request, references=(turns[1].image,)))
    assert np.array_equal(remembered.image, same.image)
    assert "references" not in alone.meta
    many = (crop(1, 64, 64),) * (DIALECTS[name].references + 1)
    with pytest.raises(EditError, match="does not take that many images"):
        editor.edit_request(replace(request, references=many))


def test_with_references_the_image_still_decides_the_shape(tiny, monkeypatch):
    """Left to choose the size, Qwen-Image-Edit-Plus would take the shape of the last image."""
    import torch

    editor, arguments = open_editor(quick(tiny("QwenImageEditPlusPipeline"), size="auto")), {}

    def spy(self, **given):
        arguments.update(given)
        raise torch.OutOfMemoryError

    monkeypatch.setattr(type(editor.pipe), "__call__", spy)
    request = Request(crop(0, 64, 128), WORDS[0], references=(crop(1, 128, 64),))
    with pytest.raises(EditError, match="out of GPU memory"):
        editor.edit_request(request)
    assert arguments["width"] / arguments["height"] == pytest.approx(2, rel=0.05)
    assert arguments["width"] * arguments["height"] == pytest.approx(2**20, rel=0.05)


def test_a_model_that_takes_one_image_says_so(tiny):
    folder = tiny("FluxKontextPipeline")
    with pytest.raises(ConfigError, match="does not take that many images"):
        open_editor(spec(folder, history=1))
    request = Request(crop(0, 64, 64), WORDS[0], references=(crop(1, 64, 64),))
    with pytest.raises(EditError, match="at most 0 beside the one to edit"):
        open_editor(quick(folder)).edit_request(request)


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("StableDiffusionInstructPix2PixPipeline", {}),
        ("FluxKontextPipeline", {"height": 48, "width": 64, "max_area": 48 * 64, "_auto_resize": False}),
        ("QwenImageEditPlusPipeline", {"height": 64, "width": 64}),
        ("LongCatImageEditPipeline", {}),
        ("FluxFillPipeline", {"height": 48, "width": 128}),
    ],
)
def test_a_given_size_reaches_the_pipeline_and_the_output_comes_back(name, seen, tiny, monkeypatch):
    editor = open_editor(quick(tiny(name), size="64x48"))
    call, arguments = type(editor.pipe).__call__, {}

    def spy(self, **given):
        arguments.update(given)
        return call(self, **given)

    monkeypatch.setattr(type(editor.pipe), "__call__", spy)
    edited = editor.edit(crop(1, 70, 90), WORDS[0], seed=1, history=())
    assert edited.image.shape == (70, 90, 3)
    padded = -(-48 // DIALECTS[name].size.multiple) * DIALECTS[name].size.multiple
    assert arguments["image"].size == (128 if "Fill" in name else 64, padded)
    named = {"height", "width", "max_area", "_auto_resize"}
    assert {word: arguments[word] for word in named & arguments.keys()} == seen
    assert edited.meta["steps"][0] == {"step": "resize", "from": [70, 90], "to": [48, 64]}
    assert edited.meta["steps"][-1] == {"step": "resize", "from": [48, 64], "to": [70, 90]}


@pytest.mark.parametrize("name", [name for name, dialect in DIALECTS.items() if dialect.rescales])
def test_models_that_rescale_to_a_megapixel_are_kept_at_the_image_s_size(name, tiny, monkeypatch):
    import torch

    editor = open_editor(quick(tiny(name)))
    encode, sizes = editor.pipe.vae.encode, []
    monkeypatch.setattr(editor.pipe.vae, "encode", lambda x: sizes.append(tuple(x.shape[-2:])) or encode(x))
    module = __import__(type(editor.pipe).__module__, fromlist=["x"])
    function = module.calculate_dimensions
    editor.edit(crop(1, 64, 96), WORDS[0], seed=1, history=())
    assert sizes == [(64, 96)]
    assert module.calculate_dimensions is function
    # Left to itself it takes a megapixel: too slow to edit here, but what it would encode is seen.
    auto = open_editor(quick(tiny(name), size="auto"))
    encode = lambda x: sizes.append(tuple(x.shape[-2:])) or (_ for _ in ()).throw(torch.OutOfMemoryError)
    monkeypatch.setattr(auto.pipe.vae, "encode", encode)
    with pytest.raises(EditError, match="out of GPU memory"):
        auto.edit(crop(1, 64, 96), WORDS[0], seed=1, history=())
    assert sizes[1][0] * sizes[1][1] == pytest.approx(2**20, rel=0.05)


def test_presets_hold_the_papers_settings_and_options_change_them(tiny):
    qwen = tiny("QwenImageEditPlusPipeline")
    settings = lambda **options: open_editor(spec(qwen, **options)).about()["settings"]
    assert settings() == {"steps": 50, "guidance": 4.0, "negative": " "}
    assert settings(preset="paper") == {"steps": 40, "guidance": 4.0, "negative": " "}
    assert settings(preset="paper", steps=3, guidance=1.5)["steps"] == 3
    turbo = open_editor(spec(tiny("StableDiffusionXLImg2ImgPipeline"), preset="paper"))
    assert turbo.about()["settings"] == {"steps": 2, "guidance": 1.0, "strength": 0.5}
    assert turbo.edit(crop(0, 64, 64), WORDS[0], seed=1, history=()).image.shape == (64, 64, 3)
    for wrong, reason in (
        ({"preset": "papr"}, "did you mean 'paper'"),
        ({"strength": 0.5}, "has no strength"),
        ({"steps": 0}, "no step is left"),
        ({"size": "huge"}, "not a size"),
        ({"dtype": "fp8"}, "no dtype named 'fp8'"),
        ({"stesp": 3}, "did you mean 'steps'"),
    ):
        with pytest.raises(ConfigError) as error:
            open_editor(spec(qwen, **wrong))
        assert reason in str(error.value)
    with pytest.raises(ConfigError, match="no published settings"):
        open_editor(spec(tiny("Flux2KleinPipeline"), preset="paper"))
    with pytest.raises(ConfigError, match="no step is left"):
        open_editor(spec(tiny("StableDiffusionXLImg2ImgPipeline"), steps=1))


@pytest.fixture
def made_up(tiny, tmp_path, monkeypatch):
    """A class that nobody knows, with arguments of its own: it returns its input, brighter by `light`."""
    import diffusers

    class MadeUpPipeline(diffusers.StableDiffusionInstructPix2PixPipeline):
        def __call__(self, image, prompt, rounds, light, generator, output_type):
            for _ in self.progress_bar(range(rounds)):
                pass
            values = np.asarray(image, np.float32)[None] / 255 + light
            return SimpleNamespace(images=values.clip(0, 1))

    monkeypatch.setattr(diffusers, "MadeUpPipeline", MadeUpPipeline, raising=False)
    folder = tmp_path / "made_up"
    shutil.copytree(tiny("StableDiffusionInstructPix2PixPipeline"), folder)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps({**index, "_class_name": "MadeUpPipeline"}))
    row = Dialect(
        default={"steps": 3, "guidance": 0.0},
        arguments={"steps": "rounds", "guidance": "light"},
        size=SizeRule(multiple=32),
        takes_size=False,
    )
    monkeypatch.setitem(DIALECTS, "MadeUpPipeline", row)
    return folder


def test_another_class_is_one_row(made_up):
    editor, told = open_editor(spec(made_up, guidance=0.2)), []
    editor.on_step = lambda done, total: told.append((done, total))
    image = crop(1, 70, 90)
    edited = editor.edit(image, WORDS[0], seed=1, history=())
    assert np.array_equal(edited.image, np.minimum(image.astype(int) + 51, 255))
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("size", ["native", "auto", "96", "80x112"])
def test_an_edit_that_changes_nothing_does_not_drift(size, made_up, small, tmp_path):
    run = run_editor(small, spec(made_up, size=size), tmp_path / "run")
    results = score(run, "miedb")
    frame = results.frame
    assert len(frame) == len(Dataset(small))
    assert (frame["drift_response"] > 0.5).all()
    assert not frame["drift_flag"].any()
    if size in ("native", "auto"):
        for sample in Dataset(small):
            output = decode_png(run.output_path(sample.id, 0).read_bytes())
            assert np.array_equal(output, sample.input)
