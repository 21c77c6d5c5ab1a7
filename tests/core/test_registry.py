"""The one registry: our names, entry points, near names, and errors that say what to do."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from mie.core import registry as module
from mie.core.registry import Registry, found_in, nearest_name, suggestion, unknown_name
from mie.errors import ConfigError


def _registry(**options) -> Registry:
    return Registry("gadget", {"join": "os.path:join", "seven": 7}, group="mie.gadgets", **options)


@pytest.fixture
def installed(monkeypatch):
    """`installed(name="module:attribute")` pretends that a package offers these entry points."""

    def offer(**targets: str) -> None:
        points = [EntryPoint(name, target, "mie.gadgets") for name, target in targets.items()]
        monkeypatch.setattr(module, "entry_points", lambda group: points if group == "mie.gadgets" else [])

    return offer


def test_targets_are_imported_when_asked_for_and_objects_are_returned_as_they_are():
    import os

    assert _registry()["join"] is os.path.join
    assert _registry()["seven"] == 7


def test_entry_points_are_listed_and_loaded_and_ours_win(installed):
    import json
    import os

    installed(dumps="json:dumps", join="json:loads")
    gadgets = _registry()
    assert gadgets.names() == ["dumps", "join", "seven"]
    assert gadgets["dumps"] is json.dumps
    assert gadgets["join"] is os.path.join
    assert "dumps" in gadgets
    assert "loads" not in gadgets


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"no gadget named 'jion'") as caught:
        _registry()["jion"]
    assert caught.value.fix == "did you mean 'join'?"
    assert caught.value.expected == "join, seven"


def test_an_unknown_name_like_no_other_gets_the_hint():
    with pytest.raises(ConfigError) as caught:
        _registry(hint="read the manual")["quxx"]
    assert caught.value.fix == "read the manual"


def test_a_missing_package_of_ours_says_how_to_install_it():
    with pytest.raises(ConfigError, match="needs the package surely_absent") as caught:
        Registry("gadget", {"x": "surely_absent.part:thing"}, extra="models")["x"]
    assert "pip install" in str(caught.value.fix)
    assert "[models]" in str(caught.value.fix)


def test_a_package_that_does_not_import_is_named(installed):
    installed(broken="surely_absent:thing", gone="json:no_such_function")
    for name in ("broken", "gone"):
        with pytest.raises(ConfigError, match=f"gadget {name!r} cannot be imported"):
            _registry()[name]


def test_what_a_package_offers_is_checked(installed):
    installed(text="os:sep")
    gadgets = _registry(check=lambda thing: None if callable(thing) else "a function")
    with pytest.raises(ConfigError, match="'text' is not a gadget") as caught:
        gadgets["text"]
    assert caught.value.expected == "a function"
    assert callable(gadgets["join"])


def test_nearest_name():
    assert nearest_name("DICE", ["dice", "ssim"]) == "dice"
    assert nearest_name("drive", ["chasedb1_vessel", "drive_vessel"]) == "drive_vessel"
    assert nearest_name("dr", ["drive_vessel"]) is None  # two letters are the beginning of too much
    assert nearest_name("zebra", ["dice", "ssim"]) is None
    assert suggestion("sssim", ["dice", "ssim"]) == "did you mean 'ssim'?"
    assert unknown_name("split", "tset", ["train", "test"], where="a.yaml").where == "a.yaml"


def test_files_and_folders_of_a_package_are_found_without_an_import(tmp_path, monkeypatch):
    package = tmp_path / "gadgets_here"
    (package / "round").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "round/__init__.py").write_text("GADGET: Final = 1\nraise RuntimeError\n")
    (package / "plain.py").write_text("import os\nGADGET = 2\n")
    (package / "helper.py").write_text("# GADGET = 3\nif GADGET == 3: pass\nGADGETS = 4\n")
    (package / "_private.py").write_text("GADGET = 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert found_in("gadgets_here", "GADGET") == {
        "plain": "gadgets_here.plain:GADGET",
        "round": "gadgets_here.round:GADGET",
    }
    assert Registry("gadget", found_in("gadgets_here", "GADGET"))["plain"] == 2
    assert found_in("no_such_package_at_all", "GADGET") == {}
