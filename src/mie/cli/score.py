"""`mie score`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

_SHOWN = 20


def score(
    run: Path = typer.Argument(..., help="A run's folder.", show_default=False),
    protocol: str = typer.Option(
        "miedb", "--protocol", help="miedb, medebench, imgedit, omni-iie, or another package's."
    ),
    variant: str = typer.Option(
        "paper", help="paper (as the text says) or as_released (as the script does)."
    ),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    judge: str | None = typer.Option(
        None, "--judge", help="A model that grades what pixels cannot: openai:MODEL, replay:FILE, ..."
    ),
    repeats: int = typer.Option(1, min=1, help="Ask the judge each question so many times."),
    cost_limit: float | None = typer.Option(
        None, min=0, help="Stop asking before this many US dollars are spent on this run."
    ),
    prices: Path | None = typer.Option(None, help="Your price table; see docs/reference/judges.md."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say how many calls it takes and about what cost."),
    deidentified: bool = typer.Option(
        False,
        "--deidentified",
        help="You vouch that no patient can be identified in images sent to the judge.",
    ),
    judge_concurrency: int = typer.Option(16, min=1, help="Most calls at a time."),
    judge_time_limit: float | None = typer.Option(None, min=0, help="Seconds for all calls together."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Score a run's outputs and write scores/ and summary/ into its folder.

    Interrupted at any point, the same command goes on and ends with the same numbers.

    Example: mie score out/run --protocol miedb
    """
    from mie.cli._show import print_json, progress_bar, show_estimate
    from mie.errors import ConfigError
    from mie.judges.contracts import JudgeOptions
    from mie.scoring.benchmarks import score as score_run

    if dry_run and judge is None:
        raise ConfigError("a dry run needs a judge", fix="name one with --judge")
    options = judge and JudgeOptions(
        judge,
        repeats=repeats,
        cost_limit=cost_limit,
        prices=None if prices is None else str(prices),
        dry_run=dry_run,
        deidentified=deidentified,
        concurrency=judge_concurrency,
        time_limit=judge_time_limit,
    )
    with progress_bar("scoring") as bar:
        document = score_run(
            run, protocol, variant=variant, workers=workers, progress=bar, judge=options or None
        )
    if json:
        print_json(document)
    elif dry_run:
        show_estimate(document["dry_run"])
    else:
        _show(document)
    if dry_run:
        return
    if protocol == "medebench":
        from mie.report.charts import radar_chart

        chart = radar_chart({run.name: document}, run / "summary" / f"{protocol}.{variant}.radar.png")
        if chart is not None and not json:
            typer.echo(f"radar chart: {chart}")
    whole = document["groups"][0]["metrics"].values()
    if any(entry["unscored"] or entry.get("missing") for entry in whole):
        typer.echo(f"some samples have no score; {run / 'scores'} says which and why", err=True)
        raise typer.Exit(3)


def _show(document: dict[str, Any]) -> None:
    from mie.cli._show import table
    from mie.scoring.benchmarks import tables_of

    title = (
        f"{document['run']}: {document['protocol']}, {document['variant']}, {document['n_samples']} samples"
    )
    header = ("metric", "mean", "95% interval", "scored", "note")
    table(title, header, [_row(name, entry) for name, entry in document["groups"][0]["metrics"].items()])
    own = tables_of(document)
    for one in own:
        table(one.title, one.header, one.rows)
    for key in () if own else ("perspective", "modality", "task", "target", "source"):
        groups = [item for item in document["groups"] if list(item["group"]) == [key]]
        names = [name for name in document["groups"][0]["metrics"] if name.endswith("@1")]
        if len(groups) > 1:
            shown = sorted(sorted(groups, key=_size, reverse=True)[:_SHOWN], key=groups.index)
            rows = [[g["group"][key], *(_cell(n, g["metrics"].get(n)) for n in names)] for g in shown]
            table(f"by {key}: mean (scored)", (key, *names), rows)
        if len(groups) > _SHOWN:
            typer.echo(f"the {_SHOWN} largest of {len(groups)}; --json lists all")
    for perspective, count in document["not_covered"].items():
        typer.echo(f"not covered: {count} {perspective} samples; they need a judge (--judge)")
    if "judge" in document:
        _show_judge(document["judge"])
    drift = document["drift"]
    if drift["flagged"]:
        typer.echo(
            f"drift: {drift['flagged']} of {drift['measured']} outputs are shifted, zoomed or cropped "
            "against their input, which ruins every pixel metric"
        )


def _show_judge(judge: dict[str, Any]) -> None:
    answers = ", ".join(f"{count:,} {state}" for state, count in judge["states"].items()) or "no questions"
    cost = "of unknown price" if judge["cost_usd"] is None else f"for {judge['cost_usd']:.2f} USD"
    tokens = f"{judge['usage']['input']:,} + {judge['usage']['output']:,} tokens"
    model = ", ".join(judge["answered_by"]) or judge["model"]  # as the endpoint names it
    typer.echo(f"judge {model} at {judge['provider']}: {answers}; {tokens} {cost}")
    apart = judge.get("disagreement")
    if apart:
        typer.echo(
            f"repeats differ by {apart['mean']:.2f} points on average, by {apart['largest']:g} at most, "
            f"over {apart['n']:,} outputs"
        )


def _size(group: dict[str, Any]) -> int:
    return max((entry["n"] + entry["unscored"] for entry in group["metrics"].values()), default=0)


def _row(name: str, entry: dict[str, Any]) -> tuple[str, str, str, str, str]:
    low, high = (_number(name, bound) for bound in entry["ci95"])
    notes = {"capped": "exact matches, capped", "missing": "missing outputs, counted as 0"}
    note = "; ".join(f"{entry[key]} {text}" for key, text in notes.items() if entry.get(key))
    return name, _number(name, entry["mean"]), f"[{low}, {high}]", _coverage(entry), note


def _cell(name: str, entry: dict[str, Any] | None) -> str:
    return "" if entry is None else f"{_number(name, entry['mean'])} ({_coverage(entry)})"


def _coverage(entry: dict[str, Any]) -> str:
    return f"{entry['n']}/{entry['n'] + entry['unscored']}"


def _number(name: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return str(value)
    return f"{value:.2f}" if "psnr" in name or name.startswith("rubric") else f"{value:.4f}"
