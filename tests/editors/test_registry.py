"""Editors by name, their options, and those of other packages."""

import numpy as np
import pytest

from mie.editors import EDITORS, Edited, EditError, Editor, Request, SampleRef, open_editor
from mie.editors.baselines import Identity
from mie.errors import ConfigError, MieError
from tests.conftest import crop


class Tunable(Editor):
    """An editor with options."""

    def __init__(
        self, model: str = "tiny", *, steps: int = 4, strength: float | None = None, fast: bool = False
    ):
        self.values = (model, steps, strength, fast)

    def edit(self, image, instruction, *, seed, history):
        return Edited(np.full_like(image, seed % 256), {"steps": self.values[1]})


class Fussy(Identity):
    def edit(self, image, instruction, *, seed, history):
        if "bad" in instruction:
            raise RuntimeError("no such luck")
        if "ugly" in instruction:
            raise MieError("a word of ours", expected="x", found="y")
        return super().edit(image, instruction, seed=seed, history=history)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with editors, as pip would leave it."""
    info = tmp_path / "other_editors-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-editors\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[mie.editors]\n"
        "tunable = tests.editors.test_registry:Tunable\n"
        "identity = tests.editors.test_registry:Tunable\n"
        "missing = tests.editors.nowhere:Tunable\n"
        "strange = tests.conftest:crop\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_ours_are_there_and_near_names_are_suggested():
    assert {"identity", "oracle", "folder", "command", "http"} <= set(EDITORS.names())
    with pytest.raises(ConfigError, match="did you mean 'identity'"):
        open_editor("identiti")


def test_other_packages_bring_theirs_and_cannot_replace_ours(installed):
    assert "tunable" in EDITORS.names()
    assert type(open_editor("identity")) is Identity
    assert open_editor("tunable").values == ("tiny", 4, None, False)
    made = open_editor("tunable:large,steps=8,strength=0.5,fast=true")
    assert made.values == ("large", 8, 0.5, True)
    with pytest.raises(ConfigError, match="cannot be imported"):
        open_editor("missing")
    with pytest.raises(ConfigError, match="is not an editor"):
        open_editor("strange")


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("tunable:x,step=3", "did you mean 'steps'"),
        ("tunable,steps=three", "type int"),
        ("tunable,strength=nan", "type float"),
        ("tunable,fast=1", "true or false"),
        ("identity:x", "takes no argument"),
        ("identity,x=1", "no options"),
        ("folder", "folder:FOLDER"),
    ],
)
def test_wrong_options_are_refused(installed, spec, word):
    with pytest.raises(ConfigError, match=word):
        open_editor(spec)


def test_one_bad_request_does_not_spoil_the_batch():
    image = crop(0)
    outcomes = Fussy().edit_batch([Request(image, word) for word in ("good", "bad", "ugly", "good")])
    assert [type(o) for o in outcomes] == [Edited, EditError, EditError, Edited]
    assert outcomes[1].reason == "RuntimeError: no such luck"
    assert outcomes[2].reason == "a word of ours; expected x; found y"


def test_oracle_and_folder_need_a_sample(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    image, target = crop(0), crop(1)
    for editor in (open_editor("oracle"), open_editor(f"folder:{tmp_path}")):
        (outcome,) = editor.edit_batch([Request(image, "x")])
        assert isinstance(outcome, EditError)
        assert "needs a sample" in outcome.reason
    sample = SampleRef("a", "a", target_image=target)
    (outcome,) = open_editor("oracle").edit_batch([Request(image, "x", sample=sample)])
    assert np.array_equal(outcome.image, target)


@pytest.mark.parametrize("verb", ["run", "edit"])
def test_help_lists_every_editor_with_its_argument_and_a_line(installed, verb):
    from typer.testing import CliRunner

    from mie.cli import app

    text = CliRunner().invoke(app, [verb, "--help"]).output
    listed = text[text.index("Editors:") :]
    for name in EDITORS.names():
        assert f"\n  {name}" in listed, name
    words = " ".join(listed.split())
    assert "folder:FOLDER Takes outputs" in words
    assert "http:URL Sends image" in words
    assert "tunable[:MODEL] An editor with options." in words
    assert "missing not available here" in words


def test_every_editor_of_ours_has_a_summary():
    for name, kind in zip(EDITORS.targets, map(EDITORS.__getitem__, EDITORS.targets), strict=True):
        assert kind.summary().endswith("."), name
