"""CLIP features against `transformers`' own, with a small random model that lies in a folder."""
# ruff: noqa: E402 - what needs PyTorch is imported after the question whether it is there

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="perceptual metrics need the extra `models`")
transformers = pytest.importorskip("transformers", reason="CLIP needs the extra `models`")

from PIL import Image

from mie.errors import ConfigError
from mie.scoring.metrics import MetricError
from mie.scoring.metrics.perceptual import cosine, directional, keep_pixels, load_clip
from mie.scoring.metrics.perceptual.clip import cropped, squashed
from tests.conftest import crop, ellipse

TEXTS = ["Remove the hard exudates from this fundus photograph.", "Paint it red", "long " * 100]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """ViT with 32-pixel patches on 64 pixels, two layers, a byte-level vocabulary."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    place = tmp_path_factory.mktemp("clip")
    letters = sorted(ByteLevel.alphabet())
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (place / "vocab.json").write_text(json.dumps({piece: at for at, piece in enumerate(pieces)}))
    (place / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer.from_pretrained(place, local_files_only=True)
    tokenizer.save_pretrained(place)
    end = len(pieces) - 1
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": len(pieces), "eos_token_id": end, "bos_token_id": end - 1}
    vision = {**sizes, "image_size": 64, "patch_size": 32}
    torch.manual_seed(11)
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def clip(folder):
    return load_clip(folder, device="cpu")


@pytest.fixture(scope="module")
def reference(folder):
    return transformers.CLIPModel.from_pretrained(folder, local_files_only=True).eval()


def test_images_as_transformers_prepares_and_embeds_them(clip, reference):
    kind = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    prepare = kind(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
    images = [crop(0, 200, 150), crop(1, 90, 161), crop(2, 64, 64), crop(3, 40, 40)]
    found = clip.images(images, batch=3)
    for row, image in zip(found, images, strict=True):
        pixels = prepare(images=Image.fromarray(image), return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            expected = (
                reference(input_ids=torch.tensor([[0, 1]]), pixel_values=pixels).image_embeds[0].numpy()
            )
        np.testing.assert_allclose(row, expected / np.linalg.norm(expected), atol=2e-5)


def test_texts_as_transformers_embeds_them(clip, reference, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    found = clip.texts(TEXTS)
    for row, text in zip(found, TEXTS, strict=True):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        if ids.shape[1] > 77:  # cut, and still ended as a text must be
            ids = torch.cat([ids[:, :76], ids[:, -1:]], 1)
        with torch.inference_mode():
            expected = reference(input_ids=ids, pixel_values=torch.zeros(1, 3, 64, 64)).text_embeds[0].numpy()
        np.testing.assert_allclose(row, expected / np.linalg.norm(expected), atol=2e-5)


def test_crop_and_squash():
    image = crop(0, 120, 240)
    square = cropped(image, 60)
    resized = np.asarray(Image.fromarray(image).resize((120, 60), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(square, resized[:, 30:90].astype(np.float32) / np.float32(255))
    # Squash keeps what a crop cuts off.
    half = image.copy()
    half[:, :50] = 255 - half[:, :50]
    np.testing.assert_array_equal(cropped(half, 60), square)
    assert np.abs(squashed(half, 60) - squashed(image, 60)).max() > 0.1
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    expected = torch.nn.functional.interpolate(tensor, size=(60, 60), mode="bicubic", align_corners=False)
    np.testing.assert_allclose(squashed(image, 60).transpose(2, 0, 1), expected[0].numpy(), atol=1e-6)


def test_similarities(clip):
    before, after, target = clip.images([crop(0, 70, 70), crop(1, 70, 70), crop(2, 70, 70)])
    text, other = clip.texts(TEXTS[:2])
    assert np.linalg.norm(before) == pytest.approx(1, abs=1e-6)
    assert cosine(after, target) == pytest.approx(float(after @ target), abs=1e-6)
    assert cosine(after, after) == pytest.approx(1, abs=1e-6)
    change = (after - before).astype(float)
    assert directional(before, after, text) == pytest.approx(change @ text / np.linalg.norm(change), abs=1e-6)
    turn = (text - other).astype(float)
    expected = change @ turn / np.linalg.norm(change) / np.linalg.norm(turn)
    assert directional(before, after, text, other) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(MetricError, match="no direction"):
        directional(before, before, text)


def test_regions(clip):
    image, region = crop(0, 70, 70), ellipse(0, 70, 70)
    kept = keep_pixels(image, region)
    assert (kept[~region] == 0).all()
    assert (kept[region] == image[region]).all()
    # Omni IIE Bench as released: the alpha that should hide the foreground is dropped with RGBA -> RGB.
    rgba = np.dstack([image, np.where(region, 0, 255).astype(np.uint8)])
    dropped = np.asarray(Image.fromarray(rgba, "RGBA").convert("RGB"))
    np.testing.assert_array_equal(dropped, image)
    assert np.abs(clip.images([keep_pixels(image, ~region)]) - clip.images([image])).max() > 1e-4


def test_nothing_in_nothing_out(clip):
    assert clip.images([]).shape == (0, 16)
    with pytest.raises(ConfigError, match="stretch"):
        clip.images([], fit="stretch")


def test_folders(folder, tmp_path, monkeypatch):
    about = load_clip(folder, device="cpu").about()
    assert about["weights"][0]["file"] == "model.safetensors"
    with pytest.raises(MetricError, match="no weights for clip"):
        load_clip(tmp_path)
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path))
    with pytest.raises(MetricError) as caught:
        load_clip()
    assert "mie weights get clip" in caught.value.reason


def test_a_model_with_holes_is_refused(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        if (folder / name).exists():
            (tmp_path / name).write_bytes((folder / name).read_bytes())
    state = load_file(folder / "model.safetensors")
    state.pop("visual_projection.weight")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MetricError, match="visual_projection"):
        load_clip(tmp_path)


def test_the_older_file_format(folder, clip, tmp_path):
    from safetensors.torch import load_file

    for file in folder.iterdir():
        if file.suffix in (".json", ".txt"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save(load_file(folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    image = [crop(0, 70, 70)]
    assert load_clip(tmp_path, device="cpu").about()["weights"][0]["file"] == "pytorch_model.bin"
    np.testing.assert_allclose(load_clip(tmp_path, device="cpu").images(image), clip.images(image), atol=1e-6)
