"""The compact editor beside its baselines on the test splits of datasets, as Markdown tables.

    python examples/compact/tables.py make DATASET... --runs RUNS [--editor compact:FILE] [-o PAGE]
    python examples/compact/tables.py tables RUN... [--plot FILE] [-o PAGE]

`make` runs and scores the editor and the baselines of each dataset's perspectives (existing runs stay) and
writes the tables; `tables` takes runs that `mie score` has scored. In a PAGE with the two comment lines BEGIN
and END only the text between them is replaced. `--wordings FILE`, which `score_pack.py --unseen` wrote, adds
what unseen wordings cost; `--plot` draws the run that is named last, and those of its name. All runs of an
editor with weights must be of the same weights file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measured import BASELINES, GROUPS, Bench, Record, make, read
from plots import draw

from mie.core.files import atomic_write
from mie.scoring.benchmarks.miedb.score import PSNR_CAP
from mie.scoring.statistics import spearman
from mie.scoring.statistics.intervals import MIN_PATIENTS, jackknife_intervals
from mie.training.compact_validation import summary


class Patient(NamedTuple):
    name: str
    known: bool  # false: the data set does not name patients, and each image counts as one


BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
# Perspective -> what its lines are, and (metric, title, digits) of each table.
TABLES: dict[str, tuple[str, tuple[tuple[str, str, int], ...]]] = {
    "perception": (
        "data set",
        (("dice", "DICE", 3), ("p_acc", "P-ACC", 3), ("b_psnr", "background PSNR, dB", 1)),
    ),
    "transformation": (
        "target",
        (
            ("gain_psnr", "PSNR gained over the input, dB", 2),
            ("gain_ssim", "SSIM gained over the input", 3),
            ("psnr", "PSNR, dB", 2),
            ("ssim", "SSIM", 3),
        ),
    ),
    "modification": (
        "kind",
        (
            ("psnr", "PSNR in the area that changes, dB", 2),
            ("gain_psnr", "PSNR gained there over the input, dB", 2),
            ("ssim", "SSIM in the area that changes", 3),
            ("b_psnr", "background PSNR, dB", 1),
            ("b_ssim", "background SSIM", 3),
        ),
    ),
}


def table(
    runs: Mapping[str, Sequence[Record]],
    perspective: str,
    metric: str,
    digits: int,
    trained: Mapping[str, int],
) -> list[str]:
    """A line for each group, a column for each run; then the means over groups and over samples."""
    by, title = GROUPS[perspective], TABLES[perspective][0]
    patients: dict[str, dict[str, Patient]] = {}  # group -> sample -> patient
    for record in (record for records in runs.values() for record in records):
        patient = Patient(record["patient"], record["patient_known"])
        patients.setdefault(by(record), {})[record["id"]] = patient
    summaries = {name: summary(records, metric, by=by) for name, records in runs.items()}
    lines = [[title, "training samples", "samples", "patients", *runs]]
    for group, some in sorted(patients.items()):
        cells = [cell(one["groups"].get(group), digits, len(some)) for one in summaries.values()]
        name = f"`{group}`" if "_" in group else group
        lines.append([name, str(trained.get(group, 0)), *_counts(some), *cells])
    everything = {sample: patient for some in patients.values() for sample, patient in some.items()}
    taught = {s: p for group, some in patients.items() if trained.get(group) for s, p in some.items()}
    parts = [("", everything)]
    if taught and len(taught) < len(everything):
        parts.append((" trained on", taught))
    for words, samples in parts:
        inside = [[r for r in records if r["id"] in samples] for records in runs.values()]
        macro, micro = ([mean(some, metric, digits, over) for some in inside] for over in (by, None))
        lines.append([f"**mean over {title}s{words}**", "", *_counts(samples), *macro])
        lines.append([f"**mean over samples{words and ' of those'}**", "", *_counts(samples), *micro])
    return markdown(lines)


def mean(records: Sequence[Record], metric: str, digits: int, over: Any = None) -> str:
    """Of all records, or over the groups by `over`."""
    result = summary(records, metric, by=over or (lambda _: "all"))
    one = result["groups"].get("all")
    if over and result["groups"]:
        one = {**result["macro"], "rows": result["rows"]}
    return cell(one, digits, len(records))


def cell(one: Mapping[str, Any] | None, digits: int, samples: int) -> str:
    """Mean (95% interval), and of how many of the samples where it is not all of them."""
    if one is None or one["mean"] is None:
        return f"none of {samples} scored"
    text = f"{one['mean']:z.{digits}f}"
    if one["low"] is not None:
        text += f" ({one['low']:z.{digits}f} to {one['high']:z.{digits}f})"
    return text if one["rows"] == samples else f"{text}, {one['rows']} of {samples}"


def markdown(lines: Sequence[Sequence[str]]) -> list[str]:
    ruled = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return ["| " + " | ".join(line) + " |" for line in ruled]


def _counts(patients: Mapping[str, Patient]) -> list[str]:
    """Samples and patients; what is counted by image, because its patient is unknown, is marked so."""
    distinct = set(patients.values())
    known = sum(patient.known for patient in distinct)
    images = len(distinct) - known
    parts = [str(known)] if known or not images else []
    parts += [f"{images} image{'s' if images > 1 else ''}"] if images else []
    return [str(len(patients)), " + ".join(parts)]


def bars(bench: Bench, name: str) -> list[list[str]]:
    """[figure, bar, measured, met] of a run: on data sets, and for targets, that were trained on."""
    lines = []
    by, known = GROUPS["perception"], bench.trained("perception")
    painted = [record for record in bench.part("perception")[name] if known[by(record)]]
    for metric, title, least, digits, over in (
        ("dice", "DICE, mean over data sets", 0.75, 3, by),
        ("dice", "DICE, mean over samples", 0.85, 3, None),
        ("p_acc", "P-ACC, mean over samples", 0.8, 3, None),
        ("b_psnr", "background PSNR, mean over samples, dB", 35.0, 2, None),
    ):
        if not painted:
            break
        result = summary(painted, metric, by=over or (lambda _: "all"))
        value = (result["macro"] if over else result["groups"]["all"])["mean"]
        shown = mean(painted, metric, digits, over)
        if metric == "b_psnr":
            inexact = [record for record in painted if record["scores"].get(metric, 0) < PSNR_CAP]
            shown += f"; {mean(inexact, metric, digits)} without {len(painted) - len(inexact)} exact ones"
        lines.append([title, f"at least {least:g}", shown, verdict(value >= least)])
    restored = bench.part("transformation")[name]
    for target in sorted(bench.trained("transformation")):
        some = [record for record in restored if record["target"] == target]
        decibel, ssim = (summary(some, m, by=lambda _: "all")["groups"].get("all") for m in _GAINS)
        if decibel and ssim:
            shown = f"{mean(some, _GAINS[0], 2)}; SSIM {ssim['mean']:+.3f}"
            met = decibel["mean"] >= 3 and ssim["mean"] >= 0
            lines.append([f"{target}, dB gained", "at least 3, SSIM not lower", shown, verdict(met)])
    return lines


_GAINS = ("gain_psnr", "gain_ssim")


def confidence(records: Sequence[Record]) -> list[str]:
    """How well an editor's confidence foretells DICE: their rank correlation, and DICE in bands of it."""
    sure = [r for r in records if r["confidence"] is not None and "dice" in r["scores"]]
    if len(sure) < 2:
        return []
    both = np.array([(r["confidence"], r["scores"]["dice"]) for r in sure])
    by = np.unique([r["patient"] for r in sure], return_inverse=True)[1]
    value, sizes = spearman(*both.T), np.bincount(by)
    text = f"Spearman's correlation of confidence and DICE over {len(sure)} samples: {value:.2f}"
    if len(sizes) >= MIN_PATIENTS:
        without = np.array([[spearman(*both[by != one].T)] for one in range(len(sizes))])
        (low,), (high,) = jackknife_intervals(np.array([value]), without, sizes)
        text += f" ({max(low, -1):.2f} to {min(high, 1):.2f})"
    lines = [["confidence", "samples", "patients", "DICE"]]
    for least, most in pairwise(_SURE):
        some = [r for r in sure if least <= r["confidence"] < most]
        patients = {r["id"]: Patient(r["patient"], r["patient_known"]) for r in some}
        name = f"{least:g} to {min(most, 1):g}"
        lines.append([name, *_counts(patients), mean(some, "dice", 3) if some else "–"])
    return [f"{text}.", "", *markdown(lines), ""]


_SURE = (0.0, 0.3, 0.5, 0.7, 0.9, 1.1)  # bands, without their upper end


def wordings(path: Path) -> list[list[str]]:
    """The same of wordings never trained on: each sample against itself in a wording that was."""
    records = json.loads(path.read_text(encoding="utf-8"))["records"]
    seen = {record["id"]: record["scores"] for record in records if record["seen"]}
    lines = []
    for perspective, metric, unit, most, digits in (
        ("perception", "dice", "DICE", 0.02, 3),
        ("transformation", "gain_db", "dB", 0.5, 2),
    ):
        other = [r for r in records if not r["seen"] and r["perspective"] == perspective]
        lost = [
            {**r, "scores": {"lost": seen[r["id"]][metric] - r["scores"][metric]}}
            for r in other
            if metric in r["scores"] and metric in seen[r["id"]]
        ]
        if lost:
            one = summary(lost, "lost", by=lambda _: "all")["groups"]["all"]
            title = f"{unit} lost by unseen wordings, mean over {len(lost)} samples of {perspective}"
            met = verdict(one["mean"] <= most)
            lines.append([title, f"at most {most:g}", cell(one, digits, len(other)), met])
    return lines


def verdict(met: bool) -> str:
    return "yes" if met else "**no**"


def one_model(benches: Sequence[Bench]) -> dict[str, str]:
    """Run -> SHA-256 of its weights. Tables under one digest must not mix runs of different weights."""
    named = [
        (name, bench.dataset.name, sha256) for bench in benches for name, sha256 in bench.weights().items()
    ]
    if len({sha256 for _, _, sha256 in named}) > 1:
        runs = "\n".join(f"  {sha256[:16]}... {name} on {dataset}" for name, dataset, sha256 in named)
        raise SystemExit(f"these runs are of different weights; make one page for each:\n{runs}")
    return {name: sha256 for name, _, sha256 in named}


def page(benches: Sequence[Bench], unseen: Sequence[Sequence[str]] = ()) -> str:
    """The bars, then all tables."""
    models = one_model(benches)
    if unseen and len(models) > 1:
        raise SystemExit(f"--wordings is of one editor; these runs are of {', '.join(models)}")
    text = []
    for name, sha256 in models.items():
        text += [f"## Bars: {name}", "", f"Weights with SHA-256 `{sha256[:16]}...`.", ""]
        lines = [line for bench in benches if name in bench.runs for line in bars(bench, name)] + [*unseen]
        if lines:
            text += [*markdown([["figure", "bar", "measured (95% interval)", "met"], *lines]), ""]
    for bench in benches:
        for perspective, (_, metrics) in TABLES.items():
            others = {name for kind in BASELINES if kind != perspective for name in BASELINES[kind]}
            others -= set(BASELINES[perspective])
            runs = {name: some for name, some in bench.part(perspective).items() if name not in others}
            if not any(runs.values()):
                continue
            text += [f"## {perspective.capitalize()}", ""]
            text += [f"Dataset `{bench.dataset.name}`, digest `{bench.dataset.digest[:16]}...`."]
            if not all(record["patient_known"] for records in runs.values() for record in records):
                text += ["Where a data set does not name its patients, images are counted instead."]
            text += [""]
            for name in models if perspective == "perception" else ():
                if name in runs and (shown := confidence(runs[name])):
                    text += [f"### {perspective.capitalize()}: confidence of {name}", "", *shown]
            for metric, title, digits in metrics:
                text += [f"### {perspective.capitalize()}: {title}", ""]
                text += [*table(runs, perspective, metric, digits, bench.trained(perspective)), ""]
    return "\n".join(text).rstrip() + "\n"


def put(text: str, path: Path) -> None:
    """Between the comment lines of a page, else as the whole page."""
    old = path.read_text(encoding="utf-8") if path.is_file() else ""
    if BEGIN in old and END in old:
        text = f"{old.partition(BEGIN)[0]}{BEGIN}\n\n{text}\n{END}{old.partition(END)[2]}"
    atomic_write(path, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making, reading = verbs.add_parser("make"), verbs.add_parser("tables")
    making.add_argument("datasets", nargs="+", type=Path)
    making.add_argument("--runs", type=Path, required=True)
    making.add_argument("--editor", default="compact")
    reading.add_argument("runs", nargs="+", type=Path)
    for verb in (making, reading):
        verb.add_argument("--wordings", type=Path)
        verb.add_argument("--plot", type=Path, help="DICE and decibels of the editor, as PNG")
        verb.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    folders = make(args.datasets, args.runs, args.editor) if args.verb == "make" else args.runs
    benches = read(folders)
    if args.plot:
        draw(benches, folders[-1].resolve().name, args.plot)
    text = page(benches, wordings(args.wordings) if args.wordings else ())
    if args.output:
        put(text, args.output)
    else:
        print(text)


if __name__ == "__main__":
    main()
