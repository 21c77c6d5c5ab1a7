"""`mie board`."""

from __future__ import annotations

from pathlib import Path

import typer


def board(
    runs: list[str] = typer.Argument(
        ..., metavar="RUN...", help="Scored run folders; NAME=FOLDER names a model.", show_default=False
    ),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="The folder of the board; none: the table is only printed."
    ),
    benchmark: str = typer.Option("miedb", "--benchmark", "--protocol", help="Whose table."),
    variant: str = typer.Option("paper", help="Which scores: paper or as_released."),
    review: list[str] = typer.Option(
        [],
        "--review",
        help="Rankings by people: the database of `mie review`, its exports, or any ratings; repeatable.",
    ),
    criterion: str | None = typer.Option(None, help="Which question, where people answered several."),
    success: list[str] = typer.Option(
        [],
        "--success",
        help="When an edit counts as done in the joint table: METRIC=LEAST, as rubric=75; repeatable.",
    ),
    published: bool = typer.Option(True, help="Show the papers' own rows beside ours."),
    force: bool = typer.Option(
        False, "--force", help="Show runs on different datasets, or by different judges, side by side."
    ),
    json: bool = typer.Option(False, "--json", help="Print the board as one JSON document."),
) -> None:
    """Put models on one board: a row for each, over all attempts, beside the published rows.

    Example: mie board out/run-a out/run-b -o out/board
    """
    from mie.cli._show import print_json, progress_bar, read_people, table
    from mie.report.board import terminal_rows, title_of, write_board
    from mie.scoring.board import document, read_board
    from mie.scoring.statistics.people import choose

    ratings = [rating for place in review for rating in read_people(place)]
    human = choose(ratings, criterion, where=", ".join(review)) if ratings else None
    found = read_board(
        runs, benchmark, variant=variant, human=human, success=_thresholds(success), force=force
    )
    page = None
    if output is not None:
        with progress_bar("pictures") as bar:
            page = write_board(found, output, published=published, progress=bar)
    if json:
        print_json(document(found))
        return
    for how in found.passes:
        table(f"{title_of(how)}, variant {variant}", *terminal_rows(found, how, published=published))
    for note in found.notices:
        typer.echo(note)
    if page is not None:
        typer.echo(f"board: {page}")


def _thresholds(texts: list[str]) -> dict[str, float]:
    from mie.errors import ConfigError

    found = {}
    for text in texts:
        name, _, least = text.partition("=")
        try:
            found[name.strip()] = float(least)
        except ValueError:
            raise ConfigError(
                "not a success", expected="METRIC=LEAST, such as rubric=75", found=text
            ) from None
    return found
