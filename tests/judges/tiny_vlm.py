"""A tiny LLaVA with random weights, saved as a real one would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_tiny_vlm(place: Path, *texts: str) -> Path:
    """Save the model and its processor to `place`; `texts` are the words that its tokenizer learns."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(0)
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>", "<pad>", "<image>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(["user: Say cheese.", "assistant: cheese", *texts], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    vision = transformers.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=16,
    )
    text = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=3,
        bos_token_id=1,
        eos_token_id=2,
    )
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=4, vision_feature_layer=-1
    )
    model: Any = transformers.LlavaForConditionalGeneration(config)
    size = {"height": 32, "width": 32}
    try:
        images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size)
    except AttributeError:
        images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size)
    processor = transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=16,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )
    model.save_pretrained(place)
    processor.save_pretrained(place)
    return place
