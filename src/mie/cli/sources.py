"""`mie sources`: the catalogue, and whether a folder fits an entry of it."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(help="Known data sets: list, show, check.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_(
    modality: str | None = typer.Option(None, help="Only this modality, e.g. CT."),
    json: bool = typer.Option(False, "--json", help="Print the catalogue as one JSON document."),
) -> None:
    """List the known data sets.

    Example: mie sources list --modality fundus
    """
    from mie.cli._show import print_json, table
    from mie.core.registry import nearest_name
    from mie.errors import ConfigError
    from mie.sources.catalog import catalog
    from mie.vocabulary import MODALITIES

    if modality is not None:
        known = nearest_name(modality, MODALITIES)
        if known is None or known.casefold() != modality.casefold():
            hint = f"did you mean {known!r}?" if known else f"known: {', '.join(MODALITIES)}"
            raise ConfigError(f"unknown modality {modality!r}", fix=hint)
        modality = known
    entries = [e for e in catalog().values() if modality in (None, e.modality)]
    if json:
        print_json([e.model_dump(mode="json", exclude_defaults=True) for e in entries])
        return
    rows = [
        (e.name, e.modality, ", ".join(t.name for t in e.targets) or "-", e.layout.kind, e.license.use)
        for e in entries
    ]
    table(f"{len(rows)} data sets", ("name", "modality", "targets", "layout", "use"), rows)


@app.command()
def show(
    name: str = typer.Argument(..., help="A data set's name.", show_default=False),
    json: bool = typer.Option(False, "--json", help="Print the entry as one JSON document."),
) -> None:
    """Show one data set's entry: layout, targets, licence, where to get it.

    Example: mie sources show drive_vessel
    """
    import yaml

    from mie.cli._show import print_json
    from mie.sources.catalog import find

    entry = find(name)
    if json:
        print_json(entry.model_dump(mode="json"))
    else:
        body = entry.model_dump(mode="json", exclude_defaults=True)
        typer.echo(yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=100), nl=False)


@app.command()
def check(
    name: str = typer.Argument(..., help="A data set's name.", show_default=False),
    root: Path | None = typer.Argument(None, help="The data set's folder (none for samples)."),
    limit: int | None = typer.Option(None, min=1, help="Read at most this many images or volumes."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Check a folder against an entry: which files match, and whether every image and mask can be read.

    Example: mie sources check drive_vessel data/DRIVE
    """
    from mie.cli._show import print_json, progress_bar, table
    from mie.sources.catalog import find
    from mie.sources.source import check_source

    with progress_bar("checking") as bar:
        report = check_source(find(name), root, limit=limit, progress=bar)
    if json:
        print_json(report.as_dict())
    else:
        rows = [("images or volumes", report.units), ("images read", report.cases)]
        rows += [(f"with {target}", n) for target, n in report.targets.items()]
        rows += [("without any target", report.without_target), ("patients known", report.patients)]
        table(f"{name} at {report.root}", ("what", "n"), rows)
        if report.refusals:
            shown = [(r.where, r.reason) for r in report.refusals[:20]]
            table(f"{len(report.refusals)} files cannot be used", ("file", "reason"), shown)
    if report.refusals:
        raise typer.Exit(3)
