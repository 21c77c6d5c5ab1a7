"""The galleries on the page: cards with a before/after slider, the region's outline and a difference map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from mie.report.gallery import Pick, Pictures, Shown, ShownOutput
from mie.report.leaderboard import run_name
from mie.report.markup import Markup, join, tag
from mie.report.measures import Measure, in_order, measure
from mie.report.scored import ScoredRun
from mie.report.sections import section

_START: Final = 10  # per cent of the input that the slider shows: nearly all of the output is in view


def gallery(
    runs: Sequence[ScoredRun],
    picks: Sequence[Mapping[str, tuple[list[Pick], list[Pick]]]],
    pictures: Pictures,
) -> Markup | None:
    """Per run and measure the worst and the best samples; None where no run has a score to choose by."""
    if not any(picks):
        return None
    parts: list[object] = [tag("p", note, class_="notice") for note in pictures.notes]
    if pictures.samples:
        parts.append(
            tag(
                "p",
                "Drag across an output, or focus it and use the arrow keys: the input lies on the left of "
                "the line, the output on the right. The outline is the reference region. The difference map "
                "shows how far the output is from the reference: black is equal, bright is 128 of 255 levels "
                "or more.",
                class_="lead",
            )
        )
        switches = (
            tag("label", tag("input", type="checkbox", data_all=kind, autocomplete="off"), text)
            for kind, text in (("outline", "Region outline on all"), ("difference", "Difference map on all"))
        )
        parts.append(tag("div", *switches, class_="switches"))
    for number, (run, chosen) in enumerate(zip(runs, picks, strict=True)):
        shown = [
            _measure(run, measure(key), *chosen[key], pictures, opened=number == 0 and at == 0)
            for at, key in enumerate(in_order(set(chosen)))
        ]
        shown = [part for part in shown if part]
        if shown:
            parts += [tag("h3", run_name(run, number)), *shown]
    return section("gallery", "Best and worst", *parts)


def _measure(
    run: ScoredRun, m: Measure, worst: list[Pick], best: list[Pick], pictures: Pictures, *, opened: bool
) -> Markup | None:
    parts: list[object] = []
    row = {sample: at for at, sample in enumerate(run.ids)}
    moved = {(d.sample_id, d.attempt) for d in run.drifted}
    for title, picks in ((f"Worst {m.label}", worst), (f"Best {m.label}", best)):
        cards = []
        for pick in picks:
            sample = pictures.samples.get((run.digest, pick.sample_id))
            output = pictures.outputs.get((run.name, pick.sample_id, pick.attempt))
            if sample and output:
                others = _others(run, m, row[pick.sample_id], pick.attempt)
                drifted = (pick.sample_id, pick.attempt) in moved
                cards.append(_card(m, pick, sample, output, others, drifted=drifted))
        if cards:
            parts += [tag("h4", title), tag("div", *cards, class_="cards")]
    if not parts:
        return None
    return tag(
        "details", tag("summary", f"{m.label}: {len(worst)} worst and {len(best)} best"), *parts, open=opened
    )


def _others(run: ScoredRun, m: Measure, row: int, attempt: int) -> str:
    """The attempt's other numbers, on one line."""
    shown = []
    for key in in_order(set(run.values)):
        value = run.values[key][row, attempt]
        if key not in (m.key, "p_acc") and not np.isnan(value):
            other = measure(key)
            shown.append(f"{other.label} {other.show(float(value))}")
    return " · ".join(shown)


def _card(
    m: Measure, pick: Pick, sample: Shown, output: ShownOutput, others: str, *, drifted: bool
) -> Markup:
    what = f"{sample.modality}, {sample.target}"
    height, width = sample.size

    def picture(src: str | None, kind: str, alt: str) -> Markup | str:
        if src is None:
            return ""
        return tag("img", src=src, class_=kind, alt=alt, width=width, height=height, loading="lazy")

    outline = picture(sample.outline, "outline", "")
    before = tag(
        "figure",
        tag("figcaption", tag("span", "input")),
        tag("div", picture(sample.input, "input", f"Input: {what}"), outline, class_="stage"),
        class_="pane",
    )
    if output.output is None:
        compare = tag("figure", tag("div", output.note, class_="missing"), class_="pane compare")
    else:
        compare = tag(
            "figure",
            tag(
                "figcaption",
                tag("span", "output", class_="says-output"),
                tag("span", "difference from reference", class_="says-difference"),
            ),
            tag(
                "div",
                picture(sample.input, "before", ""),
                picture(output.output, "after", f"Output of the run: {what}"),
                picture(output.difference, "difference", ""),
                outline,
                tag(
                    "input",
                    type="range",
                    class_="cut",
                    min="0",
                    max="100",
                    value=_START,
                    autocomplete="off",
                    aria_label=f"Before and after, {what}, sample {sample.sample_id}",
                ),
                class_="stage",
            ),
            class_="pane compare",
        )
    reference = tag(
        "figure",
        tag("figcaption", tag("span", "reference")),
        tag("div", picture(sample.reference, "reference", f"Reference: {what}"), outline, class_="stage"),
        class_="pane",
    )
    badges = []
    if drifted:
        badges.append(tag("a", "drift", href="#drift", class_="badge warn"))
    if output.output and output.note:
        badges.append(tag("span", output.note, class_="badge warn"))
    unit = " dB" if m.decibels else ""
    return tag(
        "article",
        tag("div", before, compare, reference, class_="panes"),
        tag(
            "p",
            tag("b", f"{m.label} {m.show(pick.value)}{unit}"),
            tag("span", others),
            *badges,
            class_="score",
        ),
        tag("p", sample.prompt, class_="prompt", dir="auto"),
        tag(
            "p",
            f"{what} · {sample.task} · ",
            tag("code", sample.sample_id),
            f" · attempt {pick.attempt}",
            class_="about",
        ),
        _toggles(sample, output),
        class_="card",
    )


def _toggles(sample: Shown, output: ShownOutput) -> Markup:
    kinds = []
    if sample.outline:
        kinds.append(("outline", "outline"))
    if output.difference:
        kinds.append(("difference", "difference map"))
    boxes = (
        tag("label", tag("input", type="checkbox", class_=f"show-{kind}", autocomplete="off"), text)
        for kind, text in kinds
    )
    return join(tag("p", *boxes, class_="toggles"))
