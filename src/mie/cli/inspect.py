"""`mie inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def inspect(
    image: Path = typer.Argument(..., help="A PNG, WebP or DICOM file.", show_default=False),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Say whether an image is marked as synthetic, and what made it.

    Reads the mark in the file, Content Credentials (with the extra `marks`) and the invisible watermark. An
    image without a mark may still be synthetic: marks are lost when a file is saved by another program.

    Example: mie inspect edited.png
    """
    from mie.cli._show import print_json
    from mie.images.inspection import inspect_image

    found = inspect_image(image)
    if json:
        print_json(found)
        return
    typer.echo(f"{image}: {'synthetic' if found['synthetic'] else 'no mark of a synthetic image'}")
    for name, value in found["mark"].items():
        typer.echo(f"  {name.replace('_', ' ')}: {_words(value)}")
    if found["watermark"]["score"] is not None:
        typer.echo(f"  watermark: {'found' if found['watermark']['found'] else 'not found'}")
    credentials = found["credentials"]
    if credentials is None:
        typer.echo(f"  Content Credentials: {found['credentials_note']}")
    else:
        problems = ", ".join(credentials.get("problems") or []) or "none"
        signer = credentials.get("signer") or "unknown"
        typer.echo(f"  Content Credentials: {credentials['state']}, signed by {signer}; problems: {problems}")


def _words(value: Any) -> str:
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)
