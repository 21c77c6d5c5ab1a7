"""`mie run`."""

from __future__ import annotations

from pathlib import Path

import typer

from mie.cli._show import EditorHelp
from mie.cli._signals import end_in_order

_SHOWN = 5


def run(
    dataset: Path = typer.Argument(..., help="A dataset folder.", show_default=False),
    editor: str = typer.Option(
        ...,
        "-e",
        "--editor",
        help="An editor of the list below: NAME, NAME:ARGUMENT or NAME:ARGUMENT,KEY=VALUE.",
        show_default=False,
    ),
    output: Path = typer.Option(..., "-o", "--output", help="The run's folder.", show_default=False),
    attempts: int = typer.Option(1, min=1, help="Edits per sample, each with its own seed."),
    split: str | None = typer.Option(None, help="train, val or test; all by default."),
    limit: int | None = typer.Option(None, min=1, help="At most this many samples."),
    turns: str = typer.Option(
        "free", help="Conversations: free (from the editor's own last output) or forced (from the reference)."
    ),
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Try the edits that failed again."),
    workers: int | None = typer.Option(
        None, min=1, help="Edits at the same time; by default what the editor declares."
    ),
    batch: int | None = typer.Option(
        None, min=1, help="Edits per batch; by default what the editor declares."
    ),
    engine: str = typer.Option(
        "local", help="Where edits are made: local, or ray (one actor per GPU of a cluster)."
    ),
    deidentified: bool = typer.Option(
        False, "--deidentified", help="You vouch that no patient can be identified in what is sent."
    ),
    redact: bool = typer.Option(False, "--redact", help="Black out burned-in text in what is sent."),
    allow_phi: bool = typer.Option(
        False, "--allow-phi", help="Send even what may identify a patient. This is logged."
    ),
    json: bool = typer.Option(False, "--json", help="Print run.json as one JSON document."),
) -> None:
    """Run an editor over a dataset.

    Interrupted at any point, even by kill -9, the same command resumes the run. An edit that fails is
    recorded with its reason and the run continues; the exit code is then 3, and --retry-failed tries those
    edits again.

    Example: mie run out/quickstart --editor identity -o out/identity

    Example: mie run out/quickstart -e 'command:python my.py {input} {instruction} {output}' -o out/mine

    Example: mie run out/quickstart -e http:http://127.0.0.1:8000/edit,timeout=60 -o out/served --attempts 3
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.editors.run import Progress, run_editor
    from mie.privacy.gate import Policy

    end_in_order()
    with progress_bar("editing") as bar:

        def show(at: Progress) -> None:
            parts = [f"{at.rate:.1f} edits/s", f"{at.failed} failed" if at.failed else ""]
            parts.append(f"{at.earlier} were done before" if at.earlier else "")
            bar(at.done, at.total, ", ".join(part for part in parts if part))

        result = run_editor(
            dataset,
            editor,
            output,
            attempts=attempts,
            split=split,
            limit=limit,
            turns=turns,
            retry_failed=retry_failed,
            workers=workers,
            batch_size=batch,
            engine=engine,
            policy=Policy(deidentified, redact, allow_phi),
            progress=show,
            search_progress=lambda done, total: bar(done, total, "searching for burned-in text"),
        )
    info = result.info
    counts, timings = info["counts"], info["timings"]
    if json:
        print_json({"folder": str(output), **info})
    else:
        edits, samples = plural(counts["done"], "edit"), plural(counts["samples"], "sample")
        typer.echo(
            f"{output} is complete: {edits} of {samples} by "
            f"{info['editor']['spec']}, {timings['seconds']:.1f} s, {timings['edits_per_second']:.1f} edits/s"
        )
    if counts["failed"]:
        if not json:
            reasons: dict[str, int] = {}
            for edit in result.edits().values():
                if edit.state == "failed":
                    reasons[str(edit.reason)] = reasons.get(str(edit.reason), 0) + 1
            common = sorted(reasons.items(), key=lambda item: -item[1])[:_SHOWN]
            table("failed", ("reason", "n"), [(reason[:300], n) for reason, n in common])
        typer.echo(
            f"{plural(counts['failed'], 'edit')} failed; edits.jsonl says why, --retry-failed tries again",
            err=True,
        )
        raise typer.Exit(3)


run.cls = EditorHelp  # type: ignore[attr-defined]
