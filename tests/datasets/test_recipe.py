from pathlib import Path

import pytest

from mie.datasets.recipe import parse_recipe, read_recipe
from mie.errors import ConfigError
from tests.conftest import folder_source


def parse(**body):
    return parse_recipe({"name": "x", **body}, where="r.yaml", base=Path("/base"))


SOURCE = folder_source(Path("discs"))


def test_a_short_recipe_is_enough():
    config = parse(sources=[SOURCE])
    assert config.recipe.kind == "perception"
    assert config.sources[0].root == Path("/base/discs")
    assert config.split.test == 0.2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"sources": [SOURCE], "sede": 3}, ["'sede'", "'seed'"]),
        ({"sources": [SOURCE], "split": {"tets": 0.1}}, ["'tets'", "'test'"]),
        ({"sources": [{**SOURCE, "modalty": "CT"}]}, ["'modalty'", "'modality'"]),
        ({"sources": [{**SOURCE, "modality": "ultrasond"}]}, ["ultrasond", "'ultrasound'"]),
        ({"source": [SOURCE]}, ["lists no data sets", "'source'"]),
        ({"sources": [{"name": "drive_vesel", "root": "x"}]}, ["drive_vesel", "'drive_vessel'"]),
        ({"sources": [SOURCE, SOURCE]}, ["listed twice", "discs"]),
        ({"sources": [SOURCE], "split": {"test": 0.7, "val": 0.7}}, ["at most 1"]),
        ({"sources": [SOURCE], "name": "../x"}, ["letters, digits"]),
        ({"sources": [SOURCE], "recipe": "perseption"}, ["perception"]),
        ({"sources": [{"root": "x"}]}, ["no name"]),
        ({"sources": [{**SOURCE, "root": "${NOT_SET_ANYWHERE}/x"}]}, ["NOT_SET_ANYWHERE", "export"]),
    ],
)
def test_mistakes_are_named_with_the_near_word(body, words):
    with pytest.raises(ConfigError) as caught:
        parse(**body)
    text = str(caught.value)
    assert all(word in text for word in words), text


def test_a_data_set_listed_twice_shows_no_internals():
    with pytest.raises(ConfigError) as caught:
        parse(sources=[SOURCE, SOURCE])
    assert str(caught.value) == "data set listed twice: discs\n  where:    r.yaml: sources"


def test_environment_variables_in_roots(monkeypatch):
    monkeypatch.setenv("MIE_TEST_ROOT", "/data")
    words = "${MIE_TEST_ROOT}"
    config = parse(description=words, sources=[{**SOURCE, "root": f"{words}/discs", "title": words}])
    assert config.sources[0].root == Path("/data/discs")
    assert (config.description, config.sources[0].entry.title) == (words, words), "read nowhere else"


def test_a_catalogue_entry_can_be_changed_key_by_key():
    item = {"name": "drive_vessel", "root": "x", "layout": {"images": "im/{id}.png"}, "split": "test"}
    entry = parse(sources=[item]).sources[0].entry
    assert entry.layout.images == "im/{id}.png"
    assert entry.layout.masks is not None
    assert entry.split == "test"
    assert entry.modality == "fundus"


def test_the_public_recipe_holds_no_place_on_disk():
    assert "/base" not in str(parse(sources=[SOURCE]).public())


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nsources: [drive_vessel]\n1: 2\n",
        "name: a\nsources: [{name: drive_vessel, null: 2}]\n",
        "name: a\nsources: [{name: own, layout: {}, 1.5: 2}]\n",
    ],
)
def test_keys_that_are_no_words_are_a_config_error(tmp_path, text):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"Keys should be strings|Field required"):
        read_recipe(path)


@pytest.mark.parametrize("text", ["name: [", "- a\n- b\n", "name: a\nname: b\nsources: []\n", "\x00"])
def test_broken_yaml_is_a_config_error(tmp_path, text):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        read_recipe(path)


def test_a_missing_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_recipe(tmp_path / "none.yaml")


def test_python_tags_are_not_run(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("name: !!python/object/apply:os.system ['true']\nsources: []\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_recipe(path)
