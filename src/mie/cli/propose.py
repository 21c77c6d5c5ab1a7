"""`mie propose`."""

from __future__ import annotations

import json as jsons
from pathlib import Path

import typer


def propose(
    dataset: Path = typer.Argument(..., help="The dataset.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="The folder of the regions.", show_default=False),
    detector: Path = typer.Option(
        ..., help="A folder with an open-vocabulary detector: Grounding DINO, OWL-ViT.", show_default=False
    ),
    segmenter: Path = typer.Option(..., help="A folder with a SAM model.", show_default=False),
    device: str | None = typer.Option(None, help="cpu or cuda; what is there by default."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Propose up to three regions for each sample's target, for people to choose from.

    Interrupted or killed, the same command resumes. Nothing is downloaded.

    Example: mie propose out/quickstart --detector models/grounding-dino --segmenter models/sam -o out/regions
    """
    from mie.cli._show import plural, print_json, progress_bar
    from mie.scoring.benchmarks.medebench.regions import Proposer, write_proposals

    proposer = Proposer(detector, segmenter, device=device)
    with progress_bar("proposing") as bar:
        path = write_proposals(dataset, output, proposer, bar)
    lines = [jsons.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [len(line["proposals"]) for line in lines]
    none = found.count(0)
    if json:
        print_json({"folder": str(output), "samples": len(found), "regions": sum(found), "without": none})
    else:
        counts = f"{plural(sum(found), 'region')} of {plural(len(found), 'sample')}"
        typer.echo(f"{output}: {counts}, {none} without any")
    if none:
        raise typer.Exit(3)
