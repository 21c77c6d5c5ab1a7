"""`mie vqa`: questions about medical images."""

from __future__ import annotations

import typer

from mie.cli.vqa_answers import add_to

app = typer.Typer(
    help="Build, check, answer and score questions about medical images.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
add_to(app)
