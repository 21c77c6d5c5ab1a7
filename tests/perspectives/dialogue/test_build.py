"""Conversations in a whole build: leaks take whole conversations, and what is shared is encoded once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mie.datasets import schema
from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.leaks import FirstTraces, turn_key, whole_conversations
from mie.datasets.recipe import parse_recipe
from mie.datasets.schema import RowEncoder
from mie.datasets.verify import verify
from mie.errors import MieError
from mie.training.pack_datasets import pack_datasets
from tests.perspectives.dialogue.cases import conversations
from tests.scoring.benchmarks.runs import write_samples


def test_a_turn_that_goes_takes_its_conversation_with_it() -> None:
    groups = ["x", "x", "y", "y", "pair", "pair"]
    turns = [1, 2, 1, 2, None, None]
    assert whole_conversations({1, 4}, groups, turns) == {0: 1}  # a pair of modification has no turns


def test_turns_have_the_trace_of_their_first_image_and_are_no_duplicates() -> None:
    talk = conversations(0)[0]
    first = FirstTraces()
    assert first.of(talk[0]) is None
    first.keep(talk[0], (7, b"seven"))
    assert first.of(talk[1]) == (7, b"seven")
    assert first.of(replace(talk[1], group="another")) is None
    first.keep(None, (8, b"eight"))
    assert first.of(talk[1]) is None
    assert len({turn_key(turn) for turn in talk}) == len(talk)


def test_each_image_of_a_conversation_is_encoded_once(monkeypatch) -> None:
    talk = next(talk for talk in conversations(0) if talk[0].task == "chain")
    encoded = []
    monkeypatch.setattr(schema, "encode_png", lambda array: encoded.append(array) or b"png")
    encoder = RowEncoder()
    for turn in talk:
        encoder.row(turn)
    images = {image.tobytes() for turn in talk for image in (turn.input, turn.target_image, turn.mask)}
    assert len(encoded) == len(images) < 3 * len(talk)


def test_conversations_cannot_be_packed_turn_by_turn(tmp_path) -> None:
    dataset = write_samples(conversations(0)[0], tmp_path / "dataset")
    with pytest.raises(MieError, match="cannot be packed") as error:
        pack_datasets([dataset.folder])
    assert error.value.found == "dialogue"


def test_a_build_proves_itself_and_gives_the_same_dataset_again(tmp_path) -> None:
    body = {
        "name": "talks",
        "seed": 3,
        "recipe": {"kind": "dialogue", "per_case": 2, "bases": 0},
        "bins": [128],
        "sources": [{"name": "sample_abdomen_ct", "layout": {"slices": 1}}],
    }
    config = parse_recipe(body, where="r.yaml", base=tmp_path)
    first = build(config, tmp_path / "first", workers=1)
    assert verify(first.folder, workers=1).problems == []
    assert "conversations" in (first.folder / "README.md").read_text()
    again = build(config, tmp_path / "again", workers=1)
    assert again.info["digest"] == first.info["digest"]


def test_a_rephrased_conversation_keeps_its_turns_and_proves_itself(tmp_path) -> None:
    from tests.datasets.test_rephrase import asked, sentence_of
    from tests.judges.server import JudgeServer

    body = {
        "name": "talks",
        "seed": 3,
        "recipe": {
            "kind": "dialogue",
            "per_case": 2,
            "families": ["backtracking", "understanding"],
            "bases": 0,
        },
        "bins": [128],
        "sources": [{"name": "sample_abdomen_ct", "layout": {"slices": 1}}],
    }
    config = parse_recipe(body, where="r.yaml", base=tmp_path)

    def reply(request) -> str:
        """One faithful rephrasing, and one that refers to something else."""
        said = sentence_of(request)
        return json.dumps(
            {"rephrasings": [f"{said[:-1]}, thank you.", f"The smaller and the larger: {said}"]}
        )

    plain = Dataset(build(config, tmp_path / "plain", workers=1).folder)
    with JudgeServer(reply) as server:
        spoken = Dataset(build(config, tmp_path / "spoken", workers=1, rephrase=asked(server)).folder)
    assert verify(spoken.folder, workers=1).problems == []
    for before, after in zip(plain.samples(), spoken.samples(), strict=True):
        assert (before.id, before.group, before.turn) == (after.id, after.group, after.turn)
        assert after.params["after"] == before.params["after"]
        assert after.prompt == f"{before.prompt[:-1]}, thank you."
        assert after.params["rephrased"]["sentence"] == before.prompt
