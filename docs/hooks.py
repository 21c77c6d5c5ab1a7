"""Writes the parts of the reference that follow from the code when the site is built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARKER = "<!-- generated: commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands and their options where a page asks for them."""
    return markdown.replace(MARKER, "\n".join(command_reference())) if MARKER in markdown else markdown


def command_reference() -> Iterator[str]:
    """Every verb with its help text, arguments and options, as Markdown."""
    from typer.main import get_command

    from mie.cli import app

    group: Any = get_command(app)
    for name in group.list_commands(None):
        command = group.commands[name]
        yield f"## mie {name}\n"
        parts = getattr(command, "commands", None)
        if parts is None:
            yield from _command(command, f"mie {name}")
            continue
        yield f"{command.help}\n"
        for part in parts:
            yield f"### mie {name} {part}\n"
            yield from _command(parts[part], f"mie {name} {part}")


def _command(command: Any, name: str) -> Iterator[str]:
    paragraphs = [" ".join(p.split()) for p in (command.help or "").split("\n\n")]
    examples = [p.removeprefix("Example: ") for p in paragraphs if p.startswith("Example: ")]
    yield from (f"{p}\n" for p in paragraphs if not p.startswith("Example: "))
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([name, "[OPTIONS]", *(_argument(p) for p in arguments)])
    yield "```text\n" + usage + "\n```\n"
    if examples:
        yield "```bash\n" + "\n".join(examples) + "\n```\n"
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    rows = [(f"`{_argument(p)}`", p) for p in arguments]
    rows += [(", ".join(f"`{o}`" for o in [*p.opts, *p.secondary_opts]), p) for p in options]
    if rows:
        yield "| argument or option | meaning | default |\n| --- | --- | --- |"
        for label, parameter in rows:
            yield f"| {label} | {_cell(parameter.help or '')} | {_cell(_default(parameter))} |"
        yield ""


def _argument(parameter: Any) -> str:
    metavar = parameter.metavar or parameter.name.upper()
    metavar += "..." if parameter.nargs == -1 else ""
    return metavar if parameter.required else f"[{metavar}]"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    return "" if parameter.default in (None, False, ()) or callable(parameter.default) else f"`{parameter.default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
