"""A prompt's words are frozen: other words are another version."""

from __future__ import annotations

from importlib import resources

import pytest

from mie.judges import Prompt, load_prompt

# name@version -> the first digits of its SHA-256. A changed text gets a new file and a new line here.
FROZEN = {
    "imgedit_action@1": "f7d814d57bbe0784",
    "imgedit_add@1": "361227eb559e43af",
    "imgedit_adjust@1": "de1bc985278e43fd",
    "imgedit_background@1": "dac1005a7941a8eb",
    "imgedit_compose@1": "e12f928d209fb017",
    "imgedit_extract@1": "4248c89108cbb642",
    "imgedit_multiturn@1": "d7963e70b56ba13a",
    "imgedit_remove@1": "105963522ec73c40",
    "imgedit_replace@1": "1aa0c9d0a9068b57",
    "imgedit_style@1": "07100eef6d4690b8",
    "imgedit_uge@1": "4ec0674d1c8c7e89",
    "lesion_removed@1": "91c7b180bb1d88cd",
    "medebench_describe@1": "5aba7169a5c96877",
    "medebench_edit@1": "1c9df58d7bee074d",
    "miedb_rubric@1": "70c4323c2bca7539",
    "omni_iie_answers@1": "b8c170bf700f208c",
    "omni_iie_questions@1": "606fb6ada5d5fbbd",
    "rephrase@1": "2277648e44db2389",
}


def names() -> list[tuple[str, int]]:
    files = [path.name for path in (resources.files("mie.judges") / "prompts").iterdir()]
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
