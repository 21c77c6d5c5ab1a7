"""`mie report`."""

from __future__ import annotations

from pathlib import Path

import typer


def report(
    runs: list[Path] = typer.Argument(..., help="Scored run folders.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="The folder of the report.", show_default=False),
    variant: str = typer.Option("paper", help="Which scores: paper or as_released."),
    review: list[str] = typer.Option(
        [],
        "--review",
        help="What people said: the database of `mie review`, its exports, or any ratings; repeatable.",
    ),
    force: bool = typer.Option(
        False, "--force", help="Show runs on different datasets, or by different judges, side by side."
    ),
) -> None:
    """Write a page with leaderboard, charts and galleries that opens from disk.

    Example: mie report out/run-a out/run-b -o out/report
    """
    from mie.cli._show import progress_bar, read_people
    from mie.report.page import write_report

    ratings = [rating for place in review for rating in read_people(place)]
    with progress_bar("pictures") as bar:
        page = write_report(runs, output, variant=variant, force=force, ratings=ratings, progress=bar)
    typer.echo(f"report: {page}")
