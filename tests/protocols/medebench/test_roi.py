"""Region proposals by tiny models with random weights: shapes, order, and what is missing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mie.errors import MieError
from mie.images.png import decode_png
from tests.conftest import crop
from tests.protocols.runs import modification, structure, write_samples

torch = pytest.importorskip("torch", reason="models are an optional extra")
transformers = pytest.importorskip("transformers", reason="models are an optional extra")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    detector = transformers.OwlViTForObjectDetection(
        transformers.OwlViTConfig(
            text_config={**small, "vocab_size": 300, "max_position_embeddings": 16},
            vision_config={**small, "image_size": 32, "patch_size": 8},
            projection_dim=16,
        )
    )
    with torch.no_grad():  # sure of everything it sees
        detector.class_head.logit_shift.bias.fill_(8.0)
    detector.save_pretrained(folder / "detector")
    vocab = {chr(n): n for n in range(256)} | {"<|startoftext|>": 256, "<|endoftext|>": 257, "a</w>": 258}
    tokenizer = transformers.CLIPTokenizer(vocab=vocab, merges=[], model_max_length=16)
    images = transformers.OwlViTImageProcessor(size={"height": 32, "width": 32}, do_center_crop=False)
    transformers.OwlViTProcessor(images, tokenizer).save_pretrained(folder / "detector")
    sam = transformers.SamModel(
        transformers.SamConfig(
            vision_config={
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "mlp_dim": 16,
                "output_channels": 16,
                "image_size": 64,
                "patch_size": 8,
                "global_attn_indexes": [0],
                "window_size": 0,
                "num_pos_feats": 8,
            },
            prompt_encoder_config={
                "hidden_size": 16,
                "image_size": 64,
                "patch_size": 8,
                "image_embedding_size": 8,
                "mask_input_channels": 4,
            },
            mask_decoder_config={
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "mlp_dim": 16,
                "iou_head_hidden_dim": 16,
                "iou_head_depth": 2,
            },
        )
    )
    sam.save_pretrained(folder / "segmenter")
    pictures = transformers.SamImageProcessor(
        size={"longest_edge": 64},
        pad_size={"height": 64, "width": 64},
        mask_size={"longest_edge": 16},
        mask_pad_size={"height": 16, "width": 16},
    )
    transformers.SamProcessor(pictures).save_pretrained(folder / "segmenter")
    return folder


def test_three_proposals_best_first(models):
    from mie.protocols.medebench.roi import Proposer

    proposer = Proposer(models / "detector", models / "segmenter", device="cpu")
    image = crop(3, 60, 80)
    found = proposer.propose(image, "Optic disc")
    assert len(found) == 3
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    for one in found:
        assert one.mask.shape == (60, 80)
        assert one.mask.dtype == np.bool_
        assert len(one.box) == 4
    again = proposer.propose(image, "optic disc.")
    assert [p.box for p in again] == [p.box for p in found]


def test_proposals_of_a_dataset(models, tmp_path):
    from mie.protocols.medebench.roi import Proposer, write_proposals

    samples = [structure("a", 1), modification("b", 2)]
    folder = write_samples(samples, tmp_path / "dataset").folder
    path = write_proposals(folder, tmp_path / "found", None)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["regions"] for line in lines] == [["source"], []]  # the source's mask, where there is one
    own = decode_png((tmp_path / "found/a_source.png").read_bytes())
    np.testing.assert_array_equal(own, samples[0].mask)
    proposer = Proposer(models / "detector", models / "segmenter", device="cpu")
    path = write_proposals(folder, tmp_path / "more", proposer)
    first = path.read_text()
    path.write_text(first[: first.index("\n") + 20])  # killed while the second line was written
    assert write_proposals(folder, tmp_path / "more", proposer).read_text() == first
    assert len(list((tmp_path / "more").glob("*.png"))) == 7


def test_nothing_is_fetched(models, tmp_path):
    from mie.protocols.medebench.roi import Proposer

    with pytest.raises(MieError, match="no model in this folder"):
        Proposer(tmp_path / "absent", models / "segmenter")
