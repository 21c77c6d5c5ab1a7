"""`mie parse` and `mie edit --list`."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from mie.cli import app


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_parse_prints_the_keys_in_their_order() -> None:
    document = json.loads(run("parse", "Mark the left lung in red", "--modality", "X-ray", "--json"))
    assert list(document) == ["operation", "task", "targets", "attributes", "unknown", "note"]
    assert document["targets"] == [{"name": "lungs", "colour": "red", "side": "left"}]


def test_parse_says_what_it_does_not_know() -> None:
    assert "not known: patella" in run("parse", "Highlight the patella", "--modality", "X-ray")


def test_the_list_is_that_of_the_modality() -> None:
    document = json.loads(run("edit", "--list", "--modality", "fundus", "--json"))
    names = [target["name"] for target in document["targets"]]
    assert "optic disc" in names
    assert "liver" not in names
    assert document["colours"] == ["red", "green", "blue"]
