"""`mie edit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer


def edit(
    image: Path = typer.Argument(..., help="A picture or DICOM file.", show_default=False),
    instruction: str = typer.Argument(..., help="What to change.", show_default=False),
    editor: str = typer.Option(
        ..., "-e", "--editor", help="An editor, as for `mie run`.", show_default=False
    ),
    output: Path = typer.Option(..., "-o", "--output", help="The PNG file to write.", show_default=False),
    seed: int = typer.Option(0, min=0, max=2**31 - 1, help="The editor's seed."),
    overwrite: bool = typer.Option(False, help="Replace the output if it is there."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Edit one image.

    Example: mie edit scan.png "Mark the optic disc in red." -e http:http://127.0.0.1:8000/edit -o out.png
    """
    import time

    from mie.cli._show import print_json
    from mie.core.files import atomic_write
    from mie.editors import EditError, Request, open_editor, parse_spec
    from mie.editors.drive import edit_all
    from mie.editors.outputs import checked
    from mie.editors.runs import plain
    from mie.errors import ConfigError
    from mie.images.png import encode_png
    from mie.images.read import read_picture

    if output.suffix.lower() != ".png":
        raise ConfigError("the output is written as PNG", expected="a name that ends in .png", found=output)
    if output.exists() and not overwrite:
        raise ConfigError("the output is there already", where=output, fix="give --overwrite to replace it")
    if not output.parent.is_dir():
        raise ConfigError("no such folder", where=output.parent)
    spec = parse_spec(editor)
    with open_editor(spec) as opened:
        picture = read_picture(image)
        height, width = picture.pixels.shape[:2]
        started = time.perf_counter()
        (outcome,) = edit_all(opened, [Request(picture.pixels, instruction, seed)])
        seconds = round(time.perf_counter() - started, 4)
    if isinstance(outcome, EditError):
        raise outcome
    edited = checked(outcome, (height, width))
    atomic_write(output, encode_png(edited.image))
    size = list(edited.image.shape[:2])
    if json:
        document = {
            "output": str(output),
            "editor": str(spec.masked()),
            "seed": seed,
            "size": size,
            "seconds": seconds,
            "steps": list(picture.steps),
            "meta": edited.meta,
        }
        print_json(plain(document))
    else:
        typer.echo(f"{output}: {size[1]}x{size[0]}, {seconds:.2f} s{_said(edited.meta)}")


def _said(meta: Mapping[str, Any]) -> str:
    """What people should know of an edit before they use it, where its editor says it."""
    sure, taken, note = (meta.get(key) for key in ("confidence", "taken_for", "note"))
    lines = f", confidence {sure:.2f}" if isinstance(sure, int | float) else ""
    lines += f"\n  taken for: {taken}" if isinstance(taken, str) else ""
    lines += f"\n  note: {note}" if isinstance(note, str) else ""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in lines)
