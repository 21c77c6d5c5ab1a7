"""`mie pack`."""

from __future__ import annotations

from pathlib import Path

import typer


def pack(
    datasets: list[Path] = typer.Argument(..., help="Dataset folders.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="The pack's folder.", show_default=False),
    longest: int = typer.Option(512, min=32, help="Scale images down to this longer side."),
    lossy: int | None = typer.Option(
        None, min=1, max=100, help="WebP quality of images without an exact goal; lossless by default."
    ),
    validation: float = typer.Option(
        0.1, min=0.0, max=0.9, help="Share of the patients kept for validation."
    ),
    seed: int = typer.Option(0, help="Draws the patients for validation."),
    wordings: int = typer.Option(24, min=1, help="At most this many wordings of one instruction."),
    split: str = typer.Option("train", help="The split to pack; use val or test to evaluate."),
    only: str | None = typer.Option(None, help="Write only this perspective; all datasets are compared."),
    workers: int | None = typer.Option(None, min=1, help="Processes for verifying; all cores by default."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Pack the train splits of datasets for training, also on another machine.

    Example: mie pack out/quickstart -o out/pack

    Example: mie pack out/quickstart --split test -o out/test-pack
    """
    from mie.cli._show import print_json, progress_bar, table
    from mie.core.registry import unknown_name
    from mie.datasets.verify import verify
    from mie.errors import ConfigError, MieError
    from mie.training.pack import part_of, refuse_occupied, write_pack
    from mie.training.pack_datasets import pack_datasets
    from mie.vocabulary import PERSPECTIVES, SPLITS

    if split not in SPLITS:
        raise ConfigError(f"no split named {split!r}", expected=", ".join(SPLITS))
    if only is not None and only not in PERSPECTIVES:
        raise unknown_name("perspective", only, PERSPECTIVES)
    refuse_occupied(output)
    for folder in datasets:
        with progress_bar(f"verifying {folder}") as bar:
            result = verify(folder, workers=workers, progress=bar)
        if not result.ok:
            first = result.problems[0]
            text = f"{first.check}, {first.where}: {first.reason}"
            raise MieError(
                "the dataset fails `mie verify`",
                where=folder,
                found=f"{len(result.problems)} problems, the first: {text}",
                fix=f"`mie verify {folder}` lists them; build it again",
            )
    with progress_bar("packing") as bar:
        packed = pack_datasets(
            datasets,
            longest=longest,
            validation=validation,
            seed=seed,
            wordings=wordings,
            split=split,
            progress=bar,
        )
    if only is not None:
        packed = part_of(packed, lambda row: row.perspective == only)
    with progress_bar("writing") as bar:
        info = write_pack(output, packed, lossy=lossy, progress=bar)
    size = sum(path.stat().st_size for path in output.iterdir())
    if json:
        print_json({"folder": str(output), "bytes": size, **info})
        return
    typer.echo(f"{output}: {size / 2**20:.1f} MiB, digest {info['digest'][:16]}")
    labels = {"asks": "instructions"}  # by its name in pack.json
    rows = [(labels.get(name, name), count) for name, count in info["counts"].items()]
    table("the pack", ("what", "n"), rows)
