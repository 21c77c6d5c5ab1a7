"""`mie fake`."""

from __future__ import annotations

import math
from pathlib import Path

import typer


def fake(
    run: Path = typer.Argument(..., help="A run's folder.", show_default=False),
    detector: Path | None = typer.Option(
        None, help="A detector that `mie train` trained: weights.safetensors.", show_default=False
    ),
    verdicts: Path | None = typer.Option(
        None, help="Another detector's verdicts: CSV with sample_id and fake.", show_default=False
    ),
    threshold: float = typer.Option(
        0.5, min=0, max=1, help="Of --detector: the probability above which an image counts as fake."
    ),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Count the outputs that a forensic detector takes for fake: the fake score of ImgEdit.

    A lower score means edits that are harder to tell. Beside it stand the false alarms on the inputs.

    Example: mie fake out/run --verdicts verdicts.csv
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.errors import ConfigError
    from mie.scoring.benchmarks.imgedit.fake import detect, fake_score

    if (detector is None) == (verdicts is None):
        raise ConfigError("give one of --detector and --verdicts", fix="`mie train` trains a detector")
    if detector is not None:
        with progress_bar("looking for traces") as bar:
            result = detect(run, detector, threshold=threshold, progress=bar)
    else:
        result = fake_score(run, str(verdicts))
    if json:
        if math.isnan(result["mean"]):
            result["mean"] = None
        print_json(result)
        return
    rows = [("outputs taken for fake", result)]
    if "false_alarms" in result:
        rows.append(("inputs taken for fake", result["false_alarms"]))
    shown = [
        (
            name,
            "–" if math.isnan(r["mean"]) else f"{r['mean']:.3f}",
            _interval(*(r.get("ci95") or (math.nan, math.nan))),
            r["n"],
            r["patients"],
        )
        for name, r in rows
    ]
    table("fake score", ("what", "share", "95% interval over patients", "images", "patients"), shown)
    if result["unscored"]:
        typer.echo(f"unscored, for lack of an output or a verdict: {plural(result['unscored'], 'sample')}")
    if result.get("outputs_equal_to_their_input"):
        typer.echo(f"equal to their input: {plural(result['outputs_equal_to_their_input'], 'output')}")


def _interval(low: float, high: float) -> str:
    return "–" if math.isnan(low) or math.isnan(high) else f"{low:.3f} to {high:.3f}"
