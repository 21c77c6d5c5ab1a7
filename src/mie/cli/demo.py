"""`mie demo`: the whole loop on real images, in one command."""

from __future__ import annotations

from pathlib import Path

import typer


def demo(
    output: Path = typer.Option(Path("mie-demo"), "-o", "--output", help="Where the results go."),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
) -> None:
    """Build a dataset from sample images, prove it, run two editors on it, score them, write the report.

    Fetches about 55 MB of sample images once; after that it works offline.

    Example: mie demo -o out/demo
    """
    from mie.building.build import build
    from mie.building.config import read_recipe
    from mie.building.verify import verify
    from mie.cli._show import progress_bar
    from mie.images.files import atomic_write
    from mie.images.png import encode_png
    from mie.protocols import score
    from mie.report.contact_sheet import contact_sheet
    from mie.report.page import write_report
    from mie.report.stats_plots import write_plots
    from mie.running import run_editor
    from mie.sources.samples import samples_root
    from mie.store.dataset import Dataset
    from mie.store.stats import dataset_stats

    with progress_bar("1/6 sample images") as bar:
        samples_root(lambda name, done, total: bar(done >> 20, (total or 0) >> 20, f"MB of {name}"))
    dataset = output / "dataset"
    with progress_bar("2/6 building") as bar:
        config = read_recipe(Path(__file__).with_name("demo.yaml"))
        result = build(config, dataset, workers=workers, progress=lambda at: bar(at.done, at.total))
    with progress_bar("3/6 verifying") as bar:
        proof = verify(dataset, workers=workers, progress=bar)
    with progress_bar("4/6 drawing") as bar:
        opened = Dataset(dataset)
        plots = write_plots(dataset_stats(opened, bar), dataset / "stats")
        sheet = output / "triplets.png"
        atomic_write(sheet, encode_png(contact_sheet(_one_per_target(opened))))
    runs = [output / "runs" / name for name in _EDITORS]
    with progress_bar("5/6 editing and scoring") as bar:
        for done, (name, run) in enumerate(zip(_EDITORS, runs, strict=True)):
            bar(done, len(runs), name)
            run_editor(dataset, name, run, split="test")
            score(run)
    with progress_bar("6/6 report") as bar:
        page = write_report(runs, output / "report", progress=bar)
    counts = result.info["counts"]
    typer.echo(
        f"\n{counts['samples']} triplets from {len(counts['by_source'])} sample data sets, "
        f"{'all sound' if proof.ok else f'{len(proof.problems)} problems'}; digest {opened.digest[:16]}\n\n"
        f"  look at   {page}\n"
        f"            {sheet}\n"
        f"            {plots[0].parent}/*.png\n"
        f"  read      {dataset / 'README.md'}\n"
        f"  open      python -c \"from datasets import load_dataset; print(load_dataset('{dataset}'))\"\n"
        f"  next      mie sources list; mie build --help"
    )
    if not proof.ok:
        raise typer.Exit(1)


# What does nothing, and what a threshold can do: the floor for every editor.
_EDITORS = ("identity", "otsu")


def _one_per_target(dataset, at_most: int = 12):  # type: ignore[no-untyped-def]
    """The first sample of each kind of picture, so that the sheet shows the variety."""
    seen: set[tuple[str, str]] = set()
    for sample in dataset.samples():
        key = (sample.source, sample.task)
        if key not in seen and len(seen) < at_most:
            seen.add(key)
            yield sample
