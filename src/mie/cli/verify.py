"""`mie verify`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

_SHOWN = 20


def verify(
    dataset: Path = typer.Argument(..., help="A dataset folder.", show_default=False),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Prove a dataset: every image decodes, every mask can be read back, no patient is on both sides.

    Example: mie verify out/quickstart
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.datasets.verify import verify as run

    with progress_bar("verifying") as bar:
        result = run(dataset, workers=workers, progress=bar)
    if json:
        print_json(
            {"ok": result.ok, "samples": result.samples, "problems": [asdict(p) for p in result.problems]}
        )
    elif result.ok:
        typer.echo(
            f"{dataset}: {plural(result.samples, 'sample')}, all sound; splits share no patient and no image"
        )
    else:
        shown = [(p.check, p.where, p.reason) for p in result.problems[:_SHOWN]]
        table(plural(len(result.problems), "problem"), ("check", "where", "reason"), shown)
        if len(result.problems) > _SHOWN:
            typer.echo(f"... and {len(result.problems) - _SHOWN} more; --json lists all of them")
    if not result.ok:
        raise typer.Exit(1)
