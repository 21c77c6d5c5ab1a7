"""`mie experiment`: the papers' comparisons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

app = typer.Typer(
    help="Run an experiment of the papers: train, edit, measure, report.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_CONFIG = typer.Argument(..., help="The experiment's file, YAML.", show_default=False)
_OUTPUT = typer.Option(None, "-o", "--output", help="The folder; out/NAME by default.", show_default=False)
_DEVICE = typer.Option(None, help="cpu or cuda; a GPU by default where there is one.")
_JSON = typer.Option(False, "--json", help="Print results.json.")


@app.command()
def ablation(
    config: Path = _CONFIG, output: Path | None = _OUTPUT, device: str | None = _DEVICE, json: bool = _JSON
) -> None:
    """Train on each perspective alone and on all of them, and compare.

    The arm with all perspectives is trained twice: for as many steps, and for as many samples of each
    perspective. The same command resumes an interrupted experiment.

    Example: mie experiment ablation examples/experiments/ablation.yaml -o out/ablation
    """
    from mie.experiments.ablation import run_ablation
    from mie.experiments.config import AblationConfig

    _run(AblationConfig, run_ablation, config, output, device, json)


@app.command()
def holdout(
    config: Path = _CONFIG, output: Path | None = _OUTPUT, device: str | None = _DEVICE, json: bool = _JSON
) -> None:
    """Keep a lesion out of modification and in perception, and measure edits of it.

    Example: mie experiment holdout examples/experiments/holdout.yaml -o out/holdout
    """
    from mie.experiments.config import HoldoutConfig
    from mie.experiments.holdout import run_holdout

    _run(HoldoutConfig, run_holdout, config, output, device, json)


@app.command()
def fewshot(
    config: Path = _CONFIG, output: Path | None = _OUTPUT, device: str | None = _DEVICE, json: bool = _JSON
) -> None:
    """Fine-tune on a few samples of each task, and compare with showing them as examples.

    Example: mie experiment fewshot examples/experiments/fewshot.yaml -o out/fewshot
    """
    from mie.experiments.config import FewShotConfig
    from mie.experiments.fewshot import run_fewshot

    _run(FewShotConfig, run_fewshot, config, output, device, json)


def _run(
    kind: Any, run: Callable[..., Path], path: Path, output: Path | None, device: str | None, as_json: bool
) -> None:
    import json

    from mie.cli._show import print_json, progress_bar
    from mie.cli._signals import end_in_order
    from mie.core.files import folder_lock
    from mie.experiments.config import read_experiment

    end_in_order()
    config = read_experiment(kind, path)
    folder = output or Path("out") / config.name
    with folder_lock(folder), progress_bar(config.name) as bar:
        page = run(config, folder, device=device, note=lambda text: bar(0, 1, text))
    if as_json:
        print_json(json.loads((page.parent / "results.json").read_text(encoding="utf-8")))
    else:
        typer.echo(f"report: {page}")
