"""`mie run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    demonstrations: int = typer.Option(
        0, min=0, help="Show each edit so many other samples of its task, before and after."
    ),
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Try the edits that failed again."),
    retry_refused: bool = typer.Option(
        False, "--retry-refused", help="Try the edits that the model declined again."
    ),
    workers: int | None = typer.Option(
        None, min=1, help="Edits at the same time; by default what the editor declares."
    ),
    batch: int | None = typer.Option(
        None, min=1, help="Edits per batch; by default what the editor declares."
    ),
    engine: str = typer.Option(
        "local", help="Where edits are made: local, or ray (one actor per GPU of a cluster)."
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Say what would be sent where, and about what cost; send nothing."
    ),
    allow_remote: bool = typer.Option(
        False, "--allow-remote", help="The editor may send images to another machine."
    ),
    deidentified: bool = typer.Option(
        False, "--deidentified", help="You vouch that no patient can be identified in what is sent."
    ),
    redact: bool = typer.Option(False, "--redact", help="Black out text and faces in what is sent."),
    allow_phi: bool = typer.Option(
        False, "--allow-phi", help="Send even what may identify a patient. This is logged."
    ),
    json: bool = typer.Option(False, "--json", help="Print run.json as one JSON document."),
) -> None:
    """Run an editor over a dataset.

    Interrupted at any point, even by kill -9, the same command resumes the run. An edit that fails, or that
    the model declines, is recorded with its reason and the run continues; the exit code is then 3.
    --retry-failed and --retry-refused try those edits again.

    Example: mie run out/quickstart --editor identity -o out/identity

    Example: mie run out/quickstart -e 'command:python my.py {input} {instruction} {output}' -o out/mine

    Example: mie run out/quickstart -e http:http://127.0.0.1:8000/edit,timeout=60 -o out/served --attempts 3

    Example: mie run out/quickstart -e openai:gpt-image-1,size=1024x1024,quality=low -o out/gpt --dry-run
    """
    from mie.cli._show import plural, print_json, progress_bar, table
    from mie.editors.run import Progress, preview_run, run_editor
    from mie.privacy.gate import Policy

    if dry_run:
        found = preview_run(
            dataset,
            editor,
            output,
            attempts=attempts,
            split=split,
            limit=limit,
            turns=turns,
            demonstrations=demonstrations,
            retry_failed=retry_failed,
            retry_refused=retry_refused,
        )
        print_json(found) if json else _show_preview(found)
        return
    end_in_order()
    with progress_bar("editing") as bar:

        def show(at: Progress) -> None:
            parts = [f"{at.rate:.1f} edits/s", f"{at.failed} failed" if at.failed else ""]
            parts.append(f"{at.refused} refused" if at.refused else "")
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
            demonstrations=demonstrations,
            retry_failed=retry_failed,
            retry_refused=retry_refused,
            workers=workers,
            batch_size=batch,
            engine=engine,
            policy=Policy(deidentified, redact, allow_phi, allow_remote),
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
            + (f", {info['cost_usd']:.2f} USD" if "cost_usd" in info else "")
        )
    without = {state: counts[state] for state in ("failed", "refused") if counts.get(state)}
    if not without:
        return
    edits_made = [] if json else result.edits().values()
    for state, count in without.items():
        reasons = Counter(str(edit.reason)[:300] for edit in edits_made if edit.state == state)
        if reasons:
            table(state, ("reason", "n"), reasons.most_common(_SHOWN))
        again = f"edits.jsonl says why, --retry-{state} tries again"
        typer.echo(f"{plural(count, 'edit')} {state}; {again}", err=True)
    raise typer.Exit(3)


def _show_preview(found: Mapping[str, Any]) -> None:
    from mie.cli._show import plural

    typer.echo(f"{found['editor']}: {plural(found['edits'], 'edit')} to make")
    if found["destination"] is None:
        typer.echo("nothing leaves this machine")
        return
    megabytes = found["bytes"] / 2**20
    images, texts = plural(found["images"], "image"), plural(found["instructions"], "different instruction")
    typer.echo(f"to {found['destination']}: {images} and {texts}, {megabytes:.1f} MiB in all")
    cost = found["cost_usd"]
    typer.echo(
        "the cost is unknown; editors of providers take price=, in US dollars per image"
        if cost is None
        else f"about {cost:.2f} USD, without retries"
    )


run.cls = EditorHelp  # type: ignore[attr-defined]
