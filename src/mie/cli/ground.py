"""`mie ground`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from mie.cli._signals import end_in_order
from mie.scoring.benchmarks import VARIANTS

_SHOWN = 20  # rows in a table


def ground(
    place: Path = typer.Argument(..., metavar="RUN|DATASET", help="A run's folder, or a dataset's."),
    output: Path = typer.Option(..., "-o", "--output", help="The folder to write to.", show_default=False),
    editor: str | None = typer.Option(
        None, "-e", "--editor", help="diffusers:FOLDER or omnigen2:FOLDER; by default the run's own."
    ),
    variant: str = typer.Option(
        VARIANTS[0], help="paper (the run's own edits) or as_released (the task is the instruction, seed 0)."
    ),
    split: str | None = typer.Option(None, help="Of a dataset: train, val or test; all by default."),
    limit: int | None = typer.Option(None, min=1, help="Of a dataset: at most this many samples."),
    concepts: Path | None = typer.Option(
        None, help="A YAML file that gives tasks their concepts, `task: word`; otherwise the target is taken."
    ),
    gallery: int = typer.Option(60, min=0, help="Pictures on the page."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Measure whether an editor looks where it is to edit, from its attention to the instruction's words.

    Every edit is made again while its attention is summed; the outputs are the same as without. Interrupted
    at any point, the same command resumes.

    Example: mie ground out/quickstart --editor omnigen2:models/omnigen2 -o out/attention
    """
    from mie.cli._show import print_json, progress_bar
    from mie.core.yaml_files import read_mapping
    from mie.report.grounding import write_page
    from mie.scoring.benchmarks.medebench.grounding import ground as measure

    end_in_order()
    table = {}
    if concepts is not None:
        body = read_mapping(concepts, "table of concepts", expected="task: word")
        table = {str(task): str(word) for task, word in body.items()}
    with progress_bar("grounding") as bar:
        document = measure(
            place,
            output,
            editor=editor,
            variant=variant,
            split=split,
            limit=limit,
            concepts=table,
            progress=bar,
        )
    page = write_page(place, output, document, most=gallery)
    if json:
        print_json(document)
    else:
        _show(document)
        typer.echo(f"page: {page}")
    if document["scored"] < document["samples"]:
        raise typer.Exit(3)


def _show(document: dict[str, Any]) -> None:
    from mie.cli._show import plural, table

    header = ("", "IoU", "its 95% interval", "pointing", "AUC", "samples", "patients")
    rows = [
        _row(label, document[key])
        for label, key in (
            ("the concept", "means"),
            ("another word", "control"),
            ("difference", "over_control"),
            ("from the word to the image", "from_word"),
        )
        if document[key] is not None
    ]
    table(f"attention: {plural(document['scored'], 'sample')} of {document['samples']}", header, rows)
    for key in ("by_organ", "by_task"):
        groups = list(document[key].items())
        table(key.replace("_", " "), header, [_row(name, means) for name, means in groups[:_SHOWN]])
        if len(groups) > _SHOWN:
            typer.echo(f"and {len(groups) - _SHOWN} more: --json shows all")
    found = document["failures"]
    if "reason" in found:
        typer.echo(f"no table of failures: {found['reason']}")
    else:
        cells = [(name, cell) for name, cell in found.items() if isinstance(cell, dict) and "n" in cell]
        lines = [
            (name.replace("_", " "), str(cell["n"]), *(_number(cell[key]) for key in ("iou", "ea", "cp")))
            for name, cell in cells
        ]
        table("located and executed", ("", "samples", "IoU", "EA", "CP"), lines)
    for reason, count in document["unscored"].items():
        typer.echo(f"{plural(count, 'sample')} unscored: {reason}", err=True)


def _row(label: str, means: dict[str, Any]) -> tuple[str, ...]:
    iou, (low, high) = means["iou"], means["iou"]["ci95"]
    interval = "–" if low is None else f"{low:.3f} to {high:.3f}"
    others = (_number(means[name]["mean"]) for name in ("pointing", "auc"))
    return label, _number(iou["mean"]), interval, *others, str(means["n"]), str(iou["patients"])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
