"""`mie vqa run`, `score`, `report`, `people`, `write` and `accept`: what is done with a question set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from mie.judges import JudgeOptions
    from mie.scoring.results import Results

_OUTPUT = typer.Option(..., "-o", "--output", help="The new folder.", show_default=False)
_JSON = typer.Option(False, "--json", help="Print the result as one JSON document.")
_LIMIT = typer.Option(None, min=0, help="Stop asking before this many US dollars are spent on this run.")
_PRICES = typer.Option(None, help="Your price table; see docs/reference/judges.md.")
_DRY_RUN = typer.Option(False, "--dry-run", help="Say how many calls it takes and about what cost.")
_REMOTE = typer.Option(
    False, "--allow-remote", help="The model may be on another machine, and is sent images or words."
)
_DEIDENTIFIED = typer.Option(
    False, "--deidentified", help="You vouch that no patient can be identified in what is sent."
)
_REDACT = typer.Option(False, "--redact", help="Black out text and faces in what is sent.")
_PHI = typer.Option(False, "--allow-phi", help="Send even what may identify a patient. This is logged.")
_CONCURRENCY = typer.Option(16, min=1, help="Most calls at a time.")
_PROMPTS = typer.Option(None, "--prompts", help="Your own words: a folder, a file, or ID=FILE.")
_SET = typer.Argument(..., help="A question set's folder.", show_default=False)


def run(
    questions: Path = _SET,
    answerer: str = typer.Option(
        ...,
        "-a",
        "--answerer",
        help="constant, prior, text-only, openai:MODEL, local:FOLDER, replay:FILE, command:PROGRAM "
        "{request}. text-only:MODEL withholds the images from a model.",
        show_default=False,
    ),
    output: Path = _OUTPUT,
    split: str | None = typer.Option("test", help="train, val, test, or all."),
    form: str = typer.Option("direct", help="direct: the answer alone; reasoning: steps, then the answer."),
    blind: bool = typer.Option(False, "--blind", help="Ask each question once more without its images."),
    orders: int = typer.Option(0, min=0, max=9, help="Ask closed questions in so many other orders too."),
    limit: int | None = typer.Option(None, min=1, help="At most this many questions."),
    name: str | None = typer.Option(None, help="What tables call the answerer."),
    prompts: str | None = _PROMPTS,
    cost_limit: float | None = _LIMIT,
    prices: Path | None = _PRICES,
    dry_run: bool = _DRY_RUN,
    allow_remote: bool = _REMOTE,
    deidentified: bool = _DEIDENTIFIED,
    redact: bool = _REDACT,
    allow_phi: bool = _PHI,
    concurrency: int = _CONCURRENCY,
    engine: str = typer.Option(
        "local", help="Where answers are made: local, or ray (one actor per GPU of a cluster)."
    ),
    workers: int | None = typer.Option(
        None, min=1, help="Calls at a time, in place of --concurrency; with --engine ray actors."
    ),
    json: bool = _JSON,
) -> None:
    """Answer a question set. Killed at any point, the same command resumes; no answer is paid twice.

    Example: mie vqa run out/questions -a prior -o out/prior --blind
    """
    from mie.cli._show import print_json, progress_bar, show_estimate
    from mie.questions.answers import answer_questions, estimate_answers
    from mie.questions.store import QuestionSet

    options = _options(
        "", prompts, cost_limit, prices, allow_remote, deidentified, redact, allow_phi, concurrency
    )
    found = QuestionSet(questions)
    part = found if split in (None, "all") else found.split(str(split))
    asked: dict[str, Any] = {
        "form": form,
        "blind": blind,
        "orders": orders,
        "limit": limit,
        "options": options,
    }
    if dry_run:
        cost = estimate_answers(part, answerer, output, **asked)
        print_json(cost) if json else show_estimate(cost)
        return
    with progress_bar("answers") as bar:
        answers = answer_questions(
            part, answerer, output, name=name, engine=engine, workers=workers, progress=bar, **asked
        )
    counts = answers.info["counts"]
    if json:
        print_json({"folder": str(output), "status": answers.info["status"], "counts": counts})
    else:
        for way, states in counts.items():
            typer.echo(f"{way}: " + ", ".join(f"{number:,} {state}" for state, number in states.items()))
    if not answers.complete:
        typer.echo("some questions have no reply; run the same command again to ask for them", err=True)
        raise typer.Exit(3)


def score(
    runs: list[Path] = typer.Argument(..., help="Folders of answers.", show_default=False),
    variant: str = typer.Option(
        "paper", help="paper (a strict reader) or as_released (with the released script's fallback)."
    ),
    judge: str | None = typer.Option(None, help="A model that says whether an open answer is right."),
    bertscore: str | None = typer.Option(
        None, help="An encoder's folder: FOLDER,layer=40,baseline=0.7; nothing is downloaded."
    ),
    questions: Path | None = typer.Option(None, help="The set's folder, where it was moved."),
    prompts: str | None = _PROMPTS,
    cost_limit: float | None = _LIMIT,
    prices: Path | None = _PRICES,
    dry_run: bool = _DRY_RUN,
    allow_remote: bool = _REMOTE,
    concurrency: int = _CONCURRENCY,
    json: bool = _JSON,
) -> None:
    """Score answers by `omnibrain`, and print them as one table with intervals over patients.

    Example: mie vqa score out/prior out/text-only
    """
    from mie.cli._show import print_json, progress_bar, show_estimate
    from mie.errors import ConfigError
    from mie.questions.scoring.score import estimate_judge, score_answers

    options = judge and _options(
        judge, prompts, cost_limit, prices, allow_remote, False, False, False, concurrency
    )
    if dry_run:
        if not options:
            raise ConfigError("a dry run needs a judge", fix="name one with --judge")
        from dataclasses import replace

        for folder in runs:
            cost = estimate_judge(folder, replace(options, dry_run=True), variant=variant)
            print_json(cost) if json else show_estimate(cost)
        return
    scored = []
    for folder in runs:
        with progress_bar(f"scoring {folder.name}") as bar:
            scored.append(
                score_answers(
                    folder,
                    variant=variant,
                    judge=options or None,
                    bertscore=bertscore,
                    questions=questions,
                    progress=bar,
                )
            )
    if json:
        documents = [dict(results.document) for results in scored]
        print_json(documents[0] if len(documents) == 1 else documents)
    else:
        _show(scored)


def blind(
    questions: Path = _SET,
    runs: list[Path] | None = typer.Argument(
        None, help="Runs of text-only answerers, or runs with --blind.", show_default=False
    ),
    votes: int = typer.Option(1, min=1, help="Mark what so many of the runs got right."),
    clear: bool = typer.Option(False, "--clear", help="Take back all marks by runs."),
    json: bool = _JSON,
) -> None:
    """Mark the questions that runs got right without the images. The set's digest stays as it is.

    Name all runs at once: their marks replace earlier ones. A text-only run with --orders marks what it got
    right in every order, so that luck marks few.

    Example: mie vqa blind out/questions out/text-only
    """
    from mie.cli._show import print_json
    from mie.errors import ConfigError
    from mie.questions.blind import mark_blind
    from mie.questions.stats import question_stats
    from mie.questions.store import QuestionSet

    if clear == bool(runs):
        raise ConfigError("name the runs that mark questions, or --clear", expected="one of the two")
    found = QuestionSet(questions)
    mark_blind(found, runs or [], votes=votes)
    numbers = question_stats(found)
    if json:
        keys = ("blind", "blind_by_task", "blind_evidence")
        print_json({"folder": str(questions), **{key: numbers[key] for key in keys}})
    else:
        show_marks(numbers)


def show_marks(numbers: Mapping[str, Any]) -> None:
    """Which share of each task needs no image, and who says so."""
    from mie.cli._show import table

    rows = [(task, *values.values()) for task, values in numbers["blind_by_task"].items()]
    table("closed test questions answered without the image", ("task", "closed", "marked", "share"), rows)
    evidence = numbers["blind_evidence"]
    who = [("the build's guess from other patients' answers", "", "", "", evidence["built"], "")]
    who += [
        (
            one["answerer"],
            ", ".join(one["models"]),
            one["run"],
            ", ".join(one["passes"]),
            one["right"],
            one["by_luck"],
        )
        for one in evidence["runs"]
    ]
    table("marked by", ("answerer", "model", "run", "passes", "right", "by luck"), who)


def report(
    runs: list[Path] = typer.Argument(..., help="Scored folders of answers.", show_default=False),
    output: Path = _OUTPUT,
    variant: str = typer.Option("paper", help="Which scores: paper or as_released."),
    questions: Path | None = typer.Option(None, help="The set's folder, where it was moved."),
) -> None:
    """Write a page with tables, radar, heat map and examples that opens from disk.

    Example: mie vqa report out/prior out/text-only -o out/answers
    """
    from mie.cli._show import progress_bar
    from mie.report.questions import write_question_report

    with progress_bar("examples") as bar:
        page = write_question_report(runs, output, variant=variant, questions=questions, progress=bar)
    typer.echo(f"report: {page}")


def people(
    questions: Path = _SET,
    review: str = typer.Option(..., "--review", help="The database of `mie review`.", show_default=False),
    output: Path = _OUTPUT,
    name: str = typer.Option("physicians", help="What tables call them."),
) -> None:
    """Turn what people answered in `mie review --kind answer` into answers to be scored beside models.

    Example: mie vqa people out/questions --review out/questions-review/review.sqlite -o out/people
    """
    from mie.cli._show import plural
    from mie.review.questions import people_answers

    answers = people_answers(review, questions, output, name=name)
    given = sum(answers.info["counts"].values())
    raters = plural(len(answers.info["people"]["raters"]), "rater")
    typer.echo(f"{output}: {plural(given, 'answer')} of {raters}")


def write(
    findings: Path = typer.Argument(
        ...,
        help="Findings: JSON lines with text and images, or a question set whose keys are facts.",
        show_default=False,
    ),
    output: Path = _OUTPUT,
    writer: str = typer.Option(
        ..., "--writer", help="The model that writes: openai:MODEL, ...", show_default=False
    ),
    second: str = typer.Option(..., "--second", help="Another model that checks.", show_default=False),
    tasks: str = typer.Option("", help="Of AFU, PMC, RS, PFA, CSP, DRP, PA, TPS, POA; all by default."),
    consistency: int = typer.Option(2, min=1, max=4, help="Times that the writer answers its own question."),
    limit: int | None = typer.Option(None, min=1, help="Findings of at most so many cases."),
    name: str | None = typer.Option(None, help="The set's name; the folder's by default."),
    prompts: str | None = _PROMPTS,
    cost_limit: float | None = _LIMIT,
    prices: Path | None = _PRICES,
    dry_run: bool = _DRY_RUN,
    allow_remote: bool = _REMOTE,
    deidentified: bool = _DEIDENTIFIED,
    redact: bool = _REDACT,
    allow_phi: bool = _PHI,
    concurrency: int = _CONCURRENCY,
    json: bool = _JSON,
) -> None:
    """Have a language model write questions that masks cannot prove; they count once people accept them.

    Example: mie vqa write out/questions -o out/written --writer local:a --second local:b --limit 5
    """
    from mie.cli._show import plural, print_json, progress_bar, show_estimate
    from mie.questions.store import MARKER, QuestionSet
    from mie.questions.written import WRITTEN_TASKS, Writing, estimate_writing, read_findings, write_written

    both = [
        _options(
            spec, prompts, cost_limit, prices, allow_remote, deidentified, redact, allow_phi, concurrency
        )
        for spec in (writer, second)
    ]
    chosen = tuple(task.strip() for task in tasks.split(",") if task.strip()) or WRITTEN_TASKS
    writing = Writing(both[0], both[1], chosen, consistency)
    found = read_findings(findings)[:limit]
    dataset = QuestionSet(findings).info if (findings / MARKER).is_file() else None
    if dry_run:
        costs = estimate_writing(found, writing, output)
        if json:
            print_json(costs)
        else:
            for cost in costs.values():
                show_estimate(cost)
        return
    with progress_bar("questions") as bar:
        info = write_written(found, writing, output, name=name or output.name, dataset=dataset, progress=bar)
    if json:
        print_json(info)
    else:
        rejected = sum(info["rejected"].values())
        typer.echo(f"{output}: {plural(info['counts']['questions'], 'question')}; {rejected:,} rejected")
        typer.echo(f"check them with `mie review {output} --kind question`: until then they do not count")


def accept(
    questions: Path = _SET,
    review: str = typer.Option(..., "--review", help="The database of `mie review`.", show_default=False),
    output: Path = _OUTPUT,
) -> None:
    """Write the set anew: questions that people accepted in `mie review --kind question` count.

    Example: mie vqa accept out/written --review out/written-review/review.sqlite -o out/accepted
    """
    from mie.review.questions import accept_questions

    info = accept_questions(review, questions, output)
    counts = info["recipe"]["reviewed"]["counts"]
    typer.echo(f"{output}: " + ", ".join(f"{number:,} {verdict}" for verdict, number in counts.items()))


def _options(
    spec: str,
    prompts: str | None,
    cost_limit: float | None,
    prices: Path | None,
    allow_remote: bool,
    deidentified: bool,
    redact: bool,
    allow_phi: bool,
    concurrency: int,
) -> JudgeOptions:
    from mie.judges import JudgeOptions

    return JudgeOptions(
        spec,
        cost_limit=cost_limit,
        prices=None if prices is None else str(prices),
        allow_remote=allow_remote,
        deidentified=deidentified,
        redact=redact,
        allow_phi=allow_phi,
        concurrency=concurrency,
        prompts=prompts,
    )


def _show(scored: Sequence[Results]) -> None:
    """One row for each run: means with intervals, and how many have a number."""
    from mie.cli._show import table
    from mie.questions.scoring.metrics import METRICS, NOT_MARKED

    there = [name for name in METRICS if any(f"{name}@1" in results.keys for results in scored)]
    marked = any(_group(results, "marked", NOT_MARKED) for results in scored)
    rows = []
    for results in scored:
        row = [str(results.document["answerer"]["name"])]
        for name in there:
            mean = results[name] if f"{name}@1" in results.keys else None
            row.append("" if mean is None else f"{mean} {mean.interval} {mean.coverage}".replace("  ", " "))
        macro = results.document["macro"].get("accuracy")
        row.insert(2, "" if macro is None else METRICS["accuracy"].show(macro["mean"]))
        if marked:
            rest = _group(results, "marked", NOT_MARKED).get("accuracy@1")
            row.insert(3, "" if rest is None else f"{METRICS['accuracy'].show(rest['mean'])} ({rest['n']:,})")
        rows.append(row)
    head = [METRICS[name].label for name in there]
    head.insert(1, "Mean of tasks")
    if marked:
        head.insert(2, "Not marked blind")
    table(f"{scored[0].name}, {scored[0].variant}", ("answerer", *head), rows)
    for results in scored:
        for metric, reasons in results.document["reasons"].items():
            words = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items())
            if metric in ("accuracy", "number", "place", "exact", "judged"):
                typer.echo(
                    f"{results.document['answerer']['name']}, {METRICS[metric].label} unscored: {words}"
                )


def _group(results: Results, key: str, value: str) -> Mapping[str, Any]:
    """The metrics of one group of questions; empty where there is no such group."""
    groups = results.document["groups"]
    return next((one["metrics"] for one in groups if one["group"] == {key: value}), {})


def add_to(app: typer.Typer) -> None:
    """Give the commands to `mie vqa`."""
    for command in (run, score, blind, report, people, write, accept):
        app.command()(command)
