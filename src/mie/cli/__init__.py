"""The command. One small file per verb; heavy imports happen inside the verbs, so `mie --help` is quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final, TextIO, cast

import typer
from typer.core import TyperGroup

from mie.cli._show import PrintableStream, plain
from mie.cli._storage import on_storage
from mie.core.files import disk_error
from mie.core.registry import Registry
from mie.errors import ConfigError, MieError

# Every verb with its place in `mie --help`.
_GROUPS: Final = {
    "Start": ("demo", "doctor"),
    "Datasets": (
        "sources",
        "plan",
        "build",
        "merge",
        "choose",
        "filter",
        "verify",
        "stats",
        "export",
        "import",
        "privacy",
    ),
    "Editors": ("parse", "edit", "inspect", "run"),
    "Questions": ("vqa",),
    "Scores": ("score", "ground", "fake", "report", "board", "weights"),
    "People": ("propose", "review", "sample", "agree"),
    "Training": ("pack", "judge-set", "train", "experiment", "export-model"),
}
_OTHERS: Final = "From installed packages"
# Other packages add a function for `typer`, or a `typer.Typer` of several, in the group `mie.commands`.
COMMANDS: Final[Registry[Callable[..., Any] | typer.Typer]] = Registry(
    "command",
    {
        "agree": "mie.cli.agree:agree",
        "board": "mie.cli.board:board",
        "build": "mie.cli.build:build",
        "choose": "mie.cli.choose:choose",
        "demo": "mie.cli.demo:demo",
        "doctor": "mie.cli.doctor:doctor",
        "edit": "mie.cli.edit:edit",
        "experiment": "mie.cli.experiment:app",
        "export": "mie.cli.export:export",
        "export-model": "mie.cli.export_model:export_model",
        "fake": "mie.cli.fake:fake",
        "filter": "mie.cli.filter:filter_",
        "ground": "mie.cli.ground:ground",
        "import": "mie.cli.import_:import_",
        "inspect": "mie.cli.inspect:inspect",
        "judge-set": "mie.cli.judge_set:judge_set",
        "pack": "mie.cli.pack:pack",
        "merge": "mie.cli.merge:merge",
        "parse": "mie.cli.parse:parse",
        "plan": "mie.cli.plan:plan",
        "privacy": "mie.cli.privacy:privacy",
        "propose": "mie.cli.propose:propose",
        "report": "mie.cli.report:report",
        "review": "mie.cli.review:review",
        "run": "mie.cli.run:run",
        "sample": "mie.cli.sample:sample",
        "score": "mie.cli.score:score",
        "sources": "mie.cli.sources:app",
        "stats": "mie.cli.stats:stats",
        "train": "mie.cli.train:train",
        "verify": "mie.cli.verify:verify",
        "vqa": "mie.cli.vqa:app",
        "weights": "mie.cli.weights:app",
    },
    group="mie.commands",
    check=lambda thing: None if callable(thing) else "a function, or a typer.Typer",
)
# These keep what is done and take it up again when the same command is run once more.
_RESUMING: Final = (
    *("build", "merge", "run", "score", "ground", "propose", "train", "experiment", "demo"),
    *("vqa build", "vqa run", "vqa score", "vqa write"),
)


class _Groups(TyperGroup):
    """Commands under headings, each with its whole first sentence."""

    def list_commands(self, ctx: Any) -> list[str]:
        ordered = [name for names in _GROUPS.values() for name in names]
        return [*ordered, *(name for name in super().list_commands(ctx) if name not in ordered)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        ours = {name for names in _GROUPS.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in ours)
        for heading, names in {**_GROUPS, _OTHERS: others}.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            rows = [(name, c.get_short_help_str(limit=400)) for name, c in commands.items() if c is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


app = typer.Typer(
    name="mie",
    cls=_Groups,
    help="Text-guided medical image editing: build the data, run editors, score them, see what happened.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        import mie

        typer.echo(f"mie {mie.__version__}")
        raise typer.Exit


@app.callback()
def _mie(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def _register() -> None:
    for name in COMMANDS.names():
        try:
            command = COMMANDS[name]
        except ConfigError as error:  # somebody else's package must not take the whole command down
            _complain(error)
            continue
        if isinstance(command, typer.Typer):
            for one in command.registered_commands:
                if one.callback is not None:
                    one.callback = on_storage(one.callback)
            app.add_typer(command, name=name)
        else:
            app.command(name, cls=getattr(command, "cls", None))(on_storage(command))


_register()


def main() -> None:
    """Run the command: 0 done, 1 failed, 2 wrong use, 3 finished but something was rejected or failed."""
    sys.stdout, sys.stderr = (cast(TextIO, PrintableStream(stream)) for stream in (sys.stdout, sys.stderr))
    try:
        app()
    except ConfigError as error:
        _complain(error)
        sys.exit(2)
    except MieError as error:
        _complain(error)
        sys.exit(1)
    except KeyboardInterrupt:
        resumes = not {" ".join(sys.argv[1:2]), " ".join(sys.argv[1:3])}.isdisjoint(_RESUMING)
        typer.echo("\ninterrupted" + ("; run the same command again to resume" if resumes else ""), err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if error.errno is None:
            raise
        where = error.filename or "a file without a name"
        fix = "check that the path is right and that you may use it"
        other = MieError(f"cannot read or write: {os.strerror(error.errno)}", where=where, fix=fix)
        _complain(disk_error(error, where) or other)
        sys.exit(1)


def _complain(error: MieError) -> None:
    typer.secho("mie: ", file=plain(sys.stderr), fg=typer.colors.RED, bold=True, nl=False)
    typer.echo(str(error), err=True)
