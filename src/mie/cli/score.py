"""`mie score`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

_SHOWN = 20


def score(
    run: Path = typer.Argument(..., help="A run's folder.", show_default=False),
    protocol: str = typer.Option("miedb", "--protocol", help="How to score."),
    variant: str = typer.Option(
        "paper", help="paper (as the text says) or as_released (as the script does)."
    ),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Score a run's outputs and write scores/ and summary/ into its folder.

    Interrupted at any point, the same command goes on and ends with the same numbers.

    Example: mie score out/run --protocol miedb
    """
    from mie.cli._show import print_json, progress_bar
    from mie.protocols import find_protocol

    score_run = find_protocol(protocol)
    with progress_bar("scoring") as bar:
        document = score_run(run, variant=variant, workers=workers, progress=bar)
    if json:
        print_json(document)
    else:
        _show(document)
    whole = document["groups"][0]["metrics"].values()
    if any(entry["unscored"] or entry.get("missing") for entry in whole):
        typer.echo(f"some samples have no score; {run / 'scores'} says which and why", err=True)
        raise typer.Exit(3)


def _show(document: dict[str, Any]) -> None:
    from mie.cli._show import table

    title = (
        f"{document['run']}: {document['protocol']}, {document['variant']}, {document['n_samples']} samples"
    )
    header = ("metric", "mean", "95% interval", "scored", "note")
    table(title, header, [_row(name, entry) for name, entry in document["groups"][0]["metrics"].items()])
    for key in ("perspective", "modality", "task", "target", "source"):
        groups = [item for item in document["groups"] if list(item["group"]) == [key]]
        names = [name for name in document["groups"][0]["metrics"] if name.endswith("@1")]
        if len(groups) > 1:
            shown = sorted(sorted(groups, key=_size, reverse=True)[:_SHOWN], key=groups.index)
            rows = [[g["group"][key], *(_cell(n, g["metrics"].get(n)) for n in names)] for g in shown]
            table(f"by {key}: mean (scored)", (key, *names), rows)
        if len(groups) > _SHOWN:
            typer.echo(f"the {_SHOWN} largest of {len(groups)}; --json lists all")
    for perspective, count in document["not_covered"].items():
        typer.echo(f"not covered: {count} {perspective} samples; their rubric needs a judge")
    drift = document["drift"]
    if drift["flagged"]:
        typer.echo(
            f"drift: {drift['flagged']} of {drift['measured']} outputs are shifted, zoomed or cropped "
            "against their input, which ruins every pixel metric"
        )


def _size(group: dict[str, Any]) -> int:
    return max((entry["n"] + entry["unscored"] for entry in group["metrics"].values()), default=0)


def _row(name: str, entry: dict[str, Any]) -> tuple[str, str, str, str, str]:
    low, high = (_number(name, bound) for bound in entry["ci95"])
    notes = {"capped": "exact matches, capped", "missing": "missing outputs, counted as 0"}
    note = "; ".join(f"{entry[key]} {text}" for key, text in notes.items() if entry.get(key))
    return name, _number(name, entry["mean"]), f"[{low}, {high}]", _coverage(entry), note


def _cell(name: str, entry: dict[str, Any] | None) -> str:
    return "" if entry is None else f"{_number(name, entry['mean'])} ({_coverage(entry)})"


def _coverage(entry: dict[str, Any]) -> str:
    return f"{entry['n']}/{entry['n'] + entry['unscored']}"


def _number(name: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return str(value)
    return f"{value:.2f}" if "psnr" in name else f"{value:.4f}"
