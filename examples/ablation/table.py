"""The ablation's table and plot from its runs, beside the published one.

    python examples/ablation/table.py RUNS [--identity scores.json] [--plot ablation.png]

Means over samples, both seeds together; 95% intervals over patients; each seed's mean in square
brackets.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from mie.training.compact_validation import summary

# (perspective, metric, title, digits)
COLUMNS = (
    ("perception", "dice", "P: DICE", 3),
    ("perception", "p_acc", "P: P-ACC", 3),
    ("perception", "b_psnr", "P: background dB", 1),
    ("modification", "psnr", "M: dB in the area", 2),
    ("modification", "gain_db", "M: gain dB", 2),
    ("transformation", "psnr", "T: dB", 2),
    ("transformation", "gain_db", "T: gain dB", 2),
    ("transformation", "ssim", "T: SSIM", 3),
)
PLOTTED = (COLUMNS[0], COLUMNS[4], COLUMNS[6])
# MieDB-100k's ablation of OmniGen2. Its modification is a judge's rubric (0 to 100), not decibels.
PUBLISHED = {
    "none": (0.248, 0.065, 29.1, 8.3, 0.280),
    "P": (0.833, 0.740, 37.8, 19.7, 0.631),
    "M": (0.001, 0.000, 57.5, 19.8, 0.631),
    "T": (0.034, 0.000, 15.0, 23.7, 0.702),
    "all": (0.831, 0.737, 65.9, 22.6, 0.685),
}
PUBLISHED_COLUMNS = ("DICE", "P-ACC", "rubric", "PSNR", "SSIM")
PUBLISHED_DIGITS = (3, 3, 1, 1, 3)
ORDER = ("none", "P", "M", "T", "all")


def read(runs: Path, identity: Path | None) -> dict[str, list[list[dict[str, Any]]]]:
    """Trained on -> the records of each seed. The input itself stands for a model that was not trained."""
    scores: dict[str, list[list[dict[str, Any]]]] = defaultdict(list)
    for path in sorted(runs.glob("*.scores.json")):
        records = json.loads(path.read_text(encoding="utf-8"))["records"]
        scores[path.name.removesuffix(".scores.json").rsplit("-", 1)[0]].append(records)
    if identity is not None:
        scores["none"].append(json.loads(identity.read_text(encoding="utf-8"))["records"])
    return {kind: scores[kind] for kind in ORDER if kind in scores}


def cell(seeds: list[list[dict[str, Any]]], perspective: str, metric: str) -> dict[str, Any] | None:
    """Mean, interval, rows and each seed's mean; None where nothing was scored."""
    mine = [[r for r in records if r["perspective"] == perspective] for records in seeds]
    whole = summary([r for records in mine for r in records], metric, by=lambda _: "all")
    if not whole["groups"]:
        return None
    each = [summary(records, metric, by=lambda _: "all")["groups"]["all"]["mean"] for records in mine]
    return {**whole["groups"]["all"], "unscored": whole["unscored"], "seeds": each}


def table(scores: dict[str, list[list[dict[str, Any]]]]) -> str:
    head = ["trained on", *(title for _, _, title, _ in COLUMNS)]
    lines = [head, ["---"] * len(head)]
    for kind, seeds in scores.items():
        line = ["nothing (the input)" if kind == "none" else kind]
        for perspective, metric, _, digits in COLUMNS:
            line.append(shown(cell(seeds, perspective, metric), digits))
        lines.append(line)
    published = [["trained on", *PUBLISHED_COLUMNS], ["---"] * 6]
    published += [
        [kind, *(f"{v:.{digits}f}" for v, digits in zip(PUBLISHED[kind], PUBLISHED_DIGITS, strict=True))]
        for kind in ORDER
    ]
    return "\n".join(
        [
            *("| " + " | ".join(line) + " |" for line in lines),
            "",
            "Published (MieDB-100k, OmniGen2; modification by a judge's rubric):",
            "",
            *("| " + " | ".join(line) + " |" for line in published),
        ]
    )


def shown(value: dict[str, Any] | None, digits: int) -> str:
    if value is None:
        return "unscored"
    text = f"{value['mean']:.{digits}f}"
    if value["low"] is not None:
        text += f" ({value['low']:.{digits}f} to {value['high']:.{digits}f})"
    if len(value["seeds"]) > 1:
        text += " [" + ", ".join(f"{seed:.{digits}f}" for seed in value["seeds"]) + "]"
    if value["unscored"]:
        text += f", {value['unscored']} unscored"
    return text


def plot(scores: dict[str, list[list[dict[str, Any]]]], path: Path) -> None:
    """One panel for each of three figures, ours above the published ones."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3)
    kinds = [kind for kind in ORDER if kind in scores]
    for axis, (perspective, metric, title, _) in zip(axes[0], PLOTTED, strict=True):
        for at, kind in enumerate(kinds):
            value = cell(scores[kind], perspective, metric)
            if value is None:
                continue
            axis.bar(at, value["mean"], color="#0072B2" if kind == "all" else "#9AA5B1")
            if value["low"] is not None:
                axis.vlines(at, value["low"], value["high"], color="#1F2933")
            axis.plot([at] * len(value["seeds"]), value["seeds"], "o", color="#D55E00", markersize=3)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(kinds)), kinds)
    for axis, column in zip(axes[1], (0, 2, 3), strict=True):
        colours = ["#0072B2" if kind == "all" else "#9AA5B1" for kind in ORDER]
        axis.bar(range(len(ORDER)), [PUBLISHED[kind][column] for kind in ORDER], color=colours)
        axis.set_title(f"published: {PUBLISHED_COLUMNS[column]}", fontsize=10)
        axis.set_xticks(range(len(ORDER)), ORDER)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--identity", type=Path, help="scores.json of `score_pack.py identity`")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    scores = read(options.runs, options.identity)
    if not scores:
        raise SystemExit(f"no NAME.scores.json in {options.runs}")
    print(table(scores))
    if options.plot:
        plot(scores, options.plot)


if __name__ == "__main__":
    main()
