"""`mie demo`: the whole loop on real images, in one command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from mie.datasets.dataset import Dataset
    from mie.datasets.recipe import RecipeConfig
    from mie.records import Sample
    from mie.scoring.board import ModelBoard

# The editor that does nothing is the floor of every table, a threshold shows what can be had without
# learning, `compact` is the network that ships with the package. It looks once here, not twice: four times
# faster. A demo has no judge, so modification is scored by pixels alone.
_EDITORS: Final = ("identity", "otsu", "compact,size=256")


def demo(
    output: Path = typer.Option(Path("mie-demo"), "-o", "--output", help="Where the results go."),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
) -> None:
    """Build a dataset from sample images, prove it, run editors on it, score these, write report and board.

    Fetches 55 to 70 MB of sample images once; after that it works offline.

    Example: mie demo -o out/demo
    """
    from mie.cli._show import progress_bar, table
    from mie.report.board import terminal_rows, title_of
    from mie.sources.samples import samples_root

    with progress_bar("sample images") as bar:
        samples_root(lambda name, done, total: bar(done >> 20, (total or 0) >> 20, f"MB of {name}"))
    _make_dataset(output, workers)
    board = _run_and_report(output, [editor for editor in _EDITORS if _can_run(editor)])
    table(title_of(board.passes[0]), *terminal_rows(board, board.passes[0], published=False))
    _ask_questions(output / "questions", workers)
    dataset = output / "dataset"
    typer.echo(
        f"  look at   {output / 'board/index.html'}\n"
        f"            {output / 'report/index.html'}\n"
        f"            {output / 'triplets.png'}\n"
        f"            {output / 'pairs.png'}\n"
        f"            {dataset}/stats/*.png\n"
        f"  read      {dataset / 'README.md'}\n"
        f"  open      python -c \"from datasets import load_dataset; print(load_dataset('{dataset}'))\"\n"
        f"  next      mie sources list; mie build --help"
    )


def _make_dataset(folder: Path, workers: int | None) -> None:
    from mie.cli._show import progress_bar
    from mie.core.files import atomic_write
    from mie.datasets.build import build
    from mie.datasets.dataset import Dataset
    from mie.datasets.recipe import read_recipe
    from mie.datasets.stats import dataset_stats
    from mie.datasets.verify import verify
    from mie.errors import MieError
    from mie.images.png import encode_png
    from mie.report.contact_sheet import contact_sheet, pair_sheet
    from mie.report.stats_plots import write_plots

    with progress_bar("building") as bar:
        config = _with_an_inpainter(read_recipe(Path(__file__).with_name("demo.yaml")))
        build(config, folder / "dataset", workers=workers, progress=lambda at: bar(at.done, at.total))
    with progress_bar("verifying") as bar:
        proof = verify(folder / "dataset", workers=workers, progress=bar)
    if not proof.ok:
        first = proof.problems[0]
        raise MieError(
            f"the dataset has {len(proof.problems)} problems",
            where=first.where,
            found=first.reason,
            fix=f"`mie verify {folder / 'dataset'}` lists them",
        )
    with progress_bar("drawing") as bar:
        dataset = Dataset(folder / "dataset")
        write_plots(dataset_stats(dataset, bar), folder / "dataset" / "stats")
        atomic_write(folder / "triplets.png", encode_png(contact_sheet(_one_of_each(dataset))))
        pairs = [sample for sample in dataset.samples() if sample.task == "removal"]
        atomic_write(folder / "pairs.png", encode_png(pair_sheet(_by_turns(pairs)[:12])))
    counts = dataset.info["counts"]
    kinds = ", ".join(f"{number} of {name}" for name, number in counts["by_perspective"].items())
    typer.echo(
        f"{len(dataset)} triplets ({kinds}) from {len(counts['by_source'])} sample data sets, all sound; "
        f"digest {dataset.digest[:16]}"
    )


def _ask_questions(folder: Path, workers: int | None) -> None:
    """A small set of questions, proved, and one of each task on the terminal."""
    from mie.cli._show import progress_bar
    from mie.errors import MieError
    from mie.questions import QuestionSet, build_questions, read_question_recipe, verify_questions

    with progress_bar("questions: building and verifying") as bar:
        recipe = read_question_recipe(Path(__file__).with_name("demo_questions.yaml"))
        found: QuestionSet = build_questions(
            recipe, folder, workers=workers, progress=lambda at: bar(at.done, at.total)
        )
        proof = verify_questions(folder, workers=workers)
    if not proof.ok:
        first = proof.problems[0]
        raise MieError("the questions have a problem", where=first.where, found=first.reason)
    typer.echo(f"questions: {len(found)} about sample images, {proof.proved} keys recomputed from masks")
    tasks = found.table(["task", "text", "answer", "kind"])
    seen: set[str] = set()
    for task, text, answer, kind in zip(*tasks.values(), strict=True):
        if task not in seen and kind == "closed":
            seen.add(task)
            typer.echo(f"  {task:8}  {text} -> {answer}")
    typer.echo(f"  read      {folder / 'README.md'}\n  next      mie vqa --help\n")


def _with_an_inpainter(config: RecipeConfig) -> RecipeConfig:
    """The recipe; where its inpainter cannot be opened here, with one that needs no network."""
    from mie.errors import ConfigError
    from mie.images.families import family_of
    from mie.perspectives.modification import ModificationConfig
    from mie.perspectives.modification.experts import expert

    recipe = next(maker for maker in config.makers if isinstance(maker, ModificationConfig))
    try:
        for source in config.sources_of(recipe):
            for spec in (*recipe.inpainters, *([recipe.painter] if recipe.health else [])):
                expert(spec, family_of(source.entry.modality) or "")
    except ConfigError as error:
        typer.echo(f"  without   {spec}: {error.what}; exemplar instead, and no painted lesions", err=True)
        plain = recipe.model_copy(update={"inpainter": "exemplar", "health": ()})
        makers = tuple(plain if maker is recipe else maker for maker in config.makers)
        return config.model_copy(update={"perspectives": makers})
    return config


def _can_run(editor: str) -> bool:
    """Whether the packages that an editor needs are here; says so where they are not."""
    from mie.editors import open_editor
    from mie.errors import ConfigError

    try:
        open_editor(editor).close()
    except ConfigError as error:
        typer.echo(f"  without   {editor}: {error.what}; {error.fix}", err=True)
        return False
    return True


def _run_and_report(folder: Path, editors: Sequence[str]) -> ModelBoard:
    """Run and score every editor on the test split, write the report and the board."""
    from mie.cli._show import progress_bar
    from mie.editors.run import run_editor
    from mie.report.board import write_board
    from mie.report.page import write_report
    from mie.scoring.board import read_board
    from mie.scoring.score import score

    runs = [folder / "runs" / editor.partition(",")[0] for editor in editors]
    with progress_bar("editing and scoring") as bar:
        for done, (editor, run) in enumerate(zip(editors, runs, strict=True)):
            bar(done, len(runs), editor)
            run_editor(folder / "dataset", editor, run, split="test")
            score(run)
            bar(done + 1, len(runs), editor)
    with progress_bar("report") as bar:
        write_report(runs, folder / "report", progress=bar)
    board = read_board(runs, "miedb", success={"changed_ssim": 0.9})
    with progress_bar("board") as bar:
        write_board(board, folder / "board", progress=bar)
    return board


def _by_turns(samples: Sequence[Sample]) -> list[Sample]:
    """The first of each data set, then the second of each, and so on."""
    number: Counter[str] = Counter()
    turns = []
    for sample in samples:
        number[sample.source] += 1
        turns.append(number[sample.source])
    return [sample for _, _, sample in sorted(zip(turns, range(len(turns)), samples, strict=True))]


def _one_of_each(dataset: Dataset, at_most: int = 18) -> Iterator[Sample]:
    """The first sample of each data set and perspective, so that the sheet shows the variety."""
    seen: set[tuple[str, str]] = set()
    for sample in dataset.samples():
        key = (sample.source, sample.perspective)
        if key not in seen and len(seen) < at_most:
            seen.add(key)
            yield sample
