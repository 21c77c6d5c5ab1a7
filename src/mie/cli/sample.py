"""`mie sample`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from mie.scoring.statistics.sheet import Key


def sample(
    place: Path = typer.Argument(
        ..., help="A dataset; with --answers the sheet's folder.", show_default=False
    ),
    n: int = typer.Option(200, "-n", min=1, help="So many samples; all of them where there are fewer."),
    ask: str = typer.Option("good", help="good (is this edit good?) or real (is this image real?)."),
    stratify: str | None = typer.Option(
        None,
        help="Draw by strata: columns, joined by commas. Default: modality,task; with --ask real modality.",
        show_default=False,
    ),
    allocation: str = typer.Option("proportional", help="proportional (as in the dataset) or equal strata."),
    seed: int = typer.Option(0, help="Another seed, another draw."),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="The sheet's folder.", show_default=False
    ),
    answers: Path | None = typer.Option(None, help="The answers to a sheet: say what they come to."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Write a blind review sheet of a dataset, and say from its answers what share of the dataset is good.

    With --ask real the sheet shows single images of modification pairs, half of them real and half generated,
    and the answers say how often people can tell them apart.

    Example: mie sample out/quickstart -n 50 --stratify modality,task -o out/sheet

    Example: mie sample out/sheet --answers out/sheet/answers.csv

    Example: mie sample out/pairs --ask real -n 60 --stratify modality -o out/real-sheet
    """
    from mie.cli._show import plural, print_json
    from mie.core.registry import unknown_name
    from mie.errors import ConfigError

    if answers is not None:
        _answered(place, output, answers, json=json)
        return
    if output is None:
        raise ConfigError("where to?", fix="name the sheet's folder with -o, or the answers with --answers")
    from mie.datasets.dataset import Dataset
    from mie.report.blind_sheet import write_sheet
    from mie.scoring.statistics import quality, realism
    from mie.scoring.statistics.sheet import QUESTIONS

    if ask not in QUESTIONS:
        raise unknown_name("question", ask, QUESTIONS)
    draw_key, usual = {
        "good": (quality.draw_key, "modality,task"),
        "real": (realism.draw_key, "modality"),
    }[ask]
    dataset = Dataset(place)
    columns = [name.strip() for name in (usual if stratify is None else stratify).split(",") if name.strip()]
    key = draw_key(dataset, n, columns, allocation=allocation, seed=seed)
    new = write_sheet(dataset, key, output)
    size = (output / "index.html").stat().st_size / 1e6
    if json:
        asked: list[dict[str, Any]] = [
            {"stratum": dict(s.name), "samples": s.samples, "asked": s.asked} for s in key.strata
        ]
        document = {"folder": str(output), "sheet": key.sheet, "asked": len(key.rows), "strata": asked}
        if ask == "real":
            for at, one in enumerate(asked):
                one |= {name: dict(count) for name, count in realism.sources(key, at).items()}
            document |= {"question": ask, "left_out": [dict(one) for one in key.left_out]}
        print_json(document)
        return
    strata = "1 stratum" if len(key.strata) == 1 else f"{len(key.strata)} strata"
    typer.echo(
        f"{output / 'index.html'} {'is ready' if new else 'was already there'}: "
        f"{len(key.rows):,} of {plural(len(dataset), 'sample')} in {strata}, {size:.1f} MB"
    )
    if ask == "real":
        _show_halves(key)
    typer.echo(f"give the page away and keep key.json; then: mie sample {output} --answers answers.csv")


def _answered(place: Path, output: Path | None, answers: Path, *, json: bool) -> None:
    from mie.cli._show import plural, print_json
    from mie.datasets.dataset import Dataset
    from mie.errors import MieError
    from mie.scoring.statistics.quality import quality
    from mie.scoring.statistics.realism import realism
    from mie.scoring.statistics.sheet import read_answers, read_key

    key = read_key(place if output is None else output)
    if output is not None and Dataset(place).digest != key.dataset["digest"]:
        raise MieError(
            "the sheet is of another dataset",
            where=output,
            expected=f"digest {Dataset(place).digest[:16]} ({place})",
            found=f"digest {key.dataset['digest'][:16]} ({key.dataset['name']})",
        )
    opinions = read_answers(answers, key)
    document = realism(key, opinions) if key.question == "real" else quality(key, opinions)
    if json:
        print_json(document)
    elif key.question == "real":
        _show_realism(document)
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


def _show_halves(key: Key) -> None:
    from mie.cli._show import table
    from mie.scoring.statistics.realism import sources

    halves = [sources(key, place) for place in range(len(key.strata))]
    rows = [
        (_name(dict(one.name)), one.samples, half["real"].total(), half["generated"].total())
        for one, half in zip(key.strata, halves, strict=True)
    ]
    table("images on the sheet", ("stratum", "pairs", "real", "generated"), rows)
    for one in key.left_out:
        numbers = f"{one['healed']:,} healed and {one['painted']:,} painted pairs"
        typer.echo(f"left out, with nothing to compare with: {_name(one['stratum'])} ({numbers})")
    apart = [
        row[0] for row, half in zip(rows, halves, strict=True) if not half["real"].keys() & half["generated"]
    ]
    if apart:
        typer.echo(
            f"real and generated images come from different data sets, which may give them away: "
            f"{'; '.join(apart)}. --stratify modality,source compares within each data set"
        )


def _show_realism(document: dict[str, Any]) -> None:
    from mie.cli._show import table

    rows = [(_name(one["stratum"]), *_right(one)) for one in document["strata"]]
    title = f"{document['dataset']['name']}: real or generated, sheet {document['sheet']}"
    header = (
        "stratum",
        "answered",
        "generated, called generated",
        "real, called generated",
        "right",
        "95% interval",
    )
    table(title, header, [*rows, ("all", *_right(document))])
    if document["reasons"]:
        table("what gave it away", ("reason", "n"), list(document["reasons"].items()))
    if "no_interval" in document and document["answered"]:
        typer.echo(f"no interval: {document['no_interval']}")
    guessing = document["guessing"]
    typer.echo(f"{guessing['share']:.0%} right is guessing: {guessing['verdict']}; {guessing['why']}")


def _right(one: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a stratum; of both halves, how many were called generated."""
    low, high = one["ci95"]
    return (
        f"{one['answered']}/{one['asked']}",
        *(
            "–"
            if half["share"] is None
            else f"{half['called_generated']}/{half['answered']}, {half['share']:.0%}"
            for half in (one["generated"], one["real"])
        ),
        "–" if one["accuracy"] is None else f"{one['accuracy']:.1%}",
        "–" if low is None else f"[{low:.1%}, {high:.1%}]",
    )
