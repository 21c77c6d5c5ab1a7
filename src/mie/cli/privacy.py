"""`mie privacy`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

_SHOWN = 50


def privacy(
    place: Path = typer.Argument(
        ..., help="A dataset, a run, a folder or an image file.", show_default=False
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Show what could identify a patient before anything leaves this machine.

    Looks for text burned into images, identifying DICOM attributes, and names in paths. Faces are not looked
    for. Nothing is changed or sent. The exit code is 3 if something was found.

    Example: mie privacy examples
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.editors.released import scan_dataset, scan_run
    from mie.errors import MieError
    from mie.privacy.gate import Gate, Policy
    from mie.privacy.scan import scan_files

    if not place.exists():
        raise MieError("no such file or folder", where=place, fix="check the path")
    gate = Gate(Policy(), "nowhere: this only looks")
    with progress_bar("looking") as bar:
        if (place / "dataset.json").is_file():
            images, findings = scan_dataset(place, gate, bar)
        elif (place / "run.json").is_file():
            images, findings = scan_run(place, gate, bar)
        else:
            images, findings = scan_files(place, gate, bar)
    if json:
        print_json({"images": images, "findings": [asdict(finding) for finding in findings]})
    elif findings:
        rows = [
            (f.where, f.kind, "" if f.box is None else "{},{} to {},{}".format(*f.box), f.reason)
            for f in findings[:_SHOWN]
        ]
        table(f"{len(findings)} findings in {images} images", ("where", "kind", "place", "reason"), rows)
        if len(findings) > _SHOWN:
            typer.echo(f"... and {len(findings) - _SHOWN} more; --json lists all of them")
    else:
        typer.echo(f"{place}: nothing found in {plural(images, 'image')}; look yourself for faces")
    if findings:
        raise typer.Exit(3)
