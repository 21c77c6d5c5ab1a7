"""`mie train`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer


def train(
    config: Path = typer.Argument(..., help="The training file, YAML.", show_default=False),
    output: Path | None = typer.Option(
        None, "-o", "--output", help="The training's folder; out/NAME by default.", show_default=False
    ),
    device: str | None = typer.Option(None, help="cpu or cuda; a GPU by default where there is one."),
    stop_after: float | None = typer.Option(
        None, "--stop-after", min=0, help="Stop with a checkpoint after this many seconds."
    ),
    profile: int = typer.Option(0, min=0, help="Time this many steps by phase and show the shares."),
    processes: int = typer.Option(
        1,
        min=1,
        max=64,
        help="Processes on this machine, one for each GPU; torchrun serves several machines.",
    ),
    json: bool = typer.Option(False, "--json", help="Print train.json as one JSON document."),
) -> None:
    """Train an editor, a lesion detector or an inpainter.

    The training is resumed by running the same command again, even after kill -9, and ends with the weights
    of an uninterrupted run. With --stop-after the exit code is 3 while steps are left. For the GPUs of one
    machine give --processes; for several machines put `torchrun ... -m` before the command.

    Example: mie train examples/segmenter.yaml -o out/segmenter

    Example: mie train examples/omnigen2.yaml -o out/omnigen2 --processes 8
    """
    from contextlib import nullcontext

    from mie.cli._show import print_json, progress_bar
    from mie.cli._signals import end_in_order
    from mie.core.environment import install_hint
    from mie.errors import MieError
    from mie.training.config import read_config

    end_in_order()
    parsed = read_config(config)
    folder = output or Path("out") / parsed.name
    if processes > 1 and "RANK" not in os.environ:
        from mie.training.launch import launch

        options = {"-o": folder, "--device": device, "--stop-after": stop_after, "--profile": profile or None}
        given = [text for name, value in options.items() if value is not None for text in (name, str(value))]
        raise typer.Exit(
            launch(["train", str(config), *given, *(["--json"] if json else [])], processes, folder)
        )
    try:
        from mie.training import machine
        from mie.training.loop import Progress
        from mie.training.loop import train as run
        from mie.training.trainee import make_trainee
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("torch", "accelerate", "safetensors"):
            raise
        raise MieError("training needs PyTorch", found=error, fix=install_hint("models")) from None

    main = machine.rank() == 0  # only one of several processes prints
    with progress_bar("training") if main else nullcontext(lambda *_: None) as bar:

        def show(at: Progress) -> None:
            bar(at.step - at.first, at.steps - at.first, _note(at))
            if at.warning:
                typer.echo(f"warning: step {at.step}: {at.warning}", err=True)

        result = run(parsed, folder, device=device, stop_after=stop_after, profile=profile, progress=show)
    if not main:
        return
    info = result.info
    if json:
        extra = {"profile": result.profile} if result.profile else {}
        print_json({"folder": str(folder), **info, **extra})
    else:
        if result.profile:
            _show_profile(result.profile)
        typer.echo(_summary(folder, info, make_trainee(parsed).product))
    if not result.complete:
        typer.echo("run the same command again to resume", err=True)
        raise typer.Exit(3)


def _note(at: Any) -> str:
    if at.note:
        return str(at.note)
    parts = [f"step {at.step} of {at.steps}"]
    parts.append("loss -" if at.loss is None else f"loss {at.loss:.4g}")
    parts.append(f"{at.images_per_second:.0f} images/s")
    parts.append(f"{at.memory_gib:.1f} GiB" if at.memory_gib is not None else "")
    return ", ".join(part for part in parts if part)


def _summary(folder: Path, info: dict[str, Any], product: str) -> str:
    best = info["best"]
    chosen = f"best {best['score']} {best['value']:.4g} at step {best['step']}" if best else "nothing scored"
    if info["status"] == "complete":
        return f"{folder / product} is ready: {info['step']} steps, {info['seconds']:.0f} s, {chosen}"
    return f"{folder}: stopped after step {info['step']} of {info['config']['steps']}, {chosen}"


def _show_profile(profile: dict[str, Any]) -> None:
    from mie.cli._show import table

    rows = [(name, one["ms"], f"{one['share']:.1%}") for name, one in profile["phases"].items()]
    tflops = "" if profile["tflops"] is None else f", {profile['tflops']:.1f} TFLOP/s"
    if profile["utilisation"] is not None:
        tflops += f", {profile['utilisation']:.1%} of the measured {profile['peak_tflops']:.0f}"
    title = f"{profile['steps']} steps: {profile['images_per_second']:.0f} images/s{tflops}"
    table(title, ("phase", "ms a step", "share"), rows)
