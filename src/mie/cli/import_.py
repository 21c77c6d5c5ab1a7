"""`mie import`."""

from __future__ import annotations

from pathlib import Path

import typer


def import_(
    folder: Path = typer.Argument(..., help="The folder to read.", show_default=False),
    format: str = typer.Option(..., "-f", "--format", help="miedb, medebench, imgedit, omni-iie or folder."),
    output: Path = typer.Option(..., "-o", "--output", help="The dataset's folder.", show_default=False),
    deidentified: bool = typer.Option(
        False,
        "--deidentified",
        help="You vouch that no patient can be identified. What the folder says of itself does not count.",
    ),
    name: str | None = typer.Option(None, help="The dataset's name; the folder's name by default."),
) -> None:
    """Read triplets that another tool wrote into a dataset.

    Example: mie import MieDB-100k/benchmark -f miedb -o out/miedb
    """
    from mie.cli._show import plural, progress_bar
    from mie.datasets.imports import import_dataset
    from mie.datasets.rejected import frequent_reasons

    with progress_bar("importing") as bar:
        result = import_dataset(folder, output, format, name=name, deidentified=deidentified, progress=bar)
    samples = plural(result.info["counts"]["samples"], "sample")
    typer.echo(f"{output}: {samples}, digest {result.info['digest'][:16]}")
    if result.rejections:
        records = "1 record" if len(result.rejections) == 1 else f"{len(result.rejections)} records"
        typer.echo(f"{records} could not be used; rejected.parquet lists all:", err=True)
        for reason in frequent_reasons(result.rejections):
            typer.echo(f"  {reason}", err=True)
        raise typer.Exit(3)
