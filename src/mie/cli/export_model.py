"""`mie export-model`."""

from __future__ import annotations

from pathlib import Path

import typer


def export_model(
    editor: str = typer.Option(
        ..., "-e", "--editor", help="The editor: compact, or compact:PATH.", show_default=False
    ),
    output: Path = typer.Option(..., "-o", "--output", help="The ONNX file to write.", show_default=False),
    overwrite: bool = typer.Option(False, help="Replace the output if it exists."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Write the compact editor's network as ONNX, checked against torch.

    Example: mie export-model --editor compact -o compact.onnx
    """
    from mie.cli._show import print_json
    from mie.editors import open_editor
    from mie.editors.compact.editor import Compact
    from mie.errors import ConfigError

    if output.suffix.lower() != ".onnx":
        raise ConfigError("the model is written as ONNX", expected="a name that ends in .onnx", found=output)
    if output.exists() and not overwrite:
        raise ConfigError("the output exists already", where=output, fix="give --overwrite to replace it")
    if not output.parent.is_dir():
        raise ConfigError("no such folder", where=output.parent)
    with open_editor(editor) as opened:
        if not isinstance(opened, Compact):
            raise ConfigError("only the compact editor can be exported", found=editor)
        from mie.editors.compact.onnx import export_onnx

        differences = export_onnx(opened.weights, output)
    size = output.stat().st_size
    if json:
        print_json({"output": str(output), "bytes": size, "differences": differences})
    else:
        typer.echo(f"{output}: {size / 1e6:.1f} MB, at most {max(differences.values()):.1g} from torch")
