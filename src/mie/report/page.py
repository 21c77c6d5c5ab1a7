"""`mie report`: a folder with a page that opens from disk, and its tables, plots and pictures as files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from mie.core.files import atomic_write
from mie.errors import ConfigError, MieError
from mie.report import sections
from mie.report.cards import gallery
from mie.report.charts import Chart, distribution_chart, leaderboard_chart, means_chart
from mie.report.gallery import choose, write_pictures
from mie.report.judged import Judged, read_judged
from mie.report.judged_section import HEADINGS, judge_words, judged_section
from mie.report.leaderboard import comparisons, ranked
from mie.report.markup import Markup, join, tag
from mie.report.measures import MAIN, in_order, measure
from mie.report.people import read_people
from mie.report.people_section import people_charts, people_section
from mie.report.scored import PROTOCOL, ScoredRun, read_runs
from mie.report.tables import write_judged_table, write_people_tables, write_tables
from mie.scoring.statistics.people import Rating

Progress = Callable[[int, int], None]
VARIANTS: Final = ("paper", "as_released")
# Nothing but the folder's own files, and no script or style inside the page. On disk the page's origin is
# opaque in some browsers, where 'self' matches nothing: hence file:.
_POLICY: Final = (
    "default-src 'none'; img-src 'self' file:; style-src 'self' file:; script-src 'self' file:; "
    "base-uri 'none'; form-action 'none'"
)
_MARKER: Final = ".mie-report"  # says that the folder is a report of ours and may be written again
_FOLDERS: Final = ("assets", "images", "plots", "tables")
_CHARTED_DOTS: Final = 60  # groups times runs that one chart can hold


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
    runs = ranked(read_runs([Path(folder) for folder in run_folders], variant))
    _same_dataset(runs, force=force)
    people = read_people(ratings, runs, variant) if ratings else None
    judged = read_judged(runs, variant, force=force)
    folder = Path(out)
    _claim(folder)
    write_tables(runs, folder / "tables")
    drawn = _write_charts(runs, folder / "plots")
    said = []
    if people is not None:
        write_people_tables(people, folder / "tables")
        said = [people_section(people, people_charts(people, runs, folder / "plots"))]
    write_judged_table(judged, folder / "tables")
    picks = [choose(run) for run in runs]
    pictures = write_pictures(runs, picks, folder, progress)
    parts = [
        sections.leaderboard(runs, drawn["leaderboard"]),
        *said,
        *(sections.groups(runs, cut, drawn.get(cut, [])) for cut in sections.CHARTED),
        sections.other_groups(runs),
        sections.distributions(drawn["distribution"]),
        sections.compared(comparisons(runs)),
        *(judged_section(one, folder / "plots", [run.name for run in runs]) for one in judged),
        gallery(runs, picks, pictures),
        sections.problems(runs),
        sections.configuration(runs),
        sections.files(["judged.csv"] if judged else []),
    ]
    _write_assets(folder / "assets")
    index = folder / "index.html"
    atomic_write(index, _page(runs, judged, [part for part in parts if part is not None]))
    return index


def _same_dataset(runs: Sequence[ScoredRun], *, force: bool) -> None:
    if len({run.digest for run in runs}) > 1 and not force:
        raise MieError(
            "the runs were made on different datasets",
            expected="one dataset digest",
            found=", ".join(f"{run.name}: {run.digest[:12]}" for run in runs),
            fix="report runs on one dataset, or pass --force to show them side by side all the same",
        )


def _claim(folder: Path) -> None:
    """Make `folder` ours and empty; anything that is not a report is left alone."""
    if folder.exists() and not folder.is_dir():
        raise MieError("the output is not a folder", where=folder, expected="a new folder", found="a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARKER).is_file():
        raise MieError(
            "the output folder holds something else",
            where=folder,
            expected="a new folder, or one with a report of ours",
            fix="choose another folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARKER).touch()
    (folder / "index.html").unlink(missing_ok=True)
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def _write_charts(runs: Sequence[ScoredRun], folder: Path) -> dict[str, list[Chart]]:
    """Every chart by the section it stands in."""
    folder.mkdir()
    names = [run.name for run in runs]
    drawn: dict[str, list[Chart]] = {"leaderboard": [], "distribution": []}
    for key in MAIN:
        cells = {run.name: run.cells[f"{key}@1"] for run in runs if f"{key}@1" in run.cells}
        cells = {name: cell for name, cell in cells.items() if cell.n}
        if cells:
            m = measure(key)
            chart = leaderboard_chart(folder, f"leaderboard_{key}", m.label, m, cells, names)
            drawn["leaderboard"].append(chart)
    for cut in sections.CHARTED:
        by_value = sections.group_cells(runs, cut)
        for key in MAIN:
            rows = {
                value: {name: cells[f"{key}@1"] for name, cells in by_run.items() if f"{key}@1" in cells}
                for value, by_run in by_value.items()
            }
            rows = {v: {n: c for n, c in by_run.items() if c.n} for v, by_run in rows.items()}
            rows = {v: by_run for v, by_run in rows.items() if by_run}
            if rows:
                m, there = measure(key), len(rows)
                rows = dict(list(rows.items())[: max(8, _CHARTED_DOTS // len(runs))])
                caption = f"{m.label} by {cut}"
                if len(rows) < there:
                    caption += f", {len(rows)} largest of {there}"
                drawn.setdefault(cut, []).append(means_chart(folder, f"{cut}_{key}", caption, m, rows, names))
    for key in in_order({key for run in runs for key in run.values} - {"p_acc"}):
        m = measure(key)
        values = {run.name: run.first(key) for run in runs if key in run.values}
        chart = distribution_chart(folder, f"distribution_{key}", m.label, m, values, names)
        drawn["distribution"].append(chart)
    return drawn


def _write_assets(folder: Path) -> None:
    folder.mkdir()
    for name in ("report.css", "report.js"):
        text = resources.files("mie.report").joinpath("assets", name).read_text(encoding="utf-8")
        (folder / name).write_text(text, encoding="utf-8")


def _page(runs: Sequence[ScoredRun], judged: Sequence[Judged], parts: Sequence[Markup]) -> str:
    first = runs[0]
    names = list(dict.fromkeys(str(run.info["dataset"].get("name", "?")) for run in runs))
    title = f"Editing results on {', '.join(names)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content="mie report"),
        tag("title", title),
        tag("link", rel="stylesheet", href="assets/report.css"),
        tag("script", src="assets/report.js", defer=True),
    )
    facts = {
        "Protocols": f"{', '.join(_protocols(runs, judged))}; variant {first.summary['variant']}",
        "Samples": " / ".join(f"{n:,}" for n in sorted(_samples(runs, judged))),
        "Runs": len(runs),
        "Dataset digest": " / ".join(sorted({run.digest[:12] for run in runs})),
    }
    header = tag(
        "header",
        tag("h1", title),
        tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in facts.items()), class_="facts"),
        *(tag("p", note, class_="notice") for note in _notices(runs, judged)),
    )
    links = tag("ul", *(tag("li", tag("a", text, href=f"#{name}")) for name, text in _headings(parts)))
    version = first.info.get("versions", {}).get("mie")
    foot = tag(
        "footer", "Written by mie", f" {version}" if version else "", ". Opens from disk, loads nothing."
    )
    body = tag(
        "body",
        tag("a", "Skip to the results", href=f"#{_headings(parts)[0][0]}", class_="skip"),
        header,
        tag("nav", links, aria_label="Sections"),
        tag("main", *parts),
        foot,
    )
    return "<!doctype html>\n" + join(tag("html", head, body, lang="en")) + "\n"


def _protocols(runs: Sequence[ScoredRun], judged: Sequence[Judged]) -> list[str]:
    first = [PROTOCOL] if any(run.ids for run in runs) else []
    return list(dict.fromkeys([*first, *(one.protocol for one in judged)]))


def _samples(runs: Sequence[ScoredRun], judged: Sequence[Judged]) -> set[int]:
    counts = {len(run.ids) for run in runs if run.ids}
    return counts | {int(found["n_samples"]) for one in judged for found in one.documents.values()} or {0}


def _headings(parts: Sequence[Markup]) -> list[tuple[str, str]]:
    """(id, title) of the sections that are there."""
    titles = {
        "leaderboard": "Leaderboard",
        "people": "People",
        "by-modality": "Modalities",
        "by-target": "Targets",
        "groups": "Groups",
        "distributions": "Distributions",
        "comparisons": "Comparisons",
        **HEADINGS,
        "gallery": "Gallery",
        "coverage": "Coverage",
        "configuration": "Configuration",
        "files": "Files",
    }
    return [
        (name, title) for name, title in titles.items() if any(f'<h2 id="{name}">' in part for part in parts)
    ]


def _notices(runs: Sequence[ScoredRun], judged: Sequence[Judged]) -> list[str]:
    """What a reader must know before comparing two rows."""
    notes = []
    if len({run.digest for run in runs}) > 1:
        notes.append("These runs were made on different datasets: their rows do not compare.")
    elif len({frozenset(run.ids) for run in runs if run.ids}) > 1:
        notes.append(
            "These runs cover different samples of the dataset: their means are not over the same ones."
        )
    for one in judged:
        words = dict.fromkeys(judge_words(judge) for judge in one.judges.values())
        notes += [f"{one.title}: judged by {'; '.join(words)}."] if words else []
        if not one.one_judge:
            notes.append(f"{one.title}: scored by different judges, whose means do not compare.")
    left = {f"{n:,} {name}" for run in runs for name, n in run.summary.get("not_covered", {}).items()}
    if left:
        notes.append(f"Not covered by this protocol: {', '.join(sorted(left))} samples, which need a judge.")
    for run in runs:
        if run.info.get("status") != "complete":
            notes.append(f"The run “{run.name}” is not complete.")
        if run.stale:
            notes.append(f"Edits of “{run.name}” have changed since it was scored: run `mie score` again.")
    return notes
