import pytest
import yaml

from mie.core import yaml_files
from mie.core.yaml_files import expanded, read_mapping
from mie.errors import ConfigError


def read(folder, text):
    path = folder / "a.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_mapping(path, "recipe", expected="name:")


def test_a_mapping_is_read_as_it_stands(tmp_path):
    assert read(tmp_path, "name: é\nlist: [{a: 1, b: 2}, {a: 3}]\n1: x") == {
        "name": "é",
        "list": [{"a": 1, "b": 2}, {"a": 3}],
        1: "x",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nname: b\n", r"the recipe is not valid YAML[\s\S]*key 'name' given twice[\s\S]*line 1"),
        ("top:\n  - {a: 1, b: 2, a: 1}\n", r"key 'a' given twice[\s\S]*line 2"),
        ("1: a\n0x1: b\n", "key 1 given twice"),
        ("? [a]\n: b\n", "not valid YAML"),
        ("{", "the recipe is not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("[1, 2]", r"the recipe is not a mapping[\s\S]*expected: name:"),
        ("", "not a mapping"),
        (b"name: \xff", "cannot read the recipe"),
    ],
)
def test_what_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as refused:
        read(tmp_path, text)
    assert "a.yaml" in str(refused.value)


def test_no_file(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the recipe[\s\S]*none\.yaml"):
        read_mapping(tmp_path / "none.yaml", "recipe", expected="name:")


def test_the_environment_in_strings_at_any_depth(monkeypatch):
    monkeypatch.setenv("MIE_A", "/data")
    body = {"a": "${MIE_A}/x", "b": [{"c": "${MIE_A}${MIE_A}"}, 1, None], "d": "$MIE_A ${}", "${MIE_A}": True}
    assert expanded(body, "here") == {
        "a": "/data/x",
        "b": [{"c": "/data/data"}, 1, None],
        "d": "$MIE_A ${}",
        "${MIE_A}": True,
    }
    with pytest.raises(ConfigError, match=r"MIE_NONE is not set[\s\S]*here[\s\S]*export MIE_NONE"):
        expanded(["${MIE_NONE}/x"], "here")


def test_aliases_of_aliases_are_not_followed_without_end(tmp_path):
    laughs = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    for text in (laughs, "a: &a [*a]\n"):
        with pytest.raises(ConfigError, match="aliases"):
            read(tmp_path, text)
    assert read(tmp_path, "a: &a [1]\nb: *a\n") == {"a": [1], "b": [1]}


def test_many_keys_take_no_longer_than_their_number(tmp_path, monkeypatch):
    class Counted(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other):
            Counted.compared += 1
            return str.__eq__(self, other)

    monkeypatch.setattr(yaml_files._UniqueKeys, "construct_yaml_str", lambda _, node: Counted(node.value))
    yaml_files._UniqueKeys.add_constructor("tag:yaml.org,2002:str", lambda _, node: Counted(node.value))
    try:
        body = read(tmp_path, "".join(f"k{n}: 1\n" for n in range(2000)))
    finally:
        del yaml_files._UniqueKeys.yaml_constructors["tag:yaml.org,2002:str"]
        yaml_files._UniqueKeys.yaml_constructors["tag:yaml.org,2002:str"] = yaml.SafeLoader.construct_yaml_str
    assert len(body) == 2000
    assert Counted.compared < 20_000  # it was the square of their number


@pytest.mark.parametrize(
    "text",
    ["a: " + "9" * 5000, "a: 2024-13-77", "[" * 5000, "a: " + "x" * 2**20],
    ids=["digits", "date", "deep", "long"],
)
def test_what_python_cannot_hold_is_a_config_error(tmp_path, text):
    with pytest.raises(ConfigError):
        read(tmp_path, text)


def test_a_merge_key_is_refused_by_name(tmp_path):
    # Merges of merges double with every level: thirty lines would take hours.
    lines = [f"a{n}: &a{n}\n  <<: [*a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    with pytest.raises(ConfigError, match="`<<` is not read here"):
        read(tmp_path, "\n".join(["a0: &a0 {x: 1}", *lines]))
