"""`mie build`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer


def build(
    recipe: Path = typer.Argument(
        ..., help="The recipe, a YAML file; with --apply-reviews a dataset.", show_default=False
    ),
    output: Path = typer.Option(..., "-o", "--output", help="The dataset's folder.", show_default=False),
    engine: str = typer.Option("local", help="Where the work runs: local or ray."),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    limit: int | None = typer.Option(None, min=1, help="At most this many images or volumes per data set."),
    overwrite: bool = typer.Option(False, help="Replace the dataset that is in the folder."),
    apply_reviews: str | None = typer.Option(
        None, help="Make the reviewed version of a dataset: the database that `mie review` keeps."
    ),
    stats: bool = typer.Option(True, help="Draw the plots of `mie stats` into DATASET/stats."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Build a dataset from data sets on disk.

    Interrupted at any point, even by kill -9, the same command goes on and ends with the same bytes.

    Example: mie build examples/quickstart.yaml -o out/quickstart
    """
    from mie.building.build import Progress
    from mie.building.build import build as run
    from mie.building.config import read_recipe
    from mie.cli._show import progress_bar

    if apply_reviews is not None:
        from mie.review.apply import apply_reviews as apply

        info = apply(apply_reviews, recipe, output).info
        if stats:
            _draw(output)
        _tell(info, output, "is ready", json=json)
        return
    config = read_recipe(recipe)
    with progress_bar("building") as bar:

        def show(at: Progress) -> None:
            notes = {"scan": f"listing {at.note}", "finish": "comparing samples, naming shards"}
            bar(at.done, at.total, notes.get(at.stage, f"{at.kept} kept, {at.refused} refused"))

        result = run(
            config, output, engine=engine, workers=workers, limit=limit, overwrite=overwrite, progress=show
        )
    if stats and not (output / "stats").exists():
        _draw(output)
    info = result.info
    _tell(info, output, "was already complete" if result.already_there else "is ready", json=json)
    if result.bad_files:
        typer.echo(
            f"{result.bad_files} files could not be used; rejected.parquet says which and why", err=True
        )
    if not info["counts"]["samples"]:
        typer.echo("no sample was kept; rejected.parquet says why", err=True)
    if result.bad_files or not info["counts"]["samples"]:
        raise typer.Exit(3)


def _draw(output: Path) -> None:
    from mie.cli._show import progress_bar
    from mie.report.stats_plots import write_plots
    from mie.store.dataset import Dataset
    from mie.store.stats import dataset_stats

    with progress_bar("counting") as bar:
        write_plots(dataset_stats(Dataset(output), bar), output / "stats")


def _tell(info: Mapping[str, Any], output: Path, done: str, *, json: bool) -> None:
    from mie.cli._show import print_json, table

    if json:
        keys = ("name", "digest", "counts", "rejected")
        reviews = {k: info["recipe"]["reviews"] for k in ("reviews",) if "reviews" in info["recipe"]}
        print_json({"folder": str(output), **{key: info[key] for key in keys}, **reviews})
        return
    typer.echo(f"{output} {done}: {info['counts']['samples']} samples, digest {info['digest'][:16]}")
    table("samples", ("split", "n"), list(info["counts"]["by_split"].items()))
    if info["rejected"]:
        table("refused (see rejected.parquet)", ("gate", "n"), list(info["rejected"].items()))
