"""`mie choose`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def choose(
    dataset: Path = typer.Argument(..., help="The dataset to choose from.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="The benchmark's folder.", show_default=False),
    quota: str = typer.Option(
        ..., help="How many samples: a number, `miedb` (3,485), or a YAML file by column.", show_default=False
    ),
    split: str = typer.Option("test", help="Choose from this split; `all` for every split."),
    strata: str = typer.Option("perspective,task,modality,target", help="What a stratum's samples share."),
    allocation: str = typer.Option("equal", help="Of the quota over the strata: equal or proportional."),
    spare: float = typer.Option(0.0, min=0, help="Choose this share more, for people to reject from."),
    reviews: str | None = typer.Option(
        None, help="Choose among what people accepted: the database that `mie review` keeps."
    ),
    accepted: int = typer.Option(3, min=1, help="With --reviews: how many people must accept a sample."),
    seed: int = typer.Option(0, help="Another seed takes other samples of equal rank."),
    name: str | None = typer.Option(None, help="Of the benchmark; by default the dataset's with -benchmark."),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Choose a benchmark from a dataset: by quota and stratum, with images as different as possible.

    Review the candidates with `mie review --raters 3`, then choose again with --reviews: the benchmark holds
    what three people accepted, and says who.

    Example: mie choose out/quickstart --quota 6 -o out/benchmark
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.datasets.dataset import Dataset
    from mie.datasets.publish import publish

    with progress_bar("choosing") as bar:
        result = publish(
            Dataset(dataset),
            output,
            quota=quota,
            split=None if split == "all" else split,
            strata=[column.strip() for column in strata.split(",") if column.strip()],
            allocation=allocation,
            spare=spare,
            decisions=None if reviews is None else _decisions(reviews, dataset),
            needed=accepted,
            seed=seed,
            name=name,
            workers=workers,
            progress=bar,
        )
    info = result.info
    if json:
        keys = ("name", "digest", "counts")
        body: dict[str, Any] = {key: info[key] for key in keys}  # type: ignore[literal-required]
        print_json({"folder": str(output), **body, "short": dict(result.choice.short)})
    else:
        samples = plural(info["counts"]["samples"], "sample")
        typer.echo(f"{output} is ready: {samples}, digest {info['digest'][:16]}")
        rows = [(", ".join(map(str, s.name.values())), s.samples, s.chosen) for s in result.choice.strata]
        table("strata", ("stratum", "samples", "chosen"), rows)
    for value, missing in result.choice.short.items():
        typer.echo(f"warning: the quota of {value} lacks {plural(missing, 'sample')}", err=True)
    if result.choice.short:
        raise typer.Exit(3)


def _decisions(place: str, dataset: Path) -> Any:
    from mie.core.environment import install_hint
    from mie.datasets.dataset import Dataset
    from mie.errors import ConfigError

    try:
        from mie.review.apply import read_decisions
    except ModuleNotFoundError as error:
        raise ConfigError(f"reviews need {error.name}", fix=install_hint("review")) from None
    return read_decisions(place, Dataset(dataset))
