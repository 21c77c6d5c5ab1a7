"""`mie edit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from mie.cli._show import EditorHelp
from mie.cli._signals import end_in_order


def edit(
    image: Path | None = typer.Argument(None, help="A picture or DICOM file.", show_default=False),
    instruction: str | None = typer.Argument(None, help="What to change.", show_default=False),
    editor: str | None = typer.Option(
        None,
        "-e",
        "--editor",
        help="An editor of the list below: NAME, NAME:ARGUMENT or NAME:ARGUMENT,KEY=VALUE.",
        show_default=False,
    ),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="The PNG file to write.", show_default=False
    ),
    modality: str | None = typer.Option(
        None, help="What the image is, such as CT: settles words that mean several things."
    ),
    list_: bool = typer.Option(False, "--list", help="Print what can be asked for, in words and colours."),
    seed: int = typer.Option(0, min=0, max=2**31 - 1, help="The editor's seed."),
    overwrite: bool = typer.Option(False, help="Replace the output if it exists."),
    deidentified: bool = typer.Option(
        False, "--deidentified", help="You vouch that no patient can be identified in what is sent."
    ),
    redact: bool = typer.Option(False, "--redact", help="Black out text and faces in what is sent."),
    allow_phi: bool = typer.Option(
        False, "--allow-phi", help="Send even what may identify a patient; logged."
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Edit one image.

    Example: mie edit scan.png "Mark the optic disc in red." -e http:http://127.0.0.1:8000/edit -o out.png
    """
    import time

    from mie.api import edit as edit_image
    from mie.api import read_image
    from mie.cli._show import print_json
    from mie.core.files import atomic_write, make_folder
    from mie.core.registry import unknown_name
    from mie.core.spec import parse_spec
    from mie.editors.runs import plain
    from mie.errors import ConfigError
    from mie.images.png import encode_png
    from mie.privacy.gate import LOG, Policy
    from mie.vocabulary import MODALITIES

    if modality is not None and modality not in MODALITIES:
        raise unknown_name("modality", modality, MODALITIES)
    if list_:
        _list(modality, json)
        return
    if image is None or instruction is None or editor is None or output is None:
        raise ConfigError(
            "an edit needs an image, an instruction, an editor and an output",
            expected='mie edit IMAGE "INSTRUCTION" -e EDITOR -o OUT.png, or mie edit --list',
        )
    if output.suffix.lower() != ".png":
        raise ConfigError("the output is written as PNG", expected="a name that ends in .png", found=output)
    if output.exists() and not overwrite:
        raise ConfigError("the output exists already", where=output, fix="give --overwrite to replace it")
    end_in_order()
    if modality is not None:
        editor += f",modality={modality}"
    spec = parse_spec(editor)
    policy = Policy(deidentified, redact, allow_phi)
    picture = read_image(image)
    make_folder(output.parent)
    started = time.perf_counter()
    log = output.with_name(f"{output.name}.{LOG}")
    edited = edit_image(picture.pixels, instruction, editor, seed=seed, policy=policy, privacy_log=log)
    seconds = round(time.perf_counter() - started, 4)
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
        typer.echo(f"{output}: {size[1]}x{size[0]}, {seconds:.2f} s{_remarks(edited.meta)}")


edit.cls = EditorHelp  # type: ignore[attr-defined]


def _list(modality: str | None, json: bool) -> None:
    """What can be asked for: targets with other words for them, transformations, operations and colours."""
    from mie.cli._show import print_json
    from mie.words import vocabulary

    known = vocabulary()
    targets = [known.targets[name] for name in known.known(modality)]
    changes = [t for t in known.transformations.values() if modality is None or modality in t.modalities]
    if json:
        document = {
            "modality": modality,
            "operations": list(known.operations),
            "colours": list(known.colours),
            "targets": [
                {
                    "name": t.name,
                    "kind": t.kind,
                    "modalities": list(t.modalities),
                    "sides": t.sides,
                    "synonyms": {language: list(words) for language, words in t.synonyms.items()},
                }
                for t in targets
            ],
            "transformations": [
                {"name": t.name, "task": t.task, "modalities": list(t.modalities)} for t in changes
            ],
        }
        print_json(document)
        return
    typer.echo(f"operations: {', '.join(known.operations)}")
    typer.echo(f"colours: {', '.join(known.colours)}")
    typer.echo("sides: left, right (the patient's), of lungs, kidneys and others in pairs")
    typer.echo(f"targets{f' for {modality}' if modality else ''}:")
    for target in targets:
        others = ", ".join(target.synonyms.get("en", ())[:4])
        typer.echo(f"  {target.name}" + (f" (also: {others})" if others else ""))
    typer.echo("transformations:" if changes else "transformations: none")
    for change in changes:
        typer.echo(f"  {change.name} ({change.task})")


def _remarks(meta: Mapping[str, Any]) -> str:
    """What the editor says that people should know before they use the edit."""
    confidence, taken_for, note = (meta.get(key) for key in ("confidence", "taken_for", "note"))
    text = f", confidence {confidence:.2f}" if isinstance(confidence, int | float) else ""
    text += f"\n  taken for: {taken_for}" if isinstance(taken_for, str) else ""
    text += f"\n  note: {note}" if isinstance(note, str) else ""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
