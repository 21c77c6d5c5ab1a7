"""`mie filter`."""

from __future__ import annotations

from pathlib import Path

import typer

from mie.scoring.benchmarks import VARIANTS


def filter_(
    run: Path = typer.Argument(..., help="A scored run of the editor `oracle`.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="The new dataset's folder.", show_default=False),
    threshold: float = typer.Option(
        ..., help="The least score that is kept; the highest one where lower is better.", show_default=False
    ),
    benchmark: str = typer.Option("imgedit", help="Whose scores."),
    metric: str | None = typer.Option(None, help="Which of them; the benchmark's main one by default."),
    variant: str = typer.Option(VARIANTS[0], help="paper or as_released."),
    keep_unscored: bool = typer.Option(
        False, "--keep-unscored", help="Keep samples that have no number; by default they are rejected."
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Write a dataset without the samples whose own target images score badly, by any benchmark or judge.

    Score the dataset's target images first: run the editor `oracle`, then `mie score`.

    Example: mie filter out/oracle --benchmark miedb --metric dice --threshold 0.95 -o out/filtered
    """
    from mie.cli._show import plural, print_json, table
    from mie.scoring.filter import filter_dataset

    result = filter_dataset(
        run,
        output,
        threshold=threshold,
        benchmark=benchmark,
        variant=variant,
        metric=metric,
        keep_unscored=keep_unscored,
    )
    info = result.info
    if json:
        body = {"name": info["name"], "digest": info["digest"], "counts": info["counts"]}
        print_json({"folder": str(output), **body, "outcomes": result.counts})
        return
    samples = plural(info["counts"]["samples"], "sample")
    typer.echo(f"{output} is ready: {samples}, digest {info['digest'][:16]}")
    table("samples", ("outcome", "n"), list(result.counts.items()))
