"""`mie report`: a folder with a page that opens from disk, and its tables, plots and pictures as files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mie.core.files import atomic_write, folder_lock, refuse_foreign, write_errors
from mie.errors import ConfigError, MieError
from mie.report import sections
from mie.report.gallery import gallery
from mie.report.layouts import Layout, layout_of, leading
from mie.report.people import People, people_section, read_people
from mie.report.scored import BenchmarkScores, ScoredRun, Support, benchmarks_of, by_benchmark, read_runs
from mie.report.tables import PEOPLE_FILES, write_judged_table, write_people_tables, write_tables
from mie.report.views import Section, asset, render
from mie.scoring.benchmarks import BENCHMARKS, VARIANTS
from mie.scoring.results import yardstick
from mie.scoring.statistics.people import Rating

Progress = Callable[[int, int], None]
# Nothing but the folder's own files, and no script or style inside the page. On disk the page's origin is
# opaque in some browsers, where 'self' matches nothing: hence file:.
POLICY: Final = (
    "default-src 'none'; img-src 'self' file:; style-src 'self' file:; script-src 'self' file:; "
    "base-uri 'none'; form-action 'none'"
)
_MARKER: Final = ".mie-report"  # says that the folder is a report of ours and may be written again
_FOLDERS: Final = ("assets", "images", "plots", "tables")


def write_report(
    run_folders: Sequence[Path | str],
    out: Path | str,
    *,
    variant: str = "paper",
    force: bool = False,
    ratings: Sequence[Rating] = (),
    progress: Progress | None = None,
) -> Path:
    """Write the report of one or more scored runs to the folder `out`; returns its `index.html`.

    Runs on different datasets, or scored by different judges, are refused unless `force`; the page then says
    so and does not compare them. `ratings` are what people said
    (`mie.scoring.statistics.people.read_ratings`, or of a review `mie.review.export.ratings_of`):
    they get a section and tables of their own.
    """
    if variant not in VARIANTS:
        raise ConfigError("no such variant", expected=" or ".join(VARIANTS), found=variant)
    if not run_folders:
        raise ConfigError("no run to report", expected="one run folder or more")
    runs = read_runs([Path(folder) for folder in run_folders], variant)
    layout = leading(benchmarks_of(runs))
    runs = sections.ranked(runs, layout)
    _check_dataset(runs, force=force)
    people = read_people(ratings, runs, layout) if ratings else None
    benchmarks = _benchmarks(runs)
    if not force:
        _check_judges(benchmarks)
    folder = Path(out)
    with claimed(folder, _MARKER, "a report"):
        files = write_tables(runs, layout, folder / "tables")
        files += write_judged_table(benchmarks, folder / "tables")
        if people is not None:
            write_people_tables(people, folder / "tables")
        write_assets(folder / "assets")
        parts = _sections(runs, layout, benchmarks, people, folder, progress)
        parts += [sections.coverage(runs, layout), sections.configuration(runs), sections.files(files)]
        index = folder / "index.html"
        atomic_write(index, _page(runs, benchmarks, parts))
    return index


def _sections(
    runs: Sequence[ScoredRun],
    layout: Layout,
    benchmarks: Sequence[BenchmarkScores],
    people: People | None,
    folder: Path,
    progress: Progress | None,
) -> list[Section]:
    """Return the sections with numbers, and write their charts and pictures."""
    plots = folder / "plots"
    plots.mkdir()
    parts: list[Section | None] = [sections.leaderboard(runs, layout, plots)] if layout.leads else []
    parts.append(people_section(people, runs, plots, PEOPLE_FILES) if people else None)
    if layout.leads:
        parts += sections.groups(runs, layout, plots)
        parts.append(sections.distributions(runs, layout, plots))
        parts.append(sections.comparisons(by_benchmark(runs, layout.name)))
    for scored in benchmarks:
        said = {} if people is None else people.answers(people_questions(scored.layout.name))
        parts += [sections.benchmark(scored, runs, plots, said), own_section(scored, runs, folder)]
    parts.append(gallery(runs, layout, folder, progress) if layout.leads else None)
    return [part for part in parts if part is not None]


def people_questions(benchmark: str) -> Mapping[str, str]:
    """Return metric -> the question of a review that people answer for it."""
    return BENCHMARKS[benchmark].people if benchmark in BENCHMARKS else {}


def own_section(scored: BenchmarkScores, runs: Sequence[ScoredRun], folder: Path) -> Section | None:
    """Return what a benchmark shows beside its tables; None where it has nothing of the kind."""
    name = scored.layout.name
    make = BENCHMARKS[name].load("section") if name in BENCHMARKS else None
    return None if make is None else make(scored, runs, folder)


def write_assets(folder: Path) -> None:
    """Write the style and the script of the pages."""
    folder.mkdir()
    for name in ("report.css", "report.js"):
        (folder / name).write_text(asset(name), encoding="utf-8")


def _benchmarks(runs: Sequence[ScoredRun]) -> list[BenchmarkScores]:
    """Return the benchmarks that have a section: of the leading one the runs that a judge was asked about."""
    found = []
    for name in benchmarks_of(runs):
        scored = by_benchmark(runs, name)
        if scored.layout.leads:
            scored = scored.only(scored.judges)
        found += [scored] if scored.scores else []
    return found


def _check_dataset(runs: Sequence[ScoredRun], *, force: bool) -> None:
    if len({run.digest for run in runs}) > 1 and not force:
        raise MieError(
            "the runs were made on different datasets",
            expected="one dataset digest",
            found=", ".join(f"{run.name}: {run.digest[:12]}" for run in runs),
            fix="report runs on one dataset, or pass --force to show them side by side all the same",
        )


def _check_judges(benchmarks: Sequence[BenchmarkScores]) -> None:
    for scored in benchmarks:
        if not scored.one_judge:
            raise MieError(
                f"the runs were scored by different judges ({scored.layout.name})",
                expected="one provider, model, set of parameters and prompts",
                found=" / ".join(f"{name}: {yardstick(judge)}" for name, judge in scored.judges.items()),
                fix="score them again with one judge, or pass --force to show them side by side all the same",
            )


@contextmanager
def claimed(folder: Path, marker: str, what: str) -> Iterator[None]:
    """Make `folder` ours, empty and locked; one without our marker that holds anything is left alone."""

    def check() -> None:
        marked = (folder / marker).is_file()
        refuse_foreign(folder, what, lambda _: marked)

    check()  # before the lock, which would leave its file in a folder that is not ours
    with folder_lock(folder), write_errors(folder):
        check()  # another page may have been written since
        (folder / marker).touch()
        (folder / "index.html").unlink(missing_ok=True)
        for name in _FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
        yield


def _page(runs: Sequence[ScoredRun], benchmarks: Sequence[BenchmarkScores], parts: Sequence[Section]) -> str:
    names = dict.fromkeys(str(run.info["dataset"].get("name", "?")) for run in runs)
    protocols = ", ".join(_protocols(runs, benchmarks))
    facts = {
        "Protocols": f"{protocols}; variant {runs[0].variant}",
        "Samples": " / ".join(_samples(runs)),
        "Runs": len(runs),
        "Dataset digest": " / ".join(sorted({run.digest[:12] for run in runs})),
    }
    return render(
        "report.html",
        title=f"Editing results on {', '.join(names)}",
        policy=POLICY,
        facts=facts,
        notices=_notices(runs, benchmarks),
        sections=parts,
        version=runs[0].info.get("versions", {}).get("mie", ""),
    )


def _protocols(runs: Sequence[ScoredRun], benchmarks: Sequence[BenchmarkScores]) -> list[str]:
    leads = [name for name in benchmarks_of(runs) if layout_of(name).leads]
    return list(dict.fromkeys([*leads, *(scored.layout.name for scored in benchmarks)]))


def _samples(runs: Sequence[ScoredRun]) -> list[str]:
    """Return the number of samples with that of their patients; several where the runs differ in them."""
    found: dict[int, Support | None] = {}
    for scores in (scores for run in runs for scores in run.scores.values()):
        number = int(scores.document.get("n_samples", 0))
        if scores.samples:
            number = len(scores.samples.table.ids)
        found[number] = scores.samples.support(scores.samples.rows({})) if scores.samples else None
    return [f"{n:,}" if who is None else f"{n:,} ({who})" for n, who in sorted(found.items())]


def _notices(runs: Sequence[ScoredRun], benchmarks: Sequence[BenchmarkScores]) -> list[str]:
    """Return what a reader must know before comparing two rows."""
    notes = []
    leads = [scores for run in runs for name, scores in run.scores.items() if layout_of(name).leads]
    if len({run.digest for run in runs}) > 1:
        notes.append("These runs were made on different datasets: their rows do not compare.")
    elif len({frozenset(scores.samples.table.ids) for scores in leads if scores.samples}) > 1:
        notes.append(
            "These runs cover different samples of the dataset: their means are not over the same ones."
        )
    for scored in benchmarks:
        title = scored.layout.title
        words = dict.fromkeys(sections.judge_words(judge) for judge in scored.judges.values())
        notes += [f"{title}: judged by {'; '.join(words)}."] if words else []
        if not scored.one_judge:
            notes.append(f"{title}: scored by different judges, whose means do not compare.")
    left = {f"{n:,} {name}" for scores in leads for name, n in scores.document.get("not_covered", {}).items()}
    if left:
        notes.append(f"Not covered by this protocol: {', '.join(sorted(left))} samples, which need a judge.")
    for run in runs:
        if run.info.get("status") != "complete":
            notes.append(f"The run “{run.name}” is not complete.")
        if any(scores.stale for name, scores in run.scores.items() if layout_of(name).leads):
            notes.append(f"Edits of “{run.name}” have changed since it was scored: run `mie score` again.")
    return notes
