"""`mie review`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from mie.core.environment import install_hint
from mie.errors import ConfigError


def review(
    folders: list[Path] = typer.Argument(..., help="A dataset, runs on it, or both.", show_default=False),
    kind: list[str] = typer.Option(
        [],
        "--kind",
        help="inspect, mask, rank, questions or grade; repeatable. Default: inspect, and rank for two runs.",
    ),
    port: int | None = typer.Option(
        None, min=0, max=65535, help="The port to listen on; 0 for any free port. Default: 8000."
    ),
    host: str = typer.Option(
        "127.0.0.1", help="The address to listen on. Any other than this machine's own needs accounts."
    ),
    url: str | None = typer.Option(None, help="The address that people on other machines type."),
    db: str | None = typer.Option(
        None, help="A SQLite file or a postgresql:// URL. Default: DATASET-review/review.sqlite."
    ),
    raters: int | None = typer.Option(None, min=1, help="People per item. Default: 1; for grade 2."),
    overlap: float | None = typer.Option(
        None, min=0, max=1, help="Share of the items that all of them see. Default: 1; for grade 0.5."
    ),
    sample: int | None = typer.Option(None, min=1, help="Review only this many samples, drawn by --seed."),
    stratify: str | None = typer.Option(None, help="Draw in proportion by these fields: modality,task"),
    seed: int | None = typer.Option(None, help="Seed of the draw and of the order. Default: 0."),
    proposals: Path | None = typer.Option(
        None, help="For masks: a folder that `mie propose` wrote; people choose among its regions."
    ),
    open_: bool = typer.Option(True, "--open/--no-open", help="Open the page in a browser."),
    invite: str | None = typer.Option(None, help="Print a one-time link for this person and exit."),
    role: str = typer.Option("rater", help="Role of the invited person: rater, adjudicator or admin."),
    export: Path | None = typer.Option(
        None, help="Write one --kind to a .csv or .jsonl file, or masks to a folder, and exit."
    ),
) -> None:
    """Let people accept, reject, choose masks and rank, in a browser.

    If it is interrupted or killed, the same command resumes; no confirmed answer is lost.

    Example: mie review out/quickstart out/run-a out/run-b
    """
    try:
        from mie.review.export import export_file
        from mie.review.server import DEFAULT_PORT, invite_link, serve
        from mie.review.service import open_review
    except ModuleNotFoundError as error:
        raise ConfigError(f"the review needs {error.name}", fix=install_hint("review")) from None

    options: dict[str, Any] = {
        "raters": raters,
        "overlap": overlap,
        "sample": sample,
        "stratify": None if stratify is None else tuple(name.strip() for name in stratify.split(",")),
        "seed": seed,
    }
    typer.echo("listing the samples", err=True)
    settings = {name: value for name, value in options.items() if value is not None}
    service = open_review(folders, kinds=kind, db=db, proposals=proposals, **settings)
    if export is not None:
        n = export_file(service, export)
        what = "opinion" if export.suffix else "mask"
        typer.echo(f"{export}: {n} {what if n == 1 else what + 's'}")
        return
    if invite is not None:
        typer.echo(invite_link(service, invite, role, url=url, port=port))
        return
    for name, task in service.tasks.items():
        typer.echo(f"{name}: {task.items} item{'' if task.items == 1 else 's'}", err=True)

    def ready(link: str) -> None:
        typer.echo(f"open {link}")
        typer.echo("Ctrl-C stops the server; all answers are saved.", err=True)
        if open_:
            import webbrowser

            webbrowser.open(link)

    def warn(text: str) -> None:
        typer.echo(f"warning: {text}", err=True)

    port = DEFAULT_PORT if port is None else port
    serve(service, host=host, port=port, url=url, ready=ready, warn=warn)
