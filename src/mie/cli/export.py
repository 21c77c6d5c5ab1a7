"""`mie export`."""

from __future__ import annotations

from pathlib import Path

import typer


def export(
    dataset: Path = typer.Argument(..., help="A dataset folder.", show_default=False),
    format: str = typer.Option(
        ...,
        "-f",
        "--format",
        help="miedb, folder, omnigen2, sharegpt and others.",
    ),
    output: Path = typer.Option(..., "-o", "--output", help="The folder to write.", show_default=False),
    public: bool = typer.Option(False, "--public", help="For others: refuse what may identify a patient."),
    deidentified: bool = typer.Option(
        False, "--deidentified", help="With --public: you vouch that no patient can be identified."
    ),
    redact: bool = typer.Option(
        False, "--redact", help="With --public: black out burned-in text, and replace names by pseudonyms."
    ),
    allow_phi: bool = typer.Option(
        False, "--allow-phi", help="With --public: write even what may identify a patient. This is logged."
    ),
    split: str | None = typer.Option(None, help="Only this split: train, val or test."),
) -> None:
    """Write a dataset in the layout another tool reads.

    Example: mie export out/quickstart -f miedb -o out/quickstart-miedb
    """
    from mie.cli._show import plural, progress_bar
    from mie.datasets.dataset import Dataset
    from mie.datasets.exports import export as run
    from mie.errors import ConfigError
    from mie.privacy.gate import Policy

    if (deidentified or redact or allow_phi) and not public:
        raise ConfigError("--deidentified, --redact and --allow-phi need --public")
    policy = Policy(deidentified, redact, allow_phi) if public else None

    with progress_bar("exporting") as bar:
        count = run(Dataset(dataset), output, format, split=split, public=policy, progress=bar)
    typer.echo(f"{output}: {plural(count, 'sample')} in the {format} layout")
