"""`mie agree`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def agree(
    runs: list[Path] = typer.Argument(
        None, help="Scored run folders; none: people alone.", show_default=False
    ),
    human: str = typer.Option(
        ...,
        "--human",
        help="Ratings by people: CSV or JSON lines, or the rankings in the database of `mie review`.",
        show_default=False,
    ),
    criterion: str | None = typer.Option(None, help="Which question, where the file answers several."),
    benchmark: str | None = typer.Option(
        None, "--benchmark", "--protocol", help="Whose scores, where there are several."
    ),
    variant: str = typer.Option("paper", help="Which scores: paper or as_released."),
    metric: list[str] = typer.Option([], "--metric", help="Only this metric, e.g. dice@1; repeatable."),
    same_scale: list[str] = typer.Option(
        [], "--same-scale", help="A metric on the raters' own scale: alignment and kappa too; repeatable."
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        help="A folder: every criterion against every metric as tables, a trade-off plot, a histogram.",
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Compare metrics and judges with people, people with each other, and rank the models by preference.

    Example: mie agree out/run-a out/run-b --human ratings.csv
    """
    from mie.cli._show import print_json, read_people
    from mie.scoring.statistics.agreement import agree as compare

    ratings = read_people(human)
    if Path(human).suffix.lower() not in (".csv", ".jsonl"):
        ratings = [rating for rating in ratings if rating.rank is not None]  # not what inspections say
    if output is not None:
        _write_all(runs or [], human, ratings, output, benchmark, variant, metric, json=json)
        return
    document = compare(
        runs or [],
        human,
        ratings=ratings,
        criterion=criterion,
        benchmark=benchmark,
        variant=variant,
        metrics=metric,
        same_scale=same_scale,
    )
    if json:
        print_json(document)
    else:
        _show(document)
    unscored = [e["spearman_formula"]["unscored"] for e in document["metrics"].values()]
    if any(unscored) or document["human"]["not_scored"]:
        typer.echo("some rated samples have no correlation; --json says how many and why", err=True)
        raise typer.Exit(3)


def _write_all(
    runs: list[Path],
    human: str,
    ratings: list[Any],
    output: Path,
    benchmark: str | None,
    variant: str,
    metrics: list[str],
    *,
    json: bool,
) -> None:
    """Every criterion at once, on disk and as one table."""
    from mie.cli._show import plural, print_json, table
    from mie.errors import ConfigError
    from mie.report.agreement import correlation_table, write_agreement
    from mie.scoring.scored_runs import shared_benchmark
    from mie.scoring.statistics.agreement import agree_on_all
    from mie.scoring.statistics.people import samples_in_words

    if not runs:
        raise ConfigError("a table of metrics needs scored runs", fix="name the runs that people rated")
    name = shared_benchmark(runs, variant=variant, benchmark=benchmark)
    document = agree_on_all(runs, human, ratings=ratings, benchmark=name, variant=variant, metrics=metrics)
    files = write_agreement(document, runs, output, benchmark=name, variant=variant)
    if json:
        print_json(document)
        return
    table(
        "Spearman against people: mean over samples (samples), and over models", *correlation_table(document)
    )
    gone = {name for found in document["criteria"].values() for name in found["human"]["not_scored"]}
    if gone:
        typer.echo(f"{samples_in_words(sorted(gone))}; they count among people alone")
    for criterion, found in document["criteria"].items():
        for pair in found["raters"]["spearman"]:
            who = " and ".join(pair["raters"])
            n = plural(pair["n"], "sample")
            typer.echo(f"{criterion}: raters {who}: Spearman {_interval(pair, 'mean')} over {n}")
    for path in files:
        typer.echo(f"{path}")


def _show(document: dict[str, Any]) -> None:
    from mie.cli._show import plural, table
    from mie.scoring.statistics.people import samples_in_words

    people = document["human"]
    counts = [plural(people[key], key.removesuffix("s")) for key in ("samples", "ratings")]
    title = f"{', '.join(counts)} of {plural(len(people['models']), 'model')}"
    if document["metrics"]:
        header = ("metric", "Spearman (formula)", "Spearman", "Kendall tau-b", "samples", "patients")
        table(f"metrics against people: {title}", header, [_row(*e) for e in document["metrics"].items()])
    calibrated = [(key, e) for key, e in document["metrics"].items() if "mae" in e.get("calibration", {})]
    if calibrated:
        columns = ("metric", "error", "95% interval", "error of the mean", "within 1", "kappa", "scored")
        title = "people's scores, predicted from each metric for patients held out"
        table(title, columns, [_calibration(key, entry) for key, entry in calibrated])
    _show_raters(document["raters"])
    _show_preference(document["leaderboard"])
    if people["not_scored"]:
        typer.echo(f"{samples_in_words(people['not_scored'])}; they count among people alone")
    if document["not_among_the_runs"] and document["runs"]:
        typer.echo(f"not among the runs: {', '.join(document['not_among_the_runs'])}")


def _show_preference(board: dict[str, Any]) -> None:
    from mie.cli._show import plural, table

    if "reason" in board:
        typer.echo(f"no leaderboard: {board['reason']}")
        return
    luce = {one["model"]: one for one in board["plackett-luce"]}
    rows = [
        (
            o["model"],
            _number(o["mean_rank"]),
            _number(o["top_two"]),
            o["n"],
            _interval(o, "strength"),
            _interval(luce[o["model"]], "strength"),
        )
        for o in board["bradley-terry"]
    ]
    header = ("model", "mean rank", "among the first two", "of", "Bradley-Terry", "Plackett-Luce")
    table(f"preference: {plural(board['rankings'], 'ranking')}", header, rows)


def _show_raters(raters: dict[str, Any]) -> None:
    from mie.cli._show import plural, table

    w, alpha = raters["kendall_w"], raters["krippendorff_alpha"]
    counted = f"{w['n']}/{w['n'] + w['unscored']}"
    rows = [("Kendall's W, mean over samples", _interval(w, "mean"), ", ".join((counted, _patients(w))))]
    rows += [
        (f"Krippendorff's alpha, {level}", _number(value), raters["units"]) for level, value in alpha.items()
    ]
    rows += [
        (f"quadratic kappa, {' and '.join(pair['raters'])}", _number(pair["quadratic_kappa"]), pair["n"])
        for pair in raters["pairs"]
    ]
    rows += [
        (
            f"Spearman, {' and '.join(pair['raters'])}",
            _interval(pair, "mean"),
            f"{pair['n']}, {_patients(pair)}",
        )
        for pair in raters["spearman"]
    ]
    title = f"{plural(len(raters['raters']), 'rater')}, by {raters['rated']}"
    table(title, ("agreement", "value", "of"), rows)


def _row(key: str, entry: dict[str, Any]) -> tuple[str, ...]:
    first = entry["spearman_formula"]
    cells = [_interval(entry[name], "mean") for name in ("spearman_formula", "spearman", "kendall_tau_b")]
    return key, *cells, f"{first['n']}/{first['n'] + first['unscored']}", _patients(first)


def _patients(entry: dict[str, Any]) -> str:
    from mie.scoring.clusters import patients_in_words

    return (
        patients_in_words(entry["patients"], entry["images_without_patient"]) if "patients" in entry else ""
    )


def _calibration(key: str, entry: dict[str, Any]) -> tuple[str, ...]:
    found = entry["calibration"]
    near = _number(entry["within_one"]["mean"]) if "within_one" in entry else "–"
    kappa = _number(entry["quadratic_kappa"]["value"]) if "quadratic_kappa" in entry else "–"
    scored = f"{found['n']}/{found['n'] + found['unscored']}"
    return (
        key,
        _number(found["mae"]),
        _bracket(found) or "–",
        _number(found["mae_of_mean"]),
        near,
        kappa,
        scored,
    )


def _interval(entry: dict[str, Any], key: str) -> str:
    return f"{_number(entry[key])} {_bracket(entry)}".rstrip()


def _bracket(entry: dict[str, Any]) -> str:
    """The 95% interval; nothing where there is none, as with fewer than three patients."""
    low, high = entry["ci95"]
    return "" if low != low or high != high else f"[{_number(low)}, {_number(high)}]"


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.3f}"
