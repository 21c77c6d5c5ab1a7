import pytest

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
