"""`mie filter`: a dataset without the samples whose own target images score badly.

The scores are those of a run of the editor `oracle`, whose outputs are the target images, by any benchmark
and judge. So a judge's grade filters any triplet, as ImgEdit filters its own. A sample without a number was
not checked: it goes too, with the reason, unless it is to stay.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.core.documents import DatasetInfo
from mie.datasets.rejected import read_rejected
from mie.datasets.write import write_dataset
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.records import Rejection, Sample
from mie.scoring.metric import Metric
from mie.scoring.results import NO_OUTPUT, Results

GATE: Final = "score"
_ORACLE: Final = "oracle"


@dataclass(frozen=True, slots=True)
class Filtered:
    """The new dataset, and how many samples were kept, below the threshold, unscored or out of scope."""

    folder: Path
    info: DatasetInfo
    counts: dict[str, int]


def filter_dataset(
    run_folder: Path | str,
    output: Path,
    *,
    threshold: float,
    benchmark: str = "imgedit",
    variant: str = "paper",
    metric: str | None = None,
    keep_unscored: bool = False,
) -> Filtered:
    """Write the dataset of a scored run of `oracle` anew, without the samples that miss the threshold.

    `metric` is the benchmark's main one where it is None. The threshold is the least value where higher is
    better, and the highest one else. Samples that the metric does not apply to stay. Rejected ones are in
    `rejected.parquet`, gate `score`, with their number or the reason why they have none.
    """
    run = Run.open(run_folder)
    spec = str(run.info["editor"]["spec"])
    if spec.partition(":")[0] != _ORACLE:
        raise ConfigError(
            "these are the scores of an editor, not of the dataset's own target images",
            where=run.folder,
            expected=f"a run of the editor {_ORACLE}",
            found=spec,
            fix=f"run `mie run DATASET -e {_ORACLE} -o RUN`, then `mie score RUN`",
        )
    results = Results.open(run_folder, benchmark, variant)
    if results.stale:
        raise MieError(
            "the scores are older than the outputs",
            where=run.folder,
            fix=f"run `mie score {run_folder} --benchmark {benchmark}` again",
        )
    spec_of = results.metric(metric or results.benchmark.main[0])
    dataset = run.dataset()
    selected = results.select(f"{spec_of.name}@1")
    rows = {name: at for at, name in enumerate(results.table.ids)}
    reasons = _reasons(results, spec_of.name)
    counts: Counter[str] = Counter()

    def outcomes() -> Iterator[Sample | Rejection]:
        yield from read_rejected(dataset.folder / "rejected.parquet")
        for sample in dataset.samples():
            at = rows.get(sample.id)
            if at is not None and not selected.applies[at]:
                counts["does not apply"] += 1
                yield sample
                continue
            value = math.nan if at is None else float(selected.values[at])
            outcome = _outcome(spec_of, value, threshold)
            if outcome == "kept" or (outcome == "unscored" and keep_unscored):
                counts[outcome] += 1
                yield sample
                continue
            counts[outcome] += 1
            why = reasons.get(sample.id, "the run did not edit it") if outcome == "unscored" else outcome
            numbers: dict[str, Any] = {"id": sample.id}
            if not math.isnan(value):
                numbers[spec_of.name] = value
                why = f"{spec_of.label} {spec_of.show(value)}, {_bound(spec_of)} {spec_of.show(threshold)}"
            text = f"unscored: {why}" if outcome == "unscored" else why
            yield Rejection(sample.source, sample.case_id, GATE, text, sample.target, numbers)

    header = results.header
    provenance = {
        "parent": {"name": dataset.name, "digest": dataset.digest},
        "benchmark": benchmark,
        "variant": variant,
        "metric": spec_of.name,
        "threshold": threshold,
        "keep_unscored": keep_unscored,
        **({"judge": dict(results.judge)} if results.judge else {}),
        **({"version": header["version"]} if "version" in header else {}),
    }
    info = write_dataset(
        outcomes(),
        output,
        name=dataset.name,
        description=str(dataset.info["description"]),
        recipe={**(dataset.info.get("recipe") or {}), "filter": provenance},
        licenses=dataset.info["licenses"],
        deidentified=bool(dataset.info["deidentified"]),
    )
    return Filtered(output, info, dict(counts))


def _outcome(metric: Metric, value: float, threshold: float) -> str:
    if math.isnan(value):
        return "unscored"
    good = value >= threshold if metric.higher_is_better else value <= threshold
    return "kept" if good else "below the threshold" if metric.higher_is_better else "above the threshold"


def _bound(metric: Metric) -> str:
    return "at least" if metric.higher_is_better else "at most"


def _reasons(results: Results, name: str) -> dict[str, str]:
    """Sample -> why its first attempt has no number."""
    found = {}
    for line in results.lines():
        for attempt in line.attempts:
            why = attempt.reasons.get(name) or attempt.reasons.get(NO_OUTPUT)
            if attempt.k == 0 and why is not None:
                found[line.id] = str(why)
    return found
