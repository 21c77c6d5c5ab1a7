"""Wide wordings: synonyms and frames that ask for the same, some of them for the test split alone."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import mie
from mie.core.hashing import generator
from mie.datasets.faithful import take_apart
from mie.datasets.verify import verify
from mie.datasets.wide import FRAMES, Wide, drawn, is_test_only, words_for
from mie.perspectives import PERSPECTIVES
from mie.perspectives.modification import phrasings as modification
from mie.perspectives.perception import phrasings as perception
from mie.perspectives.perspective import BuildFacts
from mie.perspectives.transformation import phrasings as transformation
from mie.records import Target
from mie.sources.catalog import catalog
from mie.training.wordings import recover_instruction
from mie.vocabulary import COLOURS
from mie.words import parse

TARGETS = sorted(
    {(t.name, t.kind, t.plural, e.modality, e.anatomy) for e in catalog().values() for t in e.targets}
)
# Few slices of each volume: words are what is looked at.
SOURCES = [
    *("sample_nuclei", "sample_fundus"),
    *({"name": name, "layout": {"slices": 1}} for name in ("sample_lung_ct", "sample_abdomen_ct")),
]


def test_every_template_and_every_target_asks_for_the_same() -> None:
    """Each target with every second template, in turn, and of all synonyms and frames one each.

    The whole product takes minutes.
    """
    widened, total, wrong = 0, 0, []
    for turn, (name, kind, plural, modality, anatomy) in enumerate(TARGETS):
        target = Target(name, kind, plural)
        task = "lesion" if kind == "lesion" else "structure"
        prompts = [
            perception.ask_for_one(template, target, colour, modality)
            for template, colour in zip(perception.PHRASINGS[task], itertools.cycle(COLOURS), strict=False)
        ]
        if kind == "lesion":
            words = modification.words(
                [target],
                anatomy=anatomy,
                modality=modality,
                location="in the centre of the image",
                size="small",
            )
            prompts += [modification.ask(t, words) for many in modification.PHRASINGS.values() for t in many]
        for at, prompt in list(enumerate(prompts))[turn % 2 :: 2]:
            wide = drawn(prompt, [name], modality, "test", generator(at))
            total += 1
            widened += wide != Wide("{}", {})
            before, after = parse(prompt, modality), parse(wide.of(prompt), modality)
            if (before.operation, before.targets, before.attributes) != (
                after.operation,
                after.targets,
                after.attributes,
            ):
                wrong.append(wide.of(prompt))
    assert not wrong, wrong[:3]
    assert widened > 0.8 * total


def test_every_target_can_be_asked_for_three_times_as_often() -> None:
    for name, _, _, modality, _ in TARGETS:
        words = words_for(name, modality, False)
        assert words[0] == name
        assert len(FRAMES) * len(words) >= 3


@pytest.mark.parametrize("key", sorted(transformation.PHRASINGS))
def test_a_frame_keeps_a_transformation(key: str) -> None:
    for template in transformation.PHRASINGS[key]:
        places = transformation.places(template)
        words = {**dict.fromkeys(places, "4"), "anatomy": "brain", "picture": "MRI slice", "goal": "CT"}
        prompt = template.format(**{**words, "source": "MRI", "window": "lung", "artifacts": "hair"})
        for frame in FRAMES:
            framed = parse(frame.replace("{}", prompt))
            assert (framed.operation, framed.targets) == (parse(prompt).operation, parse(prompt).targets)


def recipe(wordings: str | None) -> dict[str, object]:
    kind = {"kind": "perception", **({"wordings": wordings} if wordings else {})}
    return {"name": "wide", "recipe": kind, "split": {"test": 0.5}, "sources": SOURCES}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> mie.Dataset:
    return mie.build(recipe("wide"), tmp_path_factory.mktemp("wide") / "out")


def test_a_dataset_says_the_same_in_other_words(dataset: mie.Dataset, tmp_path: Path) -> None:
    plain = mie.build(recipe(None), tmp_path / "plain")
    others = {sample.id: sample for sample in plain.samples()}
    differs = 0
    for sample in dataset.samples():
        other = others.pop(sample.id)
        assert (sample.input == other.input).all()
        assert sample.description == other.description
        differs += sample.prompt != other.prompt
        result, expected = parse(sample.prompt, sample.modality), parse(other.prompt, sample.modality)
        assert (result.operation, result.targets) == ("perception", expected.targets)
        for name, word in sample.params["wide"]["spoken"].items():
            assert word in sample.prompt.casefold() or word in sample.prompt
            assert sample.split == "test" or not is_test_only(name, word)
    assert not others
    assert differs > len(plain) / 2
    assert plain.digest != dataset.digest
    # A recipe without the key is the recipe that it was before there was one.
    assert "wordings" not in plain.info["recipe"]["recipe"]
    assert dataset.info["recipe"]["recipe"]["wordings"] == "wide"
    assert "wide" in (dataset.folder / "README.md").read_text()
    assert verify(dataset.folder).problems == []
    again = mie.build(recipe("wide"), tmp_path / "again")
    assert again.digest == dataset.digest


def test_every_perspective_takes_the_key(tmp_path: Path) -> None:
    body = {
        "name": "t",
        "recipe": {"kind": "transformation", "wordings": "wide"},
        "sources": ["sample_brain_mri"],
    }
    built = mie.build(body, tmp_path / "out")
    assert verify(built.folder).problems == []
    frames = {sample.params["wide"]["frame"] for sample in built.samples()}
    assert frames <= set(FRAMES)
    assert len(frames) > 2
    for sample in built.samples():
        assert parse(sample.prompt, sample.modality).targets[0].name == sample.target
        assert sample.prompt_template.startswith(sample.params["wide"]["frame"].split("{}")[0])
    perspective = PERSPECTIVES["modification"]
    config = perspective.config.model_validate({"kind": "modification", "wordings": "wide"})
    perspective.samples(config, BuildFacts("m", (256,)))


def test_a_modification_names_what_was_taken_for_its_target() -> None:
    prompt = "Take out the skin lesion and restore healthy skin."
    wide = Wide("{} Thank you.", {"skin lesion": "mole"})
    assert wide.of(prompt) == "Take out the mole and restore healthy skin. Thank you."
    assert wide.plain(wide.of(prompt)) == prompt
    assert wide.of("Skin lesion: red.") == "Mole: red. Thank you."
    # A sentence without the name draws a frame alone.
    assert drawn("Fill the white area.", ["skin lesion"], "dermoscopy", "test", generator(3)).spoken == {}


def test_a_rephrasing_keeps_the_synonym(dataset: mie.Dataset) -> None:
    sample = next(s for s in dataset.samples() if s.params["wide"]["spoken"] and s.task != "holistic")
    ((name, word),) = sample.params["wide"]["spoken"].items()
    sentence = take_apart(sample.prompt, sample.prompt_template, sample.params)
    assert sentence is not None
    assert word in {entity.casefold() for entity in sentence.entities} | set(sentence.entities)
    assert name not in sentence.entities


def test_training_gets_every_wording_and_none_of_the_test_words(dataset: mie.Dataset) -> None:
    checked = 0
    for row in dataset.rows():
        if row["split"] != "train" or row["task"] == "holistic":
            continue
        params = json.loads(row["params"]) if isinstance(row["params"], str) else row["params"]
        instruction = recover_instruction(row, params, dataset.info["recipe"], 24)
        assert instruction.key.startswith("wide/perception/")
        assert len({wording.prompt for wording in instruction.wordings}) > 12
        known = parse(row["prompt"], row["modality"]).targets[0].name
        for wording in instruction.wordings:
            (target,) = parse(wording.prompt, row["modality"]).targets
            assert (target.name, target.colour) == (known, wording.colours[0])
        checked += 1
    assert checked


def test_a_name_inside_another_is_not_swapped() -> None:
    names = ["liver", "liver tumours"]
    sentence = "Paint the liver in blue and the liver tumours in green."
    for seed in range(40):
        wide = drawn(sentence, names, "CT", "train", generator(seed))
        assert "liver" not in wide.spoken
        assert wide.plain(wide.of(sentence)) == sentence
