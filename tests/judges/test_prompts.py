"""A prompt's words are frozen: other words are another version."""

from __future__ import annotations

from importlib import resources

import pytest

from mie.judges import Prompt, load_prompt

# name@version -> the first digits of its SHA-256. A changed text gets a new file and a new line here.
FROZEN = {
    "medebench_describe@1": "5aba7169a5c96877",
    "medebench_edit@1": "1c9df58d7bee074d",
    "miedb_rubric@1": "70c4323c2bca7539",
}


def names() -> list[tuple[str, int]]:
    files = [path.name for path in resources.files("mie.judges.prompts").iterdir()]
    stems = [name.removesuffix(".txt").rpartition(".v") for name in files if name.endswith(".txt")]
    return sorted((id, int(version)) for id, _, version in stems)


@pytest.mark.parametrize(("id", "version"), names())
def test_words_do_not_change_under_a_version(id, version):
    prompt = load_prompt(id, version)
    assert prompt.sha256[:16] == FROZEN[prompt.name]
    assert prompt.system
    assert "--- user" not in prompt.system + prompt.user


def test_filling_in_leaves_braces_alone():
    prompt = Prompt("x", 1, "s", "Instruction: {instruction} ({scale})")
    assert prompt.fill(instruction="{scale} } {", scale="5") == "Instruction: {scale} } { (5)"
    with pytest.raises(KeyError):
        prompt.fill(instruction="x")
