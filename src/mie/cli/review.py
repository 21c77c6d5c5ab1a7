"""`mie review`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from mie.errors import ConfigError


def review(
    places: list[Path] = typer.Argument(..., help="A dataset, runs on it, or both.", show_default=False),
    kind: list[str] = typer.Option(
        [], "--kind", help="inspect, mask, rank or questions; may be given again. Default: inspect, and rank."
    ),
    port: int = typer.Option(8000, min=0, max=65535, help="Where to listen; 0 for any free port."),
    host: str = typer.Option("127.0.0.1", help="Any address but this machine's own needs accounts."),
    url: str | None = typer.Option(None, help="What people type, when they do not use this machine."),
    db: str | None = typer.Option(
        None, help="A SQLite file or a postgresql:// URL. Default: DATASET-review/review.sqlite."
    ),
    raters: int | None = typer.Option(None, min=1, help="People per item. Default: 1."),
    overlap: float | None = typer.Option(
        None, min=0, max=1, help="Share of the items that all of them see. Default: 1."
    ),
    sample: int | None = typer.Option(None, min=1, help="Review only so many samples, drawn by --seed."),
    stratify: str | None = typer.Option(None, help="Draw in proportion: modality,task"),
    seed: int | None = typer.Option(None, help="Of the draw and of the order. Default: 0."),
    proposals: Path | None = typer.Option(
        None, help="Of masks: the folder that `mie propose` wrote; its regions are what people choose from."
    ),
    open_: bool = typer.Option(True, "--open/--no-open", help="Open the page in a browser."),
    invite: str | None = typer.Option(None, help="Print a one-time link for this person and end."),
    role: str = typer.Option("rater", help="Of the invited person: rater, adjudicator or admin."),
    export: Path | None = typer.Option(
        None, help="Write one --kind to a .csv or .jsonl file, or masks to a folder, and end."
    ),
) -> None:
    """Let people accept, reject, choose masks and rank, in a browser.

    Interrupted or killed, the same command goes on; no answer that was confirmed is lost.

    Example: mie review out/quickstart out/run-a out/run-b
    """
    try:
        from mie.review.serve import export_file, invite_link, open_desk, serve
    except ModuleNotFoundError as error:
        raise ConfigError(f"the review needs {error.name}", fix="pip install 'mie[review]'") from None

    given: dict[str, Any] = {
        "raters": raters,
        "overlap": overlap,
        "sample": sample,
        "stratify": None if stratify is None else tuple(name.strip() for name in stratify.split(",")),
        "seed": seed,
    }
    typer.echo("listing the samples", err=True)
    settings = {k: v for k, v in given.items() if v is not None}
    desk = open_desk(places, kinds=kind, db=db, proposals=proposals, **settings)
    if export is not None:
        typer.echo(f"{export}: {export_file(desk, export)} {'opinions' if export.suffix else 'masks'}")
        return
    if invite is not None:
        typer.echo(invite_link(desk, invite, role, url or f"http://127.0.0.1:{port}"))
        return
    for name, task in desk.tasks.items():
        typer.echo(f"{name}: {task.items} items", err=True)

    def ready(link: str) -> None:
        typer.echo(f"open {link}")
        typer.echo("Ctrl-C ends the server; answers are kept.", err=True)
        if open_:
            import webbrowser

            webbrowser.open(link)

    serve(desk, host=host, port=port, url=url, ready=ready)
