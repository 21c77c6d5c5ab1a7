"""The command. One small file per verb; heavy imports happen inside the verbs, so `mie --help` is quick."""

from __future__ import annotations

import sys

import typer

from mie.errors import ConfigError, MieError

app = typer.Typer(
    name="mie",
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
    from mie.cli import (
        agree,
        build,
        demo,
        doctor,
        edit,
        export,
        export_model,
        pack,
        propose,
        report,
        review,
        run,
        sample,
        score,
        sources,
        stats,
        train,
        verify,
        weights,
    )
    from mie.cli import import_ as importing

    app.command("demo")(demo.demo)
    app.command("build")(build.build)
    app.command("verify")(verify.verify)
    app.command("stats")(stats.stats)
    app.command("export")(export.export)
    app.command("import")(importing.import_)
    app.command("pack")(pack.pack)
    app.command("edit")(edit.edit)
    app.command("train")(train.train)
    app.command("run")(run.run)
    app.command("score")(score.score)
    app.command("report")(report.report)
    app.command("export-model")(export_model.export_model)
    app.command("agree")(agree.agree)
    app.command("sample")(sample.sample)
    app.command("propose")(propose.propose)
    app.command("review")(review.review)
    app.add_typer(sources.app, name="sources")
    app.add_typer(weights.app, name="weights")
    app.command("doctor")(doctor.doctor)


_register()


def main() -> None:
    """Run the command: 0 done, 1 failed, 2 wrong use, 3 finished but something was refused or failed."""
    try:
        app()
    except ConfigError as error:
        sys.exit(_complain(error, 2))
    except MieError as error:
        sys.exit(_complain(error, 1))
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; the same command goes on where it stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)


def _complain(error: MieError, code: int) -> int:
    typer.secho("mie: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    typer.echo(str(error), err=True)
    return code
