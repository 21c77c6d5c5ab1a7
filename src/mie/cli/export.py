"""`mie export`."""

from __future__ import annotations

from pathlib import Path

import typer


def export(
    dataset: Path = typer.Argument(..., help="A dataset folder.", show_default=False),
    format: str = typer.Option(..., "-f", "--format", help="miedb, omnigen2, webdataset or folder."),
    output: Path = typer.Option(..., "-o", "--output", help="The folder to write.", show_default=False),
    split: str | None = typer.Option(None, help="Only this split: train, val or test."),
) -> None:
    """Write a dataset in the layout another tool reads.

    Example: mie export out/quickstart -f miedb -o out/quickstart-miedb
    """
    from mie.cli._show import plural, progress_bar
    from mie.datasets.dataset import Dataset
    from mie.datasets.exports import export as run

    with progress_bar("exporting") as bar:
        count = run(Dataset(dataset), output, format, split=split, progress=bar)
    typer.echo(f"{output}: {plural(count, 'sample')} in the {format} layout")
