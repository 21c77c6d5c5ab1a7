"""`mie score`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mie.scoring.benchmarks import BENCHMARKS, VARIANTS

if TYPE_CHECKING:
    from mie.scoring.results import Mean, Results

_SHOWN = 20  # groups in a table


def score(
    run: Path | None = typer.Argument(None, help="A run's folder.", show_default=False),
    benchmark: str = typer.Option(
        "miedb", "--benchmark", "--protocol", help=f"By which benchmark: {', '.join(BENCHMARKS.names())}."
    ),
    variant: str = typer.Option(
        VARIANTS[0], help="paper (as the text says) or as_released (as the script does)."
    ),
    list_: bool = typer.Option(False, "--list", help="List benchmarks and metrics, then stop."),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    engine: str = typer.Option("local", help="Where the work runs: local or ray."),
    judge: str | None = typer.Option(
        None, "--judge", help="A model that grades what pixels cannot: openai:MODEL, replay:FILE, ..."
    ),
    prompts: str | None = typer.Option(
        None, "--prompts", help="The judge's prompts: anchored, context, a folder, a file, or ID=FILE."
    ),
    repeats: int = typer.Option(1, min=1, help="Ask the judge each question so many times."),
    cost_limit: float | None = typer.Option(
        None, min=0, help="Stop asking before this many US dollars are spent on this run."
    ),
    prices: Path | None = typer.Option(None, help="Your price table; see docs/reference/judges.md."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say how many calls it takes and about what cost."),
    allow_remote: bool = typer.Option(
        False, "--allow-remote", help="The judge may be on another machine, and is sent images."
    ),
    deidentified: bool = typer.Option(
        False,
        "--deidentified",
        help="You vouch that no patient can be identified in images sent to the judge.",
    ),
    redact: bool = typer.Option(False, "--redact", help="Black out text and faces in what is sent."),
    allow_phi: bool = typer.Option(
        False, "--allow-phi", help="Send even what may identify a patient. This is logged."
    ),
    judge_concurrency: int = typer.Option(16, min=1, help="Most calls at a time."),
    judge_time_limit: float | None = typer.Option(None, min=0, help="Seconds for all calls together."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Score a run's outputs and write scores/ and summary/ into its folder.

    Interrupted at any point, the same command resumes and ends with the same numbers.

    Example: mie score out/run --benchmark miedb

    Example: mie score --list
    """
    from mie.cli._show import print_json, progress_bar, show_estimate
    from mie.errors import ConfigError

    if list_:
        _list(json=json)
        return
    if run is None:
        raise ConfigError("which run?", fix="give the folder of a run, or --list")
    if dry_run and judge is None:
        raise ConfigError("a dry run needs a judge", fix="name one with --judge")
    from mie.judges.contracts import JudgeOptions
    from mie.scoring.results import Results
    from mie.scoring.score import score_run

    options = judge and JudgeOptions(
        judge,
        repeats=repeats,
        cost_limit=cost_limit,
        prices=None if prices is None else str(prices),
        dry_run=dry_run,
        allow_remote=allow_remote,
        deidentified=deidentified,
        redact=redact,
        allow_phi=allow_phi,
        concurrency=judge_concurrency,
        time_limit=judge_time_limit,
        prompts=prompts,
    )
    if prompts is not None and judge is None:
        raise ConfigError("prompts without a judge", fix="name one with --judge")
    with progress_bar("scoring") as bar:
        document = score_run(
            BENCHMARKS[benchmark],
            run,
            variant=variant,
            workers=workers,
            engine=engine,
            progress=bar,
            judge=options or None,
        )
    if dry_run:
        print_json(document) if json else show_estimate(document["dry_run"])
        return
    results = Results(run, document)
    if json:
        print_json(document)
    else:
        _show(results)
    _draw(results, quiet=json)
    if any(mean.unscored or mean.missing for mean in results.means().values()):
        typer.echo(f"some samples have no score; {run / 'scores'} says which and why", err=True)
        raise typer.Exit(3)


def _list(*, json: bool) -> None:
    from mie.cli._show import print_json, table
    from mie.scoring.metric import METRICS

    benchmarks = list(BENCHMARKS.values())
    metrics = {metric.name: metric for metric in METRICS.values()}
    for benchmark in benchmarks:
        metrics |= benchmark.find_metrics()
    if json:
        print_json(
            {
                "benchmarks": [
                    {
                        "name": benchmark.name,
                        "meaning": benchmark.meaning,
                        "variants": benchmark.variants,
                        "metrics": list(benchmark.find_metrics()),
                    }
                    for benchmark in benchmarks
                ],
                "metrics": [
                    {"name": name, **metric.record(), "needs": sorted(metric.needs)}
                    for name, metric in metrics.items()
                ],
            }
        )
        return
    rows = [(b.name, ", ".join(b.variants), b.meaning, ", ".join(b.find_metrics())) for b in benchmarks]
    table("benchmarks", ("benchmark", "variants", "what it measures", "metrics"), rows)
    table(
        "metrics",
        ("metric", "label", "better", "needs", "meaning"),
        [
            (
                name,
                metric.title,
                "higher" if metric.higher_is_better else "lower",
                ", ".join(sorted(metric.needs)),
                metric.meaning,
            )
            for name, metric in metrics.items()
        ],
    )


def _show(results: Results) -> None:
    from mie.cli._show import plural, table
    from mie.scoring.benchmarks import tables_of

    document = results.document
    means = results.means()
    title = f"{document['run']}: {results.name}, {results.variant}, {plural(len(results), 'sample')}"
    header = ("metric", "mean", "95% interval", "scored", "note")
    table(title, header, [_row(key, mean) for key, mean in means.items()])
    own = tables_of(document)
    for one in own:
        table(one.title, one.header, one.rows)
    keys = () if own else list(dict.fromkeys(key for group in results.groups for key in group))
    for key in keys:
        _show_groups(results, key, [name for name in means if name.endswith("@1")])
    for perspective, count in document["not_covered"].items():
        typer.echo(
            f"not covered: {plural(count, f'{perspective} sample')}, no metric applies without a judge"
        )
    if results.judge is not None:
        _show_judge(results.judge)
    drift = document["drift"]
    if drift["flagged"]:
        typer.echo(
            f"drift: {drift['flagged']} of {plural(drift['measured'], 'output')} lie shifted, zoomed or "
            "cropped against their input, which ruins every pixel metric"
        )


def _show_groups(results: Results, key: str, names: list[str]) -> None:
    """A table with a row for each group of a key; nothing where there is only one."""
    from mie.cli._show import table

    groups = results.by(key)
    if len(groups) < 2:
        return
    largest = sorted(groups, key=lambda value: _size(groups[value]), reverse=True)[:_SHOWN]
    rows = [
        (value, *(_cell(means.get(name)) for name in names))
        for value, means in groups.items()
        if value in largest
    ]
    table(f"by {key}: mean (scored)", (key, *names), rows)
    if len(groups) > _SHOWN:
        typer.echo(f"the {_SHOWN} largest of {len(groups)}; --json lists all")


def _show_judge(judge: Mapping[str, Any]) -> None:
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


def _draw(results: Results, *, quiet: bool) -> None:
    """The radar chart of a benchmark that has one."""
    if results.name not in BENCHMARKS or results.benchmark.radar is None:
        return
    from mie.report.charts import radar_chart

    path = results.folder / "summary" / f"{results.name}.{results.variant}.radar.png"
    chart = radar_chart({results.folder.name: results.document}, path)
    if chart is not None and not quiet:
        typer.echo(f"radar chart: {chart}")


def _size(means: Mapping[str, Mean]) -> int:
    return max((mean.n + mean.unscored for mean in means.values()), default=0)


def _row(key: str, mean: Mean) -> tuple[str, str, str, str, str]:
    return key, str(mean), mean.interval or "–", mean.coverage, "; ".join(mean.notes)


def _cell(mean: Mean | None) -> str:
    return "" if mean is None else f"{mean} ({mean.coverage})"
