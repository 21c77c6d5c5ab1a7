"""`mie sources`: the catalogue, and whether a folder fits an entry of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mie.sources.catalog import Entry
    from mie.sources.source import SourceReport

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
    name: str = typer.Argument(
        ..., help="A data set's name, or a recipe's YAML file.", metavar="NAME|RECIPE", show_default=False
    ),
    root: Path | None = typer.Argument(None, help="The data set's folder (none for samples and recipes)."),
    limit: int | None = typer.Option(
        None, min=1, help="Images or volumes to read of each set; all by default."
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Check folders as a build would read them: which files match, and whether every image can be read.

    Give a data set's name and its folder, or a recipe, whose data sets are all checked.

    Example: mie sources check sample_fundus
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.errors import ConfigError
    from mie.sources.source import SourceReport, check_source, missing_folders, shared_patients

    if Path(name).suffix in (".yaml", ".yml"):
        if root is not None:
            raise ConfigError("a recipe names its own folders", found=root, fix="leave the folder out")
        sources = _of_recipe(Path(name))
        missing = missing_folders(sources)
    else:
        sources, missing = [(_entry(name), root)], {}
    reports = {
        name: SourceReport(str(folder), ["there is no such folder"]) for name, folder in missing.items()
    }
    for entry, folder in sources:
        if entry.name in missing:
            continue
        with progress_bar(f"checking {entry.name}") as bar:
            reports[entry.name] = check_source(entry, folder, limit=limit, progress=bar)
        if not json:
            _show_report(entry.name, reports[entry.name])
    if missing and not json:
        title = f"{plural(len(missing), 'folder')} of {plural(len(sources), 'data set')} missing"
        table(title, ("data set", "folder"), list(missing.items()))
    shared = shared_patients(reports)
    for one, other, number in shared if not json else ():
        typer.echo(f"{one} and {other} share {plural(number, 'patient')}: a build keeps each on one side")
    if json:
        bodies = {name: report.as_dict() for name, report in reports.items()}
        for one, other, number in shared:
            bodies[one].setdefault("shares_patients_with", {})[other] = number
            bodies[other].setdefault("shares_patients_with", {})[one] = number
        print_json(bodies if len(bodies) != 1 else next(iter(bodies.values())))
    if any(report.rejections or report.differences for report in reports.values()):
        raise typer.Exit(3)


def _entry(name: str) -> Entry:
    from mie.sources.catalog import find

    return find(name)


def _of_recipe(path: Path) -> list[tuple[Entry, Path | None]]:
    from mie.datasets.recipe import read_recipe

    return [(source.entry, source.root) for source in read_recipe(path).sources]


def _show_report(name: str, report: SourceReport) -> None:
    from mie.cli._show import plural, table

    rows = [("images or volumes", report.units), ("images read", report.cases)]
    rows += [(f"with {target}", n) for target, n in report.targets.items()]
    rows += [("without any target", report.without_target), ("patients known", report.patients)]
    table(f"{name} at {report.root}", ("what", "n"), rows)
    for difference in report.differences:
        typer.echo(f"differs from the published data set: {difference}")
    if report.rejections:
        shown = [(r.where, r.reason) for r in report.rejections[:20]]
        table(f"{plural(len(report.rejections), 'file')} cannot be used", ("file", "reason"), shown)
