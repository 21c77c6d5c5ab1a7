"""What the verbs share in talking to people: progress on stderr, tables and one JSON document on stdout."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from typer.core import TyperCommand

from mie.core.documents import plural as plural
from mie.core.environment import install_hint
from mie.errors import ConfigError

if TYPE_CHECKING:
    from mie.scoring.statistics.people import Rating


# Everything but line breaks and tabs that a terminal acts on, and marks that turn the direction of writing.
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with control characters as `\\u001b`, so that no file can move the cursor."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class PrintableStream:
    """A text stream on which names and texts from files cannot control the terminal.

    What controls it on purpose, a progress bar, is written to `plain(stream)`.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        start = "\r" if text.startswith("\r") else ""  # as the progress bars of other packages begin
        self.stream.write(start + printable(text[len(start) :]))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def plain(stream: TextIO) -> TextIO:
    """The stream under a `PrintableStream`."""
    return stream.stream if isinstance(stream, PrintableStream) else stream


class Bar(Protocol):
    """A progress bar that is told where it stands."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


@contextmanager
def progress_bar(title: str) -> Iterator[Bar]:
    """A live bar with rate and time left on a terminal; a line every few seconds elsewhere."""
    if sys.stderr.isatty():
        with _live(title) as bar:
            yield bar
    else:
        yield _Plain(title)


@contextmanager
def _live(title: str) -> Iterator[Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(file=plain(sys.stderr))) as live:
        task = live.add_task(title, total=None, note="")

        def bar(done: int, total: int, note: str = "") -> None:
            live.update(task, completed=done, total=total or None, note=printable(note))

        yield bar


class _Plain:
    _EVERY = 5.0

    def __init__(self, title: str) -> None:
        self._title = title
        # The last minute says how long the rest takes: what came before may have been another kind of work.
        self._said: deque[tuple[float, int]] = deque(maxlen=12)
        self._started = time.monotonic()

    def __call__(self, done: int, total: int, note: str = "") -> None:
        if not total:
            return
        if not self._said:  # what is done when it starts was done by an earlier run, in a time of its own
            self._said.append((self._started, done))
        now = time.monotonic()
        if now - self._said[-1][0] < self._EVERY:
            return
        since, before = self._said[0]
        text = f"{self._title}: {done}/{total}"
        if done > before:
            text += f", about {(now - since) / (done - before) * (total - done):.0f} s left"
        print(f"{text}. {note}" if note else text, file=sys.stderr, flush=True)
        self._said.append((now, done))


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout."""
    from rich.console import Console
    from rich.table import Table

    # Piped output must not be cut to a guessed width.
    width = None if sys.stdout.isatty() else 160
    shown = Table()
    for at, name in enumerate(header):
        numeric = bool(rows) and all(isinstance(row[at], int | float) for row in rows)
        shown.add_column(printable(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(f"{v:.4g}" if isinstance(v, float) else printable(str(v)) for v in row))
    # Names may hold square brackets: nothing in a table is markup.
    console = Console(file=plain(sys.stdout), width=width, markup=False, highlight=False)
    console.print(printable(title), style="bold")
    console.print(shown)


class EditorHelp(TyperCommand):
    """A command whose help ends with every editor, those of installed packages too."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from mie.editors import editor_summaries  # imports every editor: only where help is asked for

        with formatter.section("Editors"):
            formatter.write_dl(sorted(editor_summaries().items()))
        super().format_epilog(ctx, formatter)


def print_json(document: Any) -> None:
    """One JSON document and nothing else on stdout; what is not a number is null."""
    from mie.core.documents import null_for_nan

    json.dump(null_for_nan(document), sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def show_estimate(found: dict[str, Any]) -> None:
    """What a judge would cost, as `Judge.estimate` says."""
    print(f"{found['model']} at {found['provider']}")
    print(f"calls to make: {found['calls']:,} ({found['already_answered']:,} already answered)")
    print(f"about {found['input_tokens']:,} tokens in, {found['output_tokens']:,} out")
    if found["cost_usd"] is None:
        print("the price of this model is unknown: give a table with --prices FILE")
    else:
        spent = f"; {found['spent_usd']:.2f} spent before" if found["spent_usd"] else ""
        print(f"about {found['cost_usd']:.2f} USD, good to a factor of two{spent}")


def read_people(place: str) -> list[Rating]:
    """Every rating in a review's database, its exports, or any file of ratings."""
    path = Path(place)
    if path.suffix.lower() == ".csv" or (path.suffix.lower() == ".jsonl" and not _is_export(path)):
        from mie.scoring.statistics.people import read_ratings

        return read_ratings(path)
    try:
        from mie.review.export import ratings_in, ratings_of
    except ModuleNotFoundError as error:
        raise ConfigError(f"a review's answers need {error.name}", fix=install_hint("review")) from None
    return ratings_in(path) if path.suffix.lower() == ".jsonl" else ratings_of(place)


def _is_export(path: Path) -> bool:
    """Whether the JSON lines are those of a review: an answer each, not a number each."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    return '"answer"' in first and '"item_version"' in first
