"""Attention maps equal attention computed in the open, and looking on changes no output."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("diffusers", reason="large editors need the extra `models`")

from mie.editors import EditError, Request, open_editor
from mie.editors.attention import (
    FROM_WORD,
    TO_WORD,
    attention_from,
    attention_to,
    check_watchable,
    record_attention,
)
from mie.errors import ConfigError
from tests.conftest import crop

TEXT = "Highlight the optic disc in red."
ENDS = [TEXT.index("disc") + 4, TEXT.index("red") + 3]
REQUEST = Request(crop(3, 66, 90), TEXT, seed=5)  # 80 x 96 for the transformers, 72 x 96 for the UNets


@pytest.fixture(scope="session")
def omnigen2(tmp_path_factory):
    from tests.editors.large.tiny_omnigen2 import write_omnigen2

    return write_omnigen2(tmp_path_factory.mktemp("omnigen2") / "model")


def softmax(q, k, mask=None):
    """Weights (heads, queries, keys) of (1, heads, tokens, width), in float64."""
    q, k = q[0].double(), k[0].double()
    k = k.repeat_interleave(len(q) // len(k), 0)
    logits = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        logits = logits.masked_fill(~mask[0].expand_as(logits), float("-inf"))
    return logits.softmax(-1)


@pytest.mark.parametrize("kind", [None, "keys", "pairs", "added"])
@pytest.mark.parametrize("heads", [6, 2])
def test_weights_come_from_the_attention_itself(kind, heads):
    """More words than the values are wide, grouped heads, and every form of mask."""
    import torch
    import torch.nn.functional as F

    torch.manual_seed(3)
    q, k, v = torch.randn(1, 6, 11, 4), torch.randn(1, heads, 11, 4), torch.randn(1, heads, 11, 4)
    valid = torch.arange(11)[None] < 9
    pairs = torch.rand(1, 6, 11, 11) < 0.8
    pairs[..., 0] = True
    mask = {None: None, "keys": valid, "pairs": pairs, "added": torch.randn(1, 1, 11, 11)}[kind]
    whole = mask if mask is None or mask.ndim == 4 else mask[:, None, None]
    words = [0, 3, 10, 5, 7, 2]
    again = lambda values: F.scaled_dot_product_attention(q, k, values, attn_mask=whole, enable_gqa=True)
    logits = q @ k.repeat_interleave(6 // heads, 1).mT / 2
    if whole is not None:
        logits = logits + whole if kind == "added" else logits.masked_fill(~whole, float("-inf"))
    weights = logits.softmax(-1)
    torch.testing.assert_close(attention_to(again, v, words), weights[..., words], atol=1e-6, rtol=0)
    torch.testing.assert_close(attention_from(q, k, words, mask), weights[:, :, words], atol=1e-6, rtol=0)


def places(tokenizer, ids):
    """For each word, the token at which the text that was read so far first ends with it."""
    read = "".join
    pieces = [tokenizer.decode([token]).replace(" ", "").lower() for token in ids]
    ends = [TEXT[:end].replace(" ", "").lower() for end in ENDS]
    return [next(i for i in range(len(ids)) if read(pieces[: i + 1]).endswith(end)) for end in ends]


def recorded(editor):
    """The attention of `REQUEST`, after checking that the output is the same as without."""
    plain = editor.edit_request(REQUEST)
    told = []
    editor.on_step = lambda *at: told.append(at)
    edited, attention = record_attention(editor, REQUEST, ENDS)
    assert np.array_equal(plain.image, edited.image)
    assert len(told) >= 2
    editor.on_step = None
    assert np.array_equal(plain.image, editor.edit_request(REQUEST).image)
    return attention


def check(attention, sums, steps, grid):
    """Compare with `sums`: layer -> direction -> (words, tokens), summed over steps."""
    assert [layer.name for layer in attention.layers] == list(sums)
    for layer in attention.layers:
        assert set(layer.maps) == set(sums[layer.name])
        for direction, values in sums[layer.name].items():
            expected = (values / steps).reshape(len(ENDS), *grid(layer.name)).numpy()
            np.testing.assert_allclose(layer.maps[direction], expected, atol=2e-6)
            assert np.ptp(expected) > 1e-5  # a flat map would prove nothing
    mean = attention.mean()
    assert mean.shape == (2, 66, 90)
    assert np.abs(mean[0] - mean[1]).max() > 1e-5


def test_omnigen2(omnigen2):
    editor = open_editor(f"omnigen2:{omnigen2},steps=2,device=cpu")
    attention = recorded(editor)
    tokens = editor.tokens([TEXT]).input_ids[0].tolist()
    words = places(editor._language[1], tokens)
    sums, passes = {}, []
    editor.transformer.register_forward_pre_hook(lambda *_: passes.append(0))
    for at, block in enumerate(editor.transformer.layers):

        def explicit(q, k, v, mask, at=at):
            weights = softmax(q, k, mask)
            if len(passes) % 3 == 1:
                n = 5 * 6
                found = {
                    TO_WORD: weights[:, -n:, words].mean(0).T,
                    FROM_WORD: weights[:, words, -n:].mean(0),
                }
                for direction, values in found.items():
                    body = sums.setdefault(f"layer {at}", {})
                    body[direction] = body.get(direction, 0) + values
            return (weights.float() @ v[0])[None]

        block.attn.attend = explicit
    editor.edit_request(REQUEST)
    check(attention, sums, 2, lambda _: (5, 6))


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("FluxKontextPipeline", 1),
        ("Flux2Pipeline", 1),
        ("Flux2KleinPipeline", 1),
        ("QwenImageEditPipeline", 2),
        ("QwenImageEditPlusPipeline", 2),
        ("LongCatImageEditPipeline", 2),
    ],
)
def test_transformers_of_diffusers(tiny, monkeypatch, name, passes):
    import sys

    editor = open_editor(f"diffusers:{tiny(name)},steps=2,device=cpu,size=96x64")
    attention = recorded(editor)
    net = editor.pipe.transformer
    long = hasattr(editor.pipe, "tokenizer_2")
    tokenizer = editor.pipe.tokenizer_2 if long else editor.pipe.tokenizer
    heard, text, entered, sums, calls = [], [], [], {}, []
    encoder = editor.pipe.text_encoder_2 if long else editor.pipe.text_encoder
    encoder.register_forward_pre_hook(
        lambda _, args, kwargs: heard.append(kwargs.get("input_ids", args[0] if args else None)),
        with_kwargs=True,
    )

    def enter(_, args, kwargs):
        entered.append(0)
        calls.clear()
        text.append(kwargs["encoder_hidden_states"].shape[1])

    net.register_forward_pre_hook(enter, with_kwargs=True)
    module = sys.modules[type(net).__module__]
    original = module.dispatch_attention_fn

    def explicit(query, key, value, **kwargs):
        out = original(query, key, value, **kwargs)
        if (len(entered) - 1) % passes == 0:
            ids = heard[0][0].tolist()
            words = [place - (len(ids) - text[-1]) for place in places(tokenizer, ids)]
            mask = kwargs.get("attn_mask")
            weights = softmax(query.transpose(1, 2), key.transpose(1, 2), mask)
            target = slice(text[-1], text[-1] + 4 * 6)
            body = sums.setdefault(f"block {len(calls)}", {})
            body[TO_WORD] = body.get(TO_WORD, 0) + weights[:, target, words].mean(0).T
            body[FROM_WORD] = body.get(FROM_WORD, 0) + weights[:, words, target].mean(0)
            calls.append(0)
        return out

    monkeypatch.setattr(module, "dispatch_attention_fn", explicit)
    editor.edit_request(REQUEST)
    check(attention, sums, 2, lambda _: (4, 6))


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("StableDiffusionInstructPix2PixPipeline", 0),
        ("StableDiffusionXLInstructPix2PixPipeline", 0),
        ("StableDiffusionXLImg2ImgPipeline", -1),
    ],
)
def test_unets_of_diffusers(tiny, name, row):
    from diffusers.models.attention_processor import AttnProcessor

    how = "steps=4,strength=0.6" if "Img2Img" in name else "steps=2"
    editor = open_editor(f"diffusers:{tiny(name)},device=cpu,{how}")
    processors = dict(editor.pipe.unet.attn_processors)
    attention = recorded(editor)
    assert editor.pipe.unet.attn_processors == processors
    ids = editor.pipe.tokenizer(TEXT).input_ids
    words = places(editor.pipe.tokenizer, ids)
    sums, steps = {}, []

    class Explicit(AttnProcessor):
        """The library's own plain processor, whose scores are read."""

        def __init__(self, name):
            self.name = name

        def __call__(self, attn, hidden_states, encoder_hidden_states=None, **kwargs):
            query = attn.head_to_batch_dim(attn.to_q(hidden_states))
            key = attn.head_to_batch_dim(attn.to_k(encoder_hidden_states))
            weights = attn.get_attention_scores(query, key)
            weights = weights.unflatten(0, (-1, attn.heads))[row].mean(0)
            body = sums.setdefault(self.name, {})
            body[TO_WORD] = body.get(TO_WORD, 0) + weights[:, words].T.double()
            return super().__call__(attn, hidden_states, encoder_hidden_states, **kwargs)

    for layer, module in editor.pipe.unet.named_modules():
        if layer.endswith("attn2"):
            module.processor = Explicit(layer)
    editor.pipe.unet.register_forward_pre_hook(lambda *_: steps.append(0))
    editor.edit_request(REQUEST)
    sizes = {values[TO_WORD].shape[1] for values in sums.values()}
    assert sizes <= {9 * 12, 5 * 6}
    sides = {9 * 12: (9, 12), 5 * 6: (5, 6)}
    check(attention, sums, len(steps), lambda layer: sides[sums[layer][TO_WORD].shape[1]])
    assert attention.mean(FROM_WORD) is None


def test_maps_return_to_the_grid_of_the_image(omnigen2):
    from mie.editors.attention import _on_image
    from mie.editors.sizes import NATIVE, SizeRule, place

    image = crop(0, 70, 90)
    _, placement = place(image, NATIVE, SizeRule(16))
    rows = np.repeat(np.arange(5, dtype=np.float32)[:, None], 6, 1)
    seen = _on_image(rows, placement)
    assert seen.shape == (70, 90)
    # Row r of a map covers pixels 16 r to 16 r + 15; its centre has its value.
    np.testing.assert_allclose((seen[23] + seen[24]) / 2, 1, atol=1e-3)
    np.testing.assert_allclose((seen[55] + seen[56]) / 2, 3, atol=1e-3)


def test_a_word_that_the_model_does_not_read_is_an_error(tiny):
    editor = open_editor(f"diffusers:{tiny('StableDiffusionInstructPix2PixPipeline')},steps=1,device=cpu")
    long = "red and blue " * 60 + "disc"
    with pytest.raises(EditError, match="not among the tokens"):
        record_attention(editor, Request(crop(1, 64, 64), long), [len(long)])


def test_editors_that_cannot_be_watched_are_rejected(omnigen2, tiny):
    for spec in ("identity", f"omnigen2:{omnigen2},size=auto", f"diffusers:{tiny('FluxFillPipeline')}"):
        with pytest.raises(ConfigError):
            check_watchable(open_editor(spec))
