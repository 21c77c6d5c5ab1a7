"""`mie build`."""

from __future__ import annotations

from pathlib import Path

import typer


def build(
    recipe: Path = typer.Argument(..., help="The recipe, a YAML file.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="The dataset's folder.", show_default=False),
    engine: str = typer.Option("local", help="Where the work runs: local or ray."),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    limit: int | None = typer.Option(None, min=1, help="At most this many images or volumes per data set."),
    overwrite: bool = typer.Option(False, help="Replace the dataset that is in the folder."),
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
    from mie.cli._show import print_json, progress_bar, table
    from mie.report.stats_plots import write_plots
    from mie.store.dataset import Dataset
    from mie.store.stats import dataset_stats

    config = read_recipe(recipe)
    with progress_bar("building") as bar:

        def show(at: Progress) -> None:
            notes = {"scan": f"listing {at.note}", "finish": "comparing samples, naming shards"}
            bar(at.done, at.total, notes.get(at.stage, f"{at.kept} kept, {at.refused} refused"))

        result = run(
            config, output, engine=engine, workers=workers, limit=limit, overwrite=overwrite, progress=show
        )
    if stats and not (output / "stats").exists():
        with progress_bar("counting") as bar:
            write_plots(dataset_stats(Dataset(output), bar), output / "stats")
    info = result.info
    if json:
        keys = ("name", "digest", "counts", "rejected")
        print_json({"folder": str(output), **{key: info[key] for key in keys}})
    else:
        done = "was already complete" if result.already_there else "is ready"
        typer.echo(f"{output} {done}: {info['counts']['samples']} samples, digest {info['digest'][:16]}")
        table("samples", ("split", "n"), list(info["counts"]["by_split"].items()))
        if info["rejected"]:
            table("refused (see rejected.parquet)", ("gate", "n"), list(info["rejected"].items()))
    if result.bad_files:
        typer.echo(
            f"{result.bad_files} files could not be used; rejected.parquet says which and why", err=True
        )
    if not info["counts"]["samples"]:
        typer.echo("no sample was kept; rejected.parquet says why", err=True)
    if result.bad_files or not info["counts"]["samples"]:
        raise typer.Exit(3)
