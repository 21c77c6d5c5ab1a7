"""A detector and a segmenter with random weights, as small as `transformers` allows."""

from __future__ import annotations

from pathlib import Path


def tiny_models(folder: Path) -> Path:
    """`detector` and `segmenter` in the folder."""
    import torch
    import transformers

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
