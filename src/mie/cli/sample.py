"""`mie sample`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def sample(
    place: Path = typer.Argument(
        ..., help="A dataset; with --answers the sheet's folder.", show_default=False
    ),
    n: int = typer.Option(200, "-n", min=1, help="So many samples; all of them where there are fewer."),
    stratify: str = typer.Option("modality,task", help="Draw by strata: columns, joined by commas."),
    allocation: str = typer.Option("proportional", help="proportional (as in the dataset) or equal strata."),
    seed: int = typer.Option(0, help="Another seed, another draw."),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="The sheet's folder.", show_default=False
    ),
    answers: Path | None = typer.Option(None, help="The answers to a sheet: say what share is good."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Write a blind review sheet of a dataset, and say from its answers what share of the dataset is good.

    Example: mie sample out/quickstart -n 50 --stratify modality,task -o out/sheet

    Example: mie sample out/sheet --answers out/sheet/answers.csv
    """
    from mie.cli._show import plural, print_json
    from mie.errors import ConfigError

    if answers is not None:
        _answered(place, output, answers, json=json)
        return
    if output is None:
        raise ConfigError("where to?", fix="name the sheet's folder with -o, or the answers with --answers")
    from mie.datasets.dataset import Dataset
    from mie.report.blind_sheet import write_sheet
    from mie.scoring.statistics.quality import draw_key

    dataset = Dataset(place)
    columns = [name.strip() for name in stratify.split(",") if name.strip()]
    key = draw_key(dataset, n, columns, allocation=allocation, seed=seed)
    new = write_sheet(dataset, key, output)
    size = (output / "index.html").stat().st_size / 1e6
    if json:
        asked = [{"stratum": dict(s.name), "samples": s.samples, "asked": s.asked} for s in key.strata]
        print_json({"folder": str(output), "sheet": key.sheet, "asked": len(key.rows), "strata": asked})
        return
    strata = "1 stratum" if len(key.strata) == 1 else f"{len(key.strata)} strata"
    typer.echo(
        f"{output / 'index.html'} {'is ready' if new else 'was already there'}: "
        f"{len(key.rows):,} of {plural(len(dataset), 'sample')} in {strata}, {size:.1f} MB"
    )
    typer.echo(f"give the page away and keep key.json; then: mie sample {output} --answers answers.csv")


def _answered(place: Path, output: Path | None, answers: Path, *, json: bool) -> None:
    from mie.cli._show import plural, print_json
    from mie.datasets.dataset import Dataset
    from mie.errors import MieError
    from mie.scoring.statistics.quality import quality, read_answers, read_key

    key = read_key(place if output is None else output)
    if output is not None and Dataset(place).digest != key.dataset["digest"]:
        raise MieError(
            "the sheet is of another dataset",
            where=output,
            expected=f"digest {Dataset(place).digest[:16]} ({place})",
            found=f"digest {key.dataset['digest'][:16]} ({key.dataset['name']})",
        )
    document = quality(key, read_answers(answers, key))
    if json:
        print_json(document)
    else:
        _show(document)
    if document["answered"] < document["asked"]:
        missing = document["asked"] - document["answered"]
        typer.echo(f"{plural(missing, 'row')} without an answer", err=True)
        raise typer.Exit(3)


def _show(document: dict[str, Any]) -> None:
    from mie.cli._show import table

    rows = [(_name(one["stratum"]), one["samples"], *_numbers(one)) for one in document["strata"]]
    whole = ("all, weighted by stratum", document["dataset"]["samples"], *_numbers(document))
    title = f"{document['dataset']['name']}: {document['allocation']} strata, sheet {document['sheet']}"
    header = ("stratum", "samples", "answered", "good", "share", "95% interval")
    table(title, header, [*rows, whole] if len(rows) > 1 else [whole])
    if document["reasons"]:
        table("why bad", ("reason", "n"), list(document["reasons"].items()))
    bar = document["bar"]
    typer.echo(f"the published bar, over {bar['share']:.0%} of {bar['of']:,}: {bar['verdict']}; {bar['why']}")


def _numbers(one: dict[str, Any]) -> tuple[str, int, str, str]:
    answered = f"{one['answered']}/{one['asked']}"
    if one["share"] is None:
        return answered, one["good"], "–", "–"
    low, high = one["ci95"]
    return answered, one["good"], f"{one['share']:.1%}", f"[{low:.1%}, {high:.1%}]"


def _name(stratum: dict[str, Any]) -> str:
    return ", ".join(str(value) for value in stratum.values()) or "all"
