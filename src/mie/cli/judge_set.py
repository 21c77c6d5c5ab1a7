"""`mie judge-set`."""

from __future__ import annotations

from pathlib import Path

import typer


def judge_set(
    runs: list[Path] = typer.Argument(..., help="Run folders whose outputs were graded.", show_default=False),
    output: Path = typer.Option(..., "-o", "--output", help="The folder of the set.", show_default=False),
    human: list[str] = typer.Option(
        [], "--human", help="People's scores: CSV, JSON lines, or a review's database; repeatable."
    ),
    replies: bool = typer.Option(False, "--replies", help="Add what the runs' judges have replied."),
    benchmark: str = typer.Option("imgedit", "--benchmark", "--protocol", help="Whose questions."),
    prompts: str | None = typer.Option(None, "--prompts", help="In which words, as for `mie score`."),
    held_out: float = typer.Option(0.2, help="The share of patients that is held out."),
    seed: int = typer.Option(0, help="Which patients these are."),
    json: bool = typer.Option(False, "--json", help="Print set.json."),
) -> None:
    """Write questions and the replies of people as examples to tune a judge on.

    Example: mie judge-set out/run-a out/run-b --human grades.csv -o out/judge-set
    """
    from mie.cli._show import print_json, read_people, table
    from mie.errors import ConfigError
    from mie.scoring.judge_set import write_judge_set

    if not human and not replies:
        raise ConfigError("no replies", fix="give people's scores with --human, or --replies")
    ratings = [rating for place in human for rating in read_people(place)]
    document = write_judge_set(
        runs,
        output,
        benchmark,
        ratings=ratings,
        replies=replies,
        prompts=prompts,
        held_out=held_out,
        seed=seed,
    )
    if json:
        print_json(document)
        return
    rows = [(name, str(count)) for name, count in document["folds"].items()]
    rows += [(f"from {name}", str(count)) for name, count in document["sources"].items()]
    rows += [("patients", str(document["patients"]))]
    rows += [(f"left out: {why}", str(count)) for why, count in document["without_reply"].items()]
    table(f"{document['examples']} examples for {document['benchmark']}", ("", "examples"), rows)
    typer.echo(f"set: {output}")
