"""What holds for every verb: groups in the help, plug-ins, interrupts, folders that cannot be written."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import typer

from mie import cli
from mie.core import registry
from tests import forked_python


def _mie(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mie", *map(str, arguments)]
    return forked_python.run(command)


def test_help_shows_every_verb_once_with_its_whole_sentence():
    text = " ".join(_mie("--help").stdout.split())
    for heading, names in cli._GROUPS.items():
        assert f"{heading}:" in text
        for name in names:
            command = cli.COMMANDS[name]
            doc = command.info.help if isinstance(command, typer.Typer) else command.__doc__
            sentence = " ".join(doc.split("\n\n")[0].split())
            assert f"{name} {sentence}" in text
    assert sorted(name for names in cli._GROUPS.values() for name in names) == cli.COMMANDS.names()
    assert "..." not in text.replace("[ARGS]...", "")


def test_commands_of_other_packages_are_registered_and_broken_ones_are_named(monkeypatch, capsys):
    points = [
        EntryPoint("hello", "tests.cli.test_commands:_hello", "mie.commands"),
        EntryPoint("broken", "surely_absent:verb", "mie.commands"),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "mie.commands" else [])
    monkeypatch.setattr(cli, "app", typer.Typer(cls=cli._Groups, rich_markup_mode=None))
    cli._register()
    assert "command 'broken' cannot be imported" in capsys.readouterr().err
    from typer.testing import CliRunner

    assert CliRunner().invoke(cli.app, ["hello"]).output == "hello from a package\n"
    text = CliRunner().invoke(cli.app, ["--help"]).output
    assert "From installed packages:" in text
    assert "hello" in text


def _hello() -> None:
    """Say hello."""
    typer.echo("hello from a package")


@pytest.mark.parametrize(
    ("verb", "promise"),
    [("build", True), ("verify", False), ("export", False), ("vqa build", True), ("vqa import", False)],
)
def test_only_verbs_that_resume_promise_it(monkeypatch, capsys, verb, promise):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    monkeypatch.setattr(sys, "argv", ["mie", *verb.split(), "folder"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert ("run the same command again to resume" in capsys.readouterr().err) is promise


def test_errors_of_the_file_system_are_told_without_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(cli, "app", lambda: open("/surely/absent"))  # noqa: PTH123, SIM115
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert "No such file or directory" in error
    assert "/surely/absent" in error


def test_an_output_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: one\nrecipe: transformation\nsources: [sample_cell]\n")
    for command in (
        ("build", recipe, "-o", tmp_path / "file" / "out"),
        ("demo", "-o", tmp_path / "file" / "out"),
    ):
        done = _mie(*command)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert "cannot write here" in done.stderr
        assert str(tmp_path / "file") in done.stderr


def test_sources_check_takes_a_recipe(tmp_path):
    import json

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: two\nsources: [sample_fundus, sample_cell]\n")
    done = _mie("sources", "check", recipe, "--json")
    assert done.returncode == 0, done.stderr
    assert {name: body["cases"] for name, body in json.loads(done.stdout).items()} == {
        "sample_fundus": 2,
        "sample_cell": 1,
    }
    wrong = _mie("sources", "check", recipe, tmp_path)
    assert wrong.returncode == 2
    assert "a recipe names its own folders" in wrong.stderr


def test_all_missing_folders_are_named_at_once(tmp_path):
    import json

    recipe = tmp_path / "recipe.yaml"
    lost = "".join(f"  - {{name: {name}, root: {name}}}\n" for name in ("drive_vessel", "busi_breast_us"))
    recipe.write_text(f"name: three\nsources:\n  - sample_cell\n{lost}")
    done = _mie("sources", "check", recipe, "--json")
    assert done.returncode == 3
    reports = json.loads(done.stdout)
    assert reports["sample_cell"]["cases"] == 1
    for name in ("drive_vessel", "busi_breast_us"):
        assert reports[name]["root"] == str(tmp_path / name)
        assert reports[name]["differences"] == ["there is no such folder"]
    built = _mie("build", recipe, "-o", tmp_path / "out")
    assert built.returncode == 1
    assert "2 folders are missing" in built.stderr
    assert all(str(tmp_path / name) in built.stderr for name in ("drive_vessel", "busi_breast_us"))


def test_a_wrong_root_is_shown_in_full(tmp_path):
    done = _mie("sources", "check", "drive_vessel", "nowhere")
    assert done.returncode == 1
    assert str((tmp_path.cwd() / "nowhere").absolute()) in done.stderr
