"""A tiny LLaVA with random weights, saved and loaded as a real one would be. What it says is noise."""

from __future__ import annotations

import numpy as np
import pytest

from mie.errors import ConfigError
from mie.judges import Draft, Image, JudgeOptions, Prompt, Question, open_judge

torch = pytest.importorskip("torch", reason="local judges are an optional extra")
transformers = pytest.importorskip("transformers", reason="local judges are an optional extra")
tokenizers = pytest.importorskip("tokenizers", reason="comes with transformers")

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<unk>", "<s>", "</s>", "<pad>", "<image>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(["user: Say cheese.", "assistant: cheese"], trainer)
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
    model = transformers.LlavaForConditionalGeneration(config)
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
    place = tmp_path_factory.mktemp("model") / "tiny-llava"
    model.save_pretrained(place)
    processor.save_pretrained(place)
    return place


def test_a_model_in_a_folder_answers(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    prompt = Prompt("test", 1, "Be a judge.", "Say cheese.")
    seen = []

    def make() -> Question:
        pixels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
        return Question(prompt, (Image(pixels), "Say cheese."), lambda text: seen.append(text) or text)

    drafts = [Draft("a_0:x", make, prompt)]
    spec = f"local:{folder},device=cpu,max_tokens=5"
    with open_judge(JudgeOptions(spec), tmp_path, dataset={"deidentified": False}) as judge:
        (first,) = judge.ask(drafts)["a_0:x"]
        record = judge.record([])
    assert first.state in ("done", "truncated")
    assert (record["provider"], record["model"], record["cost_usd"]) == ("local", "tiny-llava", 0)
    # Four patches stand for the image; the words are bytes at most.
    assert 4 < record["usage"]["input"] < 80
    assert 1 <= record["usage"]["output"] <= 5
    with open_judge(JudgeOptions(spec), tmp_path / "again", dataset={}) as judge:
        (second,) = judge.ask(drafts)["a_0:x"]
    assert second == first


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ConfigError, match="no model here"):
        open_judge(JudgeOptions(f"local:{tmp_path}"), tmp_path, dataset={}).__enter__()
