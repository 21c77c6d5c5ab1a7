"""`mie stats`."""

from __future__ import annotations

from pathlib import Path

import typer


def stats(
    dataset: Path = typer.Argument(..., help="A dataset folder.", show_default=False),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="Where the plots go; DATASET/stats by default."
    ),
    json: bool = typer.Option(False, "--json", help="Print the numbers as one JSON document."),
) -> None:
    """Count what is in a dataset, in tables and PNG plots.

    Example: mie stats out/quickstart
    """
    from mie.cli._show import print_json, progress_bar, table
    from mie.core.files import make_folder
    from mie.datasets.dataset import Dataset
    from mie.datasets.stats import dataset_stats, rows_for
    from mie.report.stats_plots import write_plots

    opened = Dataset(dataset)
    folder = make_folder(output or dataset / "stats")  # fails now rather than after counting
    with progress_bar("counting") as bar:
        numbers = dataset_stats(opened, bar)
    plots = write_plots(numbers, folder)
    if json:
        print_json({**numbers.as_dict(), "plots": [str(p) for p in plots]})
        return
    for title, header, rows in rows_for(numbers):
        table(title, header, rows)
    typer.echo(f"plots: {folder if plots else 'none'}")
