"""ImageReward against its published equations, with small random weights in the released names."""
# ruff: noqa: E402 - what needs PyTorch is imported after the question whether it is there

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="perceptual metrics need the extra `models`")
pytest.importorskip("transformers", reason="ImageReward needs the extra `models`")

from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from mie.scoring.metrics import MetricError
from mie.scoring.metrics.perceptual import load_image_reward
from mie.scoring.metrics.perceptual.clip import MEAN, STD, cropped
from tests.conftest import crop

WIDTH, HIDDEN, PATCH, SIDE, HEADS = 64, 64, 16, 32, 2
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def make_weights(place: Path) -> Path:
    """Two layers of each encoder, every tensor by its released name."""
    torch.manual_seed(5)
    state = {}

    def draw(name, *shape):
        state[f"{name}.weight"], state[f"{name}.bias"] = (
            torch.randn(*shape) * 0.2,
            torch.randn(shape[0]) * 0.1,
        )

    def norm(name, width):
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.rand(width) + 0.5, torch.randn(width) * 0.1

    see, read = "blip.visual_encoder.", "blip.text_encoder."
    state[f"{see}cls_token"] = torch.randn(1, 1, WIDTH)
    state[f"{see}pos_embed"] = torch.randn(1, (SIDE // PATCH) ** 2 + 1, WIDTH)
    draw(f"{see}patch_embed.proj", WIDTH, 3, PATCH, PATCH)
    norm(f"{see}norm", WIDTH)
    for at in range(2):
        block = f"{see}blocks.{at}."
        norm(f"{block}norm1", WIDTH)
        norm(f"{block}norm2", WIDTH)
        draw(f"{block}attn.qkv", 3 * WIDTH, WIDTH)
        draw(f"{block}attn.proj", WIDTH, WIDTH)
        draw(f"{block}mlp.fc1", 96, WIDTH)
        draw(f"{block}mlp.fc2", WIDTH, 96)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{c}" for c in LETTERS)]
    state[f"{read}embeddings.word_embeddings.weight"] = torch.randn(len(words), HIDDEN)
    state[f"{read}embeddings.position_embeddings.weight"] = torch.randn(40, HIDDEN)
    state[f"{read}embeddings.position_ids"] = torch.arange(40)[None]
    norm(f"{read}embeddings.LayerNorm", HIDDEN)
    for at in range(2):
        layer = f"{read}encoder.layer.{at}."
        for kind, width in (("attention", HIDDEN), ("crossattention", WIDTH)):
            draw(f"{layer}{kind}.self.query", HIDDEN, HIDDEN)
            draw(f"{layer}{kind}.self.key", HIDDEN, width)
            draw(f"{layer}{kind}.self.value", HIDDEN, width)
            draw(f"{layer}{kind}.output.dense", HIDDEN, HIDDEN)
            norm(f"{layer}{kind}.output.LayerNorm", HIDDEN)
        draw(f"{layer}intermediate.dense", 80, HIDDEN)
        draw(f"{layer}output.dense", HIDDEN, 80)
        norm(f"{layer}output.LayerNorm", HIDDEN)
    for number, (out, wide) in {0: (48, HIDDEN), 2: (32, 48), 4: (24, 32), 6: (16, 24), 7: (1, 16)}.items():
        draw(f"mlp.layers.{number}", out, wide)
    draw("blip.text_proj", 8, HIDDEN)  # in the file, not in the model
    place.mkdir(parents=True, exist_ok=True)
    save_file(state, place / "ImageReward.safetensors")
    (place / "vocab.txt").write_text("\n".join(words) + "\n")
    (place / "med_config.json").write_text(json.dumps({"num_attention_heads": HEADS}))
    return place


def attend(query, key, value, heads, mask=None):
    def split(x):
        return x.view(x.shape[0], heads, -1).transpose(0, 1)

    scores = split(query) @ split(key).transpose(1, 2) / (query.shape[1] / heads) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[None, None], -torch.inf)
    return (scores.softmax(-1) @ split(value)).transpose(0, 1).reshape(query.shape[0], -1)


def plain_reward(state, image, tokens) -> float:
    """The published equations, one image and one text at a time."""

    def linear(x, name):
        return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(x, name, eps):
        return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)

    see = "blip.visual_encoder."
    pixels = (torch.from_numpy(cropped(image, SIDE)) - torch.tensor(MEAN)) / torch.tensor(STD)
    kernel, bias = state[f"{see}patch_embed.proj.weight"], state[f"{see}patch_embed.proj.bias"]
    patches = F.conv2d(pixels.permute(2, 0, 1)[None], kernel, bias, stride=PATCH).flatten(2)[0].T
    x = torch.cat([state[f"{see}cls_token"][0], patches]) + state[f"{see}pos_embed"][0]
    for at in range(2):
        block = f"{see}blocks.{at}."
        query, key, value = linear(norm(x, f"{block}norm1", 1e-6), f"{block}attn.qkv").chunk(3, dim=1)
        x = x + linear(attend(query, key, value, WIDTH // 64), f"{block}attn.proj")
        x = x + linear(F.gelu(linear(norm(x, f"{block}norm2", 1e-6), f"{block}mlp.fc1")), f"{block}mlp.fc2")
    seen = norm(x, f"{see}norm", 1e-6)
    read, there = "blip.text_encoder.", torch.tensor([token != 0 for token in tokens])
    y = state[f"{read}embeddings.word_embeddings.weight"][torch.tensor(tokens)]
    y = y + state[f"{read}embeddings.position_embeddings.weight"][: len(tokens)]
    y = norm(y, f"{read}embeddings.LayerNorm", 1e-12)
    for at in range(2):
        layer = f"{read}encoder.layer.{at}."
        for kind, source, mask in (("attention", None, there), ("crossattention", seen, None)):
            other = y if source is None else source
            name = f"{layer}{kind}."
            parts = [
                linear(z, f"{name}self.{p}") for z, p in ((y, "query"), (other, "key"), (other, "value"))
            ]
            mixed = linear(attend(*parts, HEADS, mask), f"{name}output.dense")
            y = norm(y + mixed, f"{name}output.LayerNorm", 1e-12)
        wide = linear(F.gelu(linear(y, f"{layer}intermediate.dense")), f"{layer}output.dense")
        y = norm(y + wide, f"{layer}output.LayerNorm", 1e-12)
    z = y[0]
    for number in (0, 2, 4, 6, 7):
        z = linear(z, f"mlp.layers.{number}")
    return (float(z) - 0.16717362830052426) / 1.0333394966054072


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_weights(tmp_path_factory.mktemp("reward") / "image-reward")


def test_rewards_are_those_of_the_published_equations(folder):
    reward, state = load_image_reward(folder, device="cpu"), load_file(folder / "ImageReward.safetensors")
    words = (folder / "vocab.txt").read_text().split()
    for number, text in ((0, "ab"), (1, "cde f"), (2, "a " * 60)):
        image = crop(number, 50 + 7 * number, 61)
        pieces = [piece for word in text.split() for piece in (word[0], *(f"##{c}" for c in word[1:]))]
        ids = [words.index(piece) for piece in ["[CLS]", *pieces[:33], "[SEP]"]]
        expected = plain_reward(state, image, ids + [0] * (35 - len(ids)))
        assert reward(image, text) == pytest.approx(expected, abs=2e-4)
    assert reward.about()["weights"][0]["file"] == "ImageReward.safetensors"


def test_a_pt_file_is_read_as_tensors_and_nothing_else(folder, tmp_path):
    state = load_file(folder / "ImageReward.safetensors")
    for name in ("vocab.txt", "med_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    torch.save(state, tmp_path / "ImageReward.pt")
    image = crop(3, 40, 40)
    assert load_image_reward(tmp_path)(image, "ab") == pytest.approx(load_image_reward(folder)(image, "ab"))
    torch.save({"x": Path("/")}, tmp_path / "ImageReward.pt")
    with pytest.raises(MetricError, match="not a file of weights"):
        load_image_reward(tmp_path)


def test_what_is_missing_is_named(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path))
    with pytest.raises(MetricError, match=r"ImageReward.safetensors or ImageReward.pt"):
        load_image_reward()
    state = load_file(folder / "ImageReward.safetensors")
    for name in ("vocab.txt", "med_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    save_file({k: v for k, v in state.items() if "mlp" not in k}, tmp_path / "ImageReward.safetensors")
    with pytest.raises(MetricError, match="weights of another network"):
        load_image_reward(tmp_path)
    (tmp_path / "ImageReward.safetensors").write_bytes(b"nothing")
    with pytest.raises(MetricError, match="not a file of weights"):
        load_image_reward(tmp_path)
    assert np.isfinite(load_image_reward(folder)(crop(0, 40, 40), ""))
