"""Run against run: paired differences on the samples both were scored on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mie.analysis.compare import compare_runs, judges_differ
from mie.report.markup import Markup, join, tag
from mie.report.measures import MAIN, Measure, measure
from mie.report.scored import PROTOCOL, ScoredRun


def comparisons(runs: Sequence[ScoredRun]) -> list[tuple[Measure, list[Any]]]:
    """Per measure of the published table every pair of runs; nothing across datasets or judges."""
    if len(runs) < 2 or len({run.digest for run in runs}) > 1:
        return []
    variant = runs[0].summary["variant"]
    files = {run.name: run.folder / "scores" / f"{PROTOCOL}.{variant}.jsonl" for run in runs}
    found = []
    judges = [run.summary.get("judge") or {} for run in runs]
    several = judges_differ(judges)
    for key in MAIN:
        if several and any(key in judge.get("metrics", ()) for judge in judges):
            continue  # another judge is another yardstick
        if all(f"{key}@1" in run.cells and run.cells[f"{key}@1"].n for run in runs):
            found.append((measure(key), compare_runs(files, f"{key}@1")))
    return found


def comparisons_table(m: Measure, pairs: Sequence[Any]) -> Markup:
    """A row per pair, the difference bold where its interval leaves out zero and Holm's p is under .05."""
    body = []
    for pair in pairs:
        low, high = pair.ci95
        sure = (low > 0 or high < 0) and pair.p_holm < 0.05
        difference = signed(m, pair.difference)
        body.append(
            tag(
                "tr",
                tag("th", join(tag("b", pair.a), " − ", tag("b", pair.b)), scope="row"),
                tag(
                    "td",
                    tag("strong" if sure else "span", difference, class_="mean"),
                    tag("span", f"[{signed(m, low)}, {signed(m, high)}]", class_="interval"),
                ),
                tag("td", f"{pair.wins:,} / {pair.ties:,} / {pair.losses:,}"),
                tag("td", p_value(pair.p)),
                tag("td", p_value(pair.p_holm)),
                tag("td", f"{pair.n:,}", tag("span", f"{pair.left_out:,} left out", class_="coverage")),
            )
        )
    heads = ("Runs", "Difference", "Win / tie / loss", "p", "p, Holm", "n")
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    caption = f"{m.titled}: paired differences"
    table = tag("table", tag("caption", tag("span", caption)), head, tag("tbody", *body), class_="means")
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=caption)


def signed(m: Measure, value: float) -> str:
    """A difference with its sign: `+.031`."""
    return ("+" if value > 0 else "") + m.show(value)


def p_value(p: float) -> str:
    """`.032`, `< .001`, or a dash where there was nothing to test."""
    if math.isnan(p):
        return "–"
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
