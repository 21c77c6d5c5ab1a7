"""`mie vqa`: questions about images; build, import, export, count and prove them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mie.cli.vqa_answers import add_to, show_marks

if TYPE_CHECKING:
    from mie.questions.store import QuestionSet

_SHOWN = 20
app = typer.Typer(
    help="Questions about images: build, verify, import, export; answer, score, report.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def build(
    recipe: Path = typer.Argument(..., help="The recipe, a YAML file.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="The set's folder.", show_default=False),
    engine: str = typer.Option("local", help="Where the work runs: local or ray."),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    limit: int | None = typer.Option(None, min=1, help="At most this many images or volumes per data set."),
    overwrite: bool = typer.Option(False, help="Replace the question set that is in the folder."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Build questions whose answers follow from masks and the catalogue.

    Interrupted at any point, even by kill -9, the same command resumes and ends with the same bytes.

    Example: mie vqa build examples/questions_quickstart.yaml -o out/questions
    """
    from mie.cli._show import progress_bar
    from mie.datasets.build import Progress
    from mie.questions.build import build_questions
    from mie.questions.recipe import read_question_recipe

    config = read_question_recipe(recipe)
    with progress_bar("building") as bar:

        def show(at: Progress) -> None:
            notes = {"scan": f"listing {at.note}", "finish": "comparing images, curating, naming shards"}
            bar(at.done, at.total, notes.get(at.stage, f"{at.kept} questions, {at.refused} rejected"))

        found = build_questions(
            config,
            output,
            engine=engine,
            workers=workers,
            limit=limit,
            overwrite=overwrite,
            isolate=True,
            progress=show,
        )
    _tell(found, json=json)


@app.command()
def verify(
    questions: Path = typer.Argument(..., help="A question set's folder.", show_default=False),
    workers: int | None = typer.Option(None, min=1, help="Processes; all cores by default."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Prove a question set: recompute every key from the stored masks, check digests and splits.

    Example: mie vqa verify out/questions
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.questions.proof import verify_questions

    with progress_bar("verifying") as bar:
        proof = verify_questions(questions, workers=workers, progress=bar)
    if json:
        problems = [asdict(problem) for problem in proof.problems]
        counts = {"questions": proof.questions, "proved": proof.proved}
        print_json({"ok": proof.ok, **counts, "problems": problems})
    elif proof.ok:
        typer.echo(
            f"{questions}: {plural(proof.questions, 'question')}, all sound; {proof.proved:,} keys "
            "recomputed from masks; splits share no patient and no image"
        )
    else:
        shown = [(p.check, p.where, p.reason) for p in proof.problems[:_SHOWN]]
        table(plural(len(proof.problems), "problem"), ("check", "where", "reason"), shown)
    if not proof.ok:
        raise typer.Exit(1)


@app.command()
def stats(
    questions: Path = typer.Argument(..., help="A question set's folder.", show_default=False),
    json: bool = typer.Option(False, "--json", help="Print the numbers as one JSON document."),
) -> None:
    """Count questions by task, modality, kind and letter, and say how far a guess without the image gets.

    Example: mie vqa stats out/questions
    """
    from mie.cli._show import print_json, table
    from mie.questions.stats import question_stats
    from mie.questions.store import QuestionSet

    numbers = question_stats(QuestionSet(questions))
    if json:
        print_json(numbers)
        return
    table("from candidates to the set", ("step", "left", "what"), _rows(numbers["funnel"]))
    tasks = numbers["task_by_modality"]
    names = sorted({name for row in tasks.values() for name in row})
    rows = [(task, sum(row.values()), *(row.get(name, 0) for name in names)) for task, row in tasks.items()]
    table("questions by task and modality", ("task", "all", *names), rows)
    for title in ("kind", "split", "letter", "template", "flag"):
        table(f"by {title}", (title, "n"), list(numbers["counts"][f"by_{title}"].items()))
    guesses = [(name, *values.values()) for name, values in numbers["guessing"].items()]
    table("what a guess gets right", ("guess", "questions", "right", "chance"), guesses)
    if numbers["blind"]:
        show_marks(numbers)


def _rows(funnel: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [(step["step"], step["questions"], step["note"]) for step in funnel]


@app.command("export")
def export_(
    questions: Path = typer.Argument(..., help="A question set's folder.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="A new folder.", show_default=False),
    to: str = typer.Option(
        ..., "--to", help="omnibrain, vlmevalkit, lmms-eval or llava.", show_default=False
    ),
    split: str | None = typer.Option(None, help="Only this split: train, val or test."),
    without: list[str] | None = typer.Option(
        None, help="Leave out questions with this flag: blind, counterfactual, written."
    ),
    only: list[str] | None = typer.Option(None, help="Only questions with this flag."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Write a question set in another tool's format. Masks and evidence stay behind.

    Example: mie vqa export out/questions --to vlmevalkit -o out/vlmevalkit
    """
    from mie.cli._show import plural, print_json
    from mie.questions.formats import export_questions
    from mie.questions.store import QuestionSet

    found = QuestionSet(questions)
    chosen = found if split is None else found.split(split)
    for flag in without or ():
        chosen = chosen.without(flag)
    for flag in only or ():
        chosen = chosen.with_flag(flag)
    files = export_questions(chosen, to, output)
    if json:
        print_json({"folder": str(output), "questions": len(chosen), "files": [str(path) for path in files]})
    else:
        typer.echo(f"{output}: {plural(len(chosen), 'question')} as {to}: {', '.join(p.name for p in files)}")


@app.command("import")
def import_(
    place: Path = typer.Argument(..., help="A file or folder in the other format.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="A new folder.", show_default=False),
    source: str = typer.Option(
        ..., "--from", help="omnibrain, vlmevalkit, lmms-eval or llava.", show_default=False
    ),
    name: str | None = typer.Option(None, help="The set's name; the file's by default."),
    license_name: str = typer.Option("not stated", "--license", help="The terms that the questions come on."),
    deidentified: bool = typer.Option(
        False, "--deidentified", help="You vouch that no patient can be identified in the images."
    ),
    domain: list[str] | None = typer.Option(None, help="Keep questions about this part of the body only."),
    keep: int | None = typer.Option(None, min=1, help="So many questions, spread over tasks and modalities."),
    json: bool = typer.Option(False, "--json", help="Print the result as one JSON document."),
) -> None:
    """Read another tool's questions into a set. Unsound ones are rejected, with the reason.

    Example: mie vqa import out/vlmevalkit --from vlmevalkit -o out/imported
    """
    from mie.cli._show import progress_bar
    from mie.questions.formats import import_questions
    from mie.questions.recipe import CurateConfig

    config = CurateConfig(
        domain=tuple(domain or ()),
        keep=keep,
        near_duplicates=False,
        most_same_answer=1.0,
        most_above_chance=10,
        blind="off",
    )
    with progress_bar("importing") as bar:
        found = import_questions(
            place,
            source,
            output,
            name=name,
            license_name=license_name,
            deidentified=deidentified,
            curate=config,
            progress=lambda done: bar(done, 0),
        )
    _tell(found, json=json)


def _tell(found: QuestionSet, *, json: bool) -> None:
    from mie.cli._show import plural, print_json

    info: Mapping[str, Any] = found.info
    counts = info["counts"]
    if json:
        keys = ("name", "digest", "counts", "rejected", "funnel")
        print_json({"folder": str(found.folder), **{key: info[key] for key in keys}})
    else:
        questions, images = plural(counts["questions"], "question"), plural(counts["images"], "image")
        typer.echo(f"{found.folder} is ready: {questions} about {images}, digest {found.digest[:16]}")
        by_task = ", ".join(f"{task} {n:,}" for task, n in counts["by_task"].items())
        typer.echo(f"  tasks     {by_task}")
    bad = sum(info["rejected"].get(gate, 0) for gate in ("source", "image", "error"))
    if bad:
        typer.echo(f"{plural(bad, 'file or record')} could not be used; rejected.parquet says why", err=True)
        raise typer.Exit(3)


add_to(app)
