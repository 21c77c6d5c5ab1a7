"""`mie build`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from mie.vocabulary import SPLITS

if TYPE_CHECKING:
    from mie.core.documents import DatasetInfo
    from mie.datasets.rejected import Reason
    from mie.review.apply import Change


def build(
    recipe: Path = typer.Argument(
        ..., help="The recipe, a YAML file; with --apply-reviews a dataset.", show_default=False
    ),
    output: Path = typer.Option(..., "-o", "--output", help="The dataset's folder.", show_default=False),
    engine: str = typer.Option("local", help="Where the work runs: local or ray."),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    limit: int | None = typer.Option(None, min=1, help="At most this many images or volumes per data set."),
    overwrite: bool = typer.Option(False, help="Replace the dataset that is in the folder."),
    keep_names: bool = typer.Option(
        False, "--keep-names", help="Keep the names of patients and files, instead of pseudonyms."
    ),
    apply_reviews: str | None = typer.Option(
        None, help="Make the reviewed version of a dataset: the database that `mie review` keeps."
    ),
    rephrase: str | None = typer.Option(
        None,
        "--rephrase",
        help="A model that puts the instructions in other words: openai:MODEL, replay:FILE, ...",
    ),
    rephrasings: int = typer.Option(3, min=1, help="Ask for so many rephrasings of each instruction."),
    cost_limit: float | None = typer.Option(
        None, min=0, help="Stop asking before this many US dollars are spent on rephrasings."
    ),
    prices: Path | None = typer.Option(None, help="Your price table; see docs/reference/judges.md."),
    rephrase_dry_run: bool = typer.Option(
        False, "--rephrase-dry-run", help="Make the samples, say how many calls it takes and about what cost."
    ),
    allow_remote: bool = typer.Option(
        False,
        "--allow-remote",
        help="The model of --rephrase, or the recipe's judge, may be elsewhere.",
    ),
    stats: bool = typer.Option(True, help="Draw the plots of `mie stats` into DATASET/stats."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Build a dataset from data sets on disk.

    Interrupted at any point, even by kill -9, the same command resumes and ends with the same bytes.

    Example: mie build examples/quickstart.yaml -o out/quickstart
    """
    from mie.cli._show import plural, progress_bar
    from mie.datasets.build import Progress, estimate_rephrasing
    from mie.datasets.build import build as run
    from mie.datasets.recipe import read_recipe
    from mie.errors import ConfigError

    if rephrase is None and rephrase_dry_run:
        raise ConfigError("a dry run needs a judge", fix="name one with --rephrase")
    if apply_reviews is not None:
        if rephrase is not None:
            raise ConfigError("a reviewed dataset is not rephrased", fix="leave --rephrase out")
        from mie.review.apply import apply_reviews as apply

        applied = apply(apply_reviews, recipe, output)
        if stats:
            _draw(output)
        _tell(applied.info, output, "is ready", json=json, changes=applied.changes)
        return
    config = read_recipe(recipe)
    if keep_names:
        config = config.model_copy(update={"keep_names": True})
    wording = None
    if rephrase is not None:
        from mie.datasets.rephrase import Rephrase
        from mie.judges.contracts import JudgeOptions

        table = None if prices is None else str(prices)
        options = JudgeOptions(
            rephrase,
            cost_limit=cost_limit,
            prices=table,
            dry_run=rephrase_dry_run,
            allow_remote=allow_remote,
        )
        wording = Rephrase(options, rephrasings)
    with progress_bar("building") as bar:

        def show(at: Progress) -> None:
            notes = {
                "scan": f"listing {at.note}",
                "rephrase": "sentences rephrased",
                "finish": "comparing samples, naming shards",
            }
            bar(at.done, at.total, notes.get(at.stage, f"{at.kept} kept, {at.refused} rejected"))

        how: dict[str, Any] = {"engine": engine, "workers": workers, "limit": limit, "overwrite": overwrite}
        how |= {"isolate": True, "allow_remote": allow_remote}
        if wording is not None and rephrase_dry_run:
            estimate = estimate_rephrasing(config, output, wording, **how, progress=show)
        else:
            result = run(config, output, **how, rephrase=wording, progress=show)
    if rephrase_dry_run:
        _tell_estimate(estimate, output, json=json)
        return
    if stats and not (output / "stats").exists():
        _draw(output)
    info = result.info
    done = "was already complete" if result.already_there else "is ready"
    _tell(info, output, done, json=json, reasons=result.reasons)
    for split in result.empty_splits:
        typer.echo(f"warning: no sample is in the split {split}, which the recipe asks for", err=True)
    if result.bad_files:
        files = plural(result.bad_files, "file")
        names = "" if config.keep_names else f"; `mie sources check {recipe}` names them"
        typer.echo(f"{files} could not be used; rejected.parquet says why{names}", err=True)
    unasked = _unasked(info)
    if unasked:
        typer.echo(
            f"{plural(unasked, 'sample')}: the template's words are kept, since the judge did not answer; "
            "with --overwrite only those questions are asked again",
            err=True,
        )
    if result.bad_files or unasked:
        raise typer.Exit(3)


def _unasked(info: Mapping[str, Any]) -> int:
    """Samples whose question has no reply, and may get one."""
    kept = info.get("rephrased", {}).get("kept", {})
    return sum(
        kept.get(f"judge {state}", 0) for state in ("rate_limited", "timed_out", "failed", "over_budget")
    )


def _tell_estimate(found: dict[str, Any] | None, output: Path, *, json: bool) -> None:
    from mie.cli._show import print_json, show_estimate

    if found is None:
        typer.echo(f"{output} is already complete: there is nothing to ask", err=True)
    elif json:
        print_json({"dry_run": found})
    else:
        show_estimate(found)


def _draw(output: Path) -> None:
    from mie.cli._show import progress_bar
    from mie.core.files import atomic_path
    from mie.datasets.dataset import Dataset
    from mie.datasets.stats import dataset_stats
    from mie.report.stats_plots import write_plots

    # All plots or none: `stats/` says to the next call that they are there.
    with progress_bar("counting") as bar, atomic_path(output / "stats") as temporary:
        write_plots(dataset_stats(Dataset(output), bar), temporary)


def _tell(
    info: Mapping[str, Any],
    output: Path,
    done: str,
    *,
    json: bool,
    changes: Mapping[str, Change] | None = None,
    reasons: Sequence[Reason] = (),
) -> None:
    from mie.cli._show import plural, print_json, table
    from mie.datasets.card import source_counts

    if json:
        keys = ("name", "digest", "counts", "rejected")
        reviews = {k: info["recipe"]["reviews"] for k in ("reviews",) if "reviews" in info["recipe"]}
        if changes is not None:
            reviews["changes"] = {name: asdict(change) for name, change in changes.items()}
        reworded = {key: info[key] for key in ("rephrased",) if key in info}
        print_json({"folder": str(output), **{key: info[key] for key in keys}, **reviews, **reworded})
        return
    samples = plural(info["counts"]["samples"], "sample")
    typer.echo(f"{output} {done}: {samples}, digest {info['digest'][:16]}")
    table("samples", ("split", "n"), list(info["counts"]["by_split"].items()))
    if len(info["counts"]["by_perspective"]) > 1:
        columns, numbers = source_counts(cast("DatasetInfo", info))
        table("by data set", ("data set", *columns), [(name, *row) for name, row in numbers.items()])
    if changes is not None:
        _tell_changes(changes)
    if "rephrased" in info:
        words = info["rephrased"]
        typer.echo(
            f"{words['samples']} instructions rephrased by {', '.join(words['answered_by']) or 'nobody'}"
        )
        if words["kept"]:
            table("instructions in the template's words", ("reason", "n"), list(words["kept"].items()))
    if info["rejected"]:
        table("rejected", ("gate", "n"), list(info["rejected"].items()))
    if reasons:
        examples = [(reason.count, reason.example) for reason in reasons]
        rows = [(n, first.gate, first.reason, f"{first.source}/{first.where}") for n, first in examples]
        table("why (rejected.parquet lists all)", ("n", "gate", "for example", "in"), rows)


def _tell_changes(changes: Mapping[str, Change]) -> None:
    """What the review changed: outcome, samples by split, and some of their ids."""
    from mie.cli._show import table

    words = {
        "kept": "kept as they were",
        "rejected": "dropped, rejected by reviewers",
        "repainted": "repainted with another mask",
        "failed": "dropped, repainted region not recoverable",
    }
    splits = [s for s in SPLITS if any(s in change.by_split for change in changes.values())]
    rows = [
        (
            words[name],
            change.n,
            *(change.by_split.get(s, 0) for s in splits),
            ", ".join(change.examples) or "–",
        )
        for name, change in changes.items()
        if change.n or name != "failed"
    ]
    table("changes by the review", ("outcome", "n", *splits, "for example"), rows)
