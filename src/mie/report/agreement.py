"""Files of `mie agree -o`: the table of metrics against what people were asked, and its charts.

The table has a row for each metric and a column for each criterion (MedEBench: EA, CP and VQ): the mean over
samples of Spearman's correlation over the models, and beside it the correlation of whole models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mie.report.charts import distribution_chart, tradeoff_chart
from mie.report.scored import Scores, read_runs
from mie.report.tables import markdown_table, tex, write_csv
from mie.scoring.metric import Metric
from mie.scoring.results import split_key

# The trade-off of MedEBench: an edit that is made against a context that is kept.
TRADE_OFF: Final = (("ea", "cp"), ("dice", "b_ssim"), ("overall", "ssim"))
SIMILARITY: Final = ("isim", "clip_all")  # whose histogram shows how little it tells apart
_FILES: Final = ("correlation.csv", "correlation.md", "correlation.tex")


def correlation_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each metric and criterion."""
    rows = []
    for criterion, found in document["criteria"].items():
        for key, entry in found["metrics"].items():
            mean, system = entry["spearman_formula"], entry["system"]
            rows.append(
                {
                    "metric": key,
                    "criterion": criterion,
                    "spearman_formula": mean["mean"],
                    "ci95_low": mean["ci95"][0],
                    "ci95_high": mean["ci95"][1],
                    "n": mean["n"],
                    "unscored": mean["unscored"],
                    "patients": mean.get("patients", ""),
                    "spearman": entry["spearman"]["mean"],
                    "kendall_tau_b": entry["kendall_tau_b"]["mean"],
                    "system_spearman": system["spearman"],
                    "system_kendall_tau_b": system["kendall_tau_b"],
                    "models": system["models"],
                }
            )
    return rows


def write_agreement(
    document: Mapping[str, Any], runs: Sequence[Path], folder: Path, *, benchmark: str, variant: str
) -> list[Path]:
    """Write the correlation table as CSV, Markdown and LaTeX, the trade-off plot and the histogram."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = correlation_rows(document)
    header = list(rows[0]) if rows else ["metric"]
    write_csv(folder / _FILES[0], header, ([row[name] for name in header] for row in rows))
    heads, body = correlation_table(document)
    (folder / _FILES[1]).write_text(markdown_table(heads, body), encoding="utf-8")
    (folder / _FILES[2]).write_text(_latex(heads, body), encoding="utf-8")
    written = [folder / name for name in _FILES]
    scored = {run.name: run.scores[benchmark] for run in read_runs(list(runs), variant)}
    return [*written, *_charts(scored, folder)]


def correlation_table(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The paper's layout: a row for each metric, two columns for each criterion."""
    criteria = list(document["criteria"])
    heads = ["Metric", *(f"{name}{kind}" for name in criteria for kind in ("", " (models)"))]
    metrics = dict.fromkeys(key for found in document["criteria"].values() for key in found["metrics"])
    body = []
    for key in metrics:
        line = [key.removesuffix("@1")]
        for name in criteria:
            entry = document["criteria"][name]["metrics"].get(key)
            line += ["–", "–"] if entry is None else [_mean(entry), _number(entry["system"]["spearman"])]
        body.append(line)
    return heads, body


def _mean(entry: Mapping[str, Any]) -> str:
    found = entry["spearman_formula"]
    return f"{_number(found['mean'])} ({found['n']}/{found['n'] + found['unscored']})"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}".replace("-", "−")


def _latex(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(tex, heads)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(tex, row)) + r" \\" for row in body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _charts(scored: Mapping[str, Scores], folder: Path) -> list[Path]:
    written = []
    for pair in TRADE_OFF:
        cells = {name: [scores.cells.get(f"{m}@1") for m in pair] for name, scores in scored.items()}
        points = {name: (x, y) for name, (x, y) in cells.items() if x and y and x.n and y.n}
        if points:
            metrics = _metrics(next(iter(scored.values())), pair)
            caption = f"{metrics[0].label} against {metrics[1].label}"
            written.append(tradeoff_chart(folder, "tradeoff", caption, (metrics[0], metrics[1]), points))
            break
    for name in SIMILARITY:
        values = {
            run: scores.samples.first(name)[0]
            for run, scores in scored.items()
            if scores.samples and name in scores.samples.table.values
        }
        if values:
            (metric,) = _metrics(next(iter(scored.values())), (name,))
            chart = distribution_chart(folder, "similarity", metric.label, metric, values, list(scored))
            written += [chart] if chart else []
            break
    return [folder / f"{chart.name}.png" for chart in written]


def _metrics(scores: Scores, names: Sequence[str]) -> list[Metric]:
    assert scores.samples is not None  # noqa: S101 (the runs are scored)
    return [scores.samples.table.metric(split_key(name)[0]) for name in names]
