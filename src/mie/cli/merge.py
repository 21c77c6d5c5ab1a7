"""`mie merge`."""

from __future__ import annotations

from pathlib import Path

import typer


def merge(
    datasets: list[Path] = typer.Argument(..., help="Two datasets or more.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="The merged dataset.", show_default=False),
    name: str | None = typer.Option(None, help="Of the merged dataset; by default the names joined."),
    first: bool = typer.Option(
        False, "--first", help="Where two samples have one id, keep that of the dataset named first."
    ),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    overwrite: bool = typer.Option(False, help="Replace the dataset that is in the folder."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Merge built datasets into one, with one digest and one leak check across all of them.

    Equal samples are kept once; a patient on both sides of a split is taken from training, never from test.
    Interrupted at any point, the same command resumes.

    Example: mie merge out/quickstart out/several -o out/merged
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.datasets.merge import merge_datasets

    with progress_bar("merging") as bar:
        merged = merge_datasets(
            datasets, output, name=name, first=first, workers=workers, overwrite=overwrite, progress=bar
        )
    info = merged.info
    for note in merged.notes:
        typer.echo(f"note: {note}", err=True)
    if json:
        keys = ("name", "digest", "counts", "rejected")
        print_json({"folder": str(output), **{key: info[key] for key in keys}, "notes": list(merged.notes)})  # type: ignore[literal-required]
        return
    done = "was already complete" if merged.already_there else "is ready"
    typer.echo(
        f"{output} {done}: {plural(info['counts']['samples'], 'sample')}, digest {info['digest'][:16]}"
    )
    table("samples", ("perspective", "n"), list(info["counts"]["by_perspective"].items()))
    table("samples", ("split", "n"), list(info["counts"]["by_split"].items()))
    if info["rejected"]:
        table("rejected", ("gate", "n"), list(info["rejected"].items()))
