"""A tiny LLaVA with random weights, saved and loaded as a real one would be. What it says is noise."""

from __future__ import annotations

import numpy as np
import pytest

from mie.errors import ConfigError
from mie.judges import Draft, Image, JudgeOptions, Prompt, Question, open_judge
from tests.judges.tiny_vlm import write_tiny_vlm

torch = pytest.importorskip("torch", reason="local judges are an optional extra")
pytest.importorskip("transformers", reason="local judges are an optional extra")
pytest.importorskip("tokenizers", reason="comes with transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("model") / "tiny-llava")


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
