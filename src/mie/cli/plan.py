"""`mie plan`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from mie.datasets.pilot import Amount, BuildPlan


def plan(
    recipe: Path = typer.Argument(..., help="The recipe, a YAML file.", show_default=False),
    share: float = typer.Option(
        0.01, min=1e-6, max=1, help="Of each data set, make so much to measure; at least four units."
    ),
    workers: int | None = typer.Option(
        None, min=1, help="Processes that the build will have; all cores by default."
    ),
    price: float | None = typer.Option(None, min=0, help="What an hour of the machine costs."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Say what a build will give: samples, bytes, hours and money, from a measured pilot.

    Nothing is kept, and no judge is asked.

    Example: mie plan examples/quickstart.yaml
    """
    from mie.cli._show import print_json, progress_bar
    from mie.datasets.pilot import plan_build
    from mie.datasets.recipe import read_recipe

    config = read_recipe(recipe)
    with progress_bar("measuring") as bar:
        found = plan_build(
            config, share=share, workers=workers, progress=lambda done, total: bar(done, total, "units")
        )
    if json:
        document = found.as_json()
        if price is not None:
            document["cost"] = {key: hours * price for key, hours in found.hours.as_json().items()}
        print_json(document)
        return
    _show(found, price)


def _show(found: BuildPlan, price: float | None) -> None:
    from mie.cli._show import plural, table

    rows = [
        (
            one.name,
            f"{one.measured:,} of {one.units:,}",
            _range(one.samples, _count),
            _range(one.size, _bytes),
            _range(one.seconds, _duration),
        )
        for one in found.sources
    ]
    table(found.name, ("data set", "measured", "samples", "size", "time of one core"), rows)
    typer.echo(f"samples  about {_range(found.samples, _count)}")
    typer.echo(f"size     about {_range(found.size, _bytes)}")
    hours = _range(found.hours, lambda value: _duration(3600 * value))
    typer.echo(f"time     about {hours} with {plural(found.workers, 'worker')}")
    if price is not None:
        typer.echo(f"money    about {_range(found.hours, lambda value: f'{value * price:,.2f}')}")
    if found.judge is not None:
        typer.echo(f"not counted: what the judge {found.judge} takes and costs; it was not asked")
    if found.rejected:
        gates = ", ".join(f"{gate} {number}" for gate, number in found.rejected.items())
        typer.echo(f"rejected in the pilot: {gates}")
    typer.echo("A build keeps slightly fewer: duplicates and leaks between splits are found at its end.")


def _range(amount: Amount, show: Callable[[float], str]) -> str:
    """`9,400 (8,600 to 10,200)`; without the ends where they are unknown or the same."""
    if math.isnan(amount.low) or show(amount.low) == show(amount.high):
        return show(amount.total)
    return f"{show(amount.total)} ({show(amount.low)} to {show(amount.high)})"


def _count(value: float) -> str:
    return f"{round(value):,}"


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    if seconds < 5400:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h"
