"""`mie privacy`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mie.privacy.gate import Finding, Gate

_SHOWN = 50


def privacy(
    place: Path = typer.Argument(
        ..., help="A dataset, a run, a folder or an image file.", show_default=False
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Show what could identify a patient before anything leaves this machine.

    Looks for text burned into images, faces in photographs and head volumes, identifying attributes in the
    headers of DICOM files and volumes, and names in paths. Nothing is changed or sent. The exit code is 3 if
    something was found.

    Example: mie privacy scan.png
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.errors import MieError
    from mie.privacy.gate import Gate, Policy
    from mie.privacy.scan import Scan, scan_files

    if not place.exists():
        raise MieError("no such file or folder", where=place, fix="check the path")
    gate = Gate(Policy(), "nowhere: this only looks")
    with progress_bar("looking") as bar:
        if (place / "dataset.json").is_file():
            scan = Scan(*_scan_dataset(place, gate, bar))
        elif (place / "run.json").is_file():
            scan = Scan(*_scan_run(place, gate, bar))
        else:
            scan = scan_files(place, gate, bar)
    findings = scan.findings
    skipped = ", ".join(f"{count} {suffix}" for suffix, count in scan.skipped.most_common())
    if not scan.images and not scan.volumes:
        raise MieError(
            "there is nothing to look at",
            where=place,
            expected="a picture, a DICOM file or a volume",
            found=f"files that are none: {skipped}" if skipped else "no file",
            fix="give the folder that holds the images",
        )
    if json:
        document = {
            "images": scan.images,
            "volumes": scan.volumes,
            "not_looked_at": dict(scan.skipped),
            "findings": [asdict(finding) for finding in findings],
        }
        print_json(document)
        raise typer.Exit(3 if findings else 0)
    looked = plural(scan.images, "image") + (f" and {plural(scan.volumes, 'volume')}" if scan.volumes else "")
    if findings:
        rows = [
            (f.where, f.kind, "" if f.box is None else "{},{} to {},{}".format(*f.box), f.reason)
            for f in findings[:_SHOWN]
        ]
        table(f"{plural(len(findings), 'finding')} in {looked}", ("where", "kind", "place", "reason"), rows)
        if len(findings) > _SHOWN:
            typer.echo(f"... and {len(findings) - _SHOWN} more; --json lists all of them")
    else:
        typer.echo(f"{place}: nothing found in {looked}; look yourself for faces, which are often missed")
    if skipped:
        typer.echo(f"not looked at: {skipped}")
    if findings:
        raise typer.Exit(3)


def _scan_dataset(
    folder: Path, gate: Gate, progress: Callable[[int, int], None]
) -> tuple[int, int, list[Finding]]:
    """How many images and volumes were looked at, and what was found in them and in the columns."""
    from mie.datasets.dataset import Dataset
    from mie.datasets.exports import row_findings

    dataset = Dataset(folder)
    findings: list[Finding] = []
    images = 0
    for done, row in enumerate(dataset.rows(), start=1):
        findings += row_findings(row, gate)
        images += 1 + (row["target_image"] is not None)
        progress(done, len(dataset))
    return images, 0, findings


def _scan_run(
    folder: Path, gate: Gate, progress: Callable[[int, int], None]
) -> tuple[int, int, list[Finding]]:
    """The outputs of a run, which a judge would be shown beside the dataset's images."""
    from mie.editors.runs import Run
    from mie.images.png import decode_png

    run = Run.open(folder)
    outputs = sorted((run.folder / "outputs").glob("*.png"))
    findings: list[Finding] = []
    for done, path in enumerate(outputs, start=1):
        findings += gate.look(decode_png(path.read_bytes()), f"outputs/{path.name}")
        progress(done, len(outputs))
    return len(outputs), 0, findings
