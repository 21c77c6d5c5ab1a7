"""`mie parse`."""

from __future__ import annotations

import typer


def parse(
    instruction: str = typer.Argument(..., help="What to change, in words.", show_default=False),
    modality: str | None = typer.Option(
        None, help="What the image is, such as CT: settles words that mean several things."
    ),
    fallback: bool = typer.Option(
        False,
        "--fallback",
        help="Take unknown words for near ones, as the compact editor does (loads torch).",
    ),
    json: bool = typer.Option(False, "--json", help="Print the parse as one JSON document."),
) -> None:
    """Say what an instruction is understood as, without an image or an editor.

    Example: mie parse "Mark the left lung in red, but not the heart" --modality X-ray
    """
    from mie.cli._show import print_json
    from mie.core.registry import unknown_name
    from mie.vocabulary import MODALITIES
    from mie.words import parse as parse_instruction

    if modality is not None and modality not in MODALITIES:
        raise unknown_name("modality", modality, MODALITIES)
    if fallback:
        from functools import partial

        from mie.networks.text import TextEncoder, sentence_vectors
        from mie.words.fallback import Fallback

        found = Fallback(partial(sentence_vectors, TextEncoder())).parse(instruction, modality)
    else:
        found = parse_instruction(instruction, modality)
    if json:
        print_json(found.as_json())
        return
    typer.echo(found.operation + (f" ({found.task})" if found.task and found.task != found.operation else ""))
    for target in found.targets:
        side = f"{target.side} " if target.side and not target.name.startswith(target.side) else ""
        typer.echo(f"  target: {side}{target.name}" + (f", {target.colour}" if target.colour else ""))
    for name, value in found.attributes.items():
        typer.echo(f"  {name}: {', '.join(value) if isinstance(value, list) else value}")
    if found.unknown:
        typer.echo(f"  not known: {', '.join(found.unknown)}")
    for words, name in found.taken_for.items():
        typer.echo(f"  taken for: {name} (for {words!r})")
    if found.note:
        typer.echo(f"  note: {found.note}")
