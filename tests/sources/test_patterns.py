import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.errors import ConfigError, MieError
from mie.sources import patterns


def test_places_are_captured_and_suffixes_are_plain_text():
    match = patterns.compiled("images/{patient}_z{slice}.png").fullmatch("images/p07_z045.png")
    assert match is not None
    assert match.groupdict() == {"patient": "p07", "slice": "045"}
    assert patterns.compiled("images/{id}.png").fullmatch("images/sub/a.png") is None


def test_a_place_may_say_what_it_matches():
    expression = patterns.compiled(r"{kind:benign|malignant}_{n:\d{2,4}}.png")
    assert expression.fullmatch("benign_012.png") is not None
    assert expression.fullmatch("normal_012.png") is None
    assert expression.fullmatch("benign_1.png") is None


@given(st.text(st.characters(codec="utf-8", exclude_characters="/\x00"), min_size=1, max_size=30))
def test_any_file_name_is_matched_whole(name):
    match = patterns.compiled("a/{id}.png").fullmatch(f"a/{name}.png")
    assert match is not None
    assert match["id"] == name


@pytest.mark.parametrize(
    "bad", ["../x/{id}.png", "/abs/{id}.png", "a/../../{id}.png", "a\\{id}.png", "c:/{id}"]
)
def test_patterns_stay_inside(bad):
    with pytest.raises(ConfigError, match="stay inside"):
        patterns.check(bad)


@pytest.mark.parametrize("bad", ["{Id}.png", "{}.png", "{id.png", r"{id:[}.png"])
def test_bad_places_are_named(bad):
    with pytest.raises(ConfigError):
        patterns.check(bad)


def test_backslashes_belong_in_regular_expressions():
    assert patterns.check(r"images/{id:\d+}.png")


def test_links_out_of_the_root_are_refused(tmp_path):
    (tmp_path / "outside.png").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.png").symlink_to(tmp_path / "outside.png")
    (root / "b.png").write_bytes(b"fine")
    listing = patterns.Listing(root)
    assert [p for p, _ in listing.matches("{id}.png")] == ["a.png", "b.png"]
    assert listing.inside("b.png") == root / "b.png"
    with pytest.raises(MieError, match="leaves"):
        listing.inside("a.png")
    with pytest.raises(MieError, match="leaves"):
        listing.inside("../outside.png")
    with pytest.raises(MieError, match="leaves"):
        listing.inside("..")  # although files of the same folder were allowed


def test_folders_that_link_out_of_the_root_are_refused(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "root/images").mkdir(parents=True)
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/alias").symlink_to(tmp_path / "root/images")
    for name in ("outside/a.png", "root/images/a.png", "root/images/b.png"):
        (tmp_path / name).write_bytes(b"x")
    listing = patterns.Listing(tmp_path / "root")
    for name in ("images/a.png", "images/b.png", "alias/a.png", "images/b.png"):
        assert listing.inside(name) == tmp_path / "root" / name
    for _ in range(2):
        with pytest.raises(MieError, match="leaves"):
            listing.inside("link/a.png")
    (tmp_path / "root/images/c.png").symlink_to(tmp_path / "outside/a.png")
    with pytest.raises(MieError, match="leaves"):
        listing.inside("images/c.png")


@pytest.mark.parametrize(
    "expression", ["(a+)+$", "(?:a|ab)*c", "(?:a?)*", "([0-9]+_?)*x", ".*.*.*.*.*.*.*x", "(" * 300]
)
def test_expressions_that_could_search_for_hours_are_refused(expression):
    with pytest.raises(ConfigError):
        patterns.check(f"images/{{id:{expression}}}.png")


@pytest.mark.parametrize(
    "expression", ["[0-9]+", "(?:_[0-9]+)?", "a|b", "(?:ab){2}", "[a-z]+[0-9]{3}", "(?i:case)-\\d+"]
)
def test_everyday_expressions_are_accepted(expression):
    assert patterns.check(f"images/{{id:{expression}}}.png")
