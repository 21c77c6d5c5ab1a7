"""Specialist U-Nets, one per data set and target: the bound that one editor for everything is held against.

python examples/specialists/specialists.py configs PACK -o CONFIGS [--trunk FILE]
python examples/specialists/specialists.py table TRAININGS DATASET -o FILE [--editor compact] [--split test]

`configs` writes a training file for each target of a data set that the pack has 50 images of; their paths
begin at the environment's MIE_PACKS, the folder of pack and trunk. `table` takes the folders that `mie train`
made of them (TRAININGS/NAME) and scores specialist and editor on the same samples of a dataset, both by the
DICE of the `miedb` protocol on the painted overlay.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mie.core.files import atomic_write
from mie.datasets.dataset import Dataset
from mie.editors.base import open_editor
from mie.editors.compact.kinds import EditKind
from mie.images.overlay import paint
from mie.perspectives.modification.detectors.compact import CompactDetector
from mie.records import Sample
from mie.scoring.benchmarks.miedb.score import score_output
from mie.scoring.reference import Reference
from mie.scoring.statistics.intervals import mean_interval
from mie.training.pack import VALIDATION, read_pack

# 3.5 million weights, eight times a detector's.
MODEL = {
    "encoder": "whole",
    "widths": [48, 64, 128, 192, 256],
    "down": [1, 1, 1, 1, 1],
    "up": [1, 1, 1, 1],
    "pixel": 16,
}


def config(pack: Path, source: str, task: str, target: str, trunk: Path | None) -> dict[str, Any]:
    """One training file."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{source}-{target}".lower()).strip("-")
    return {
        "name": name,
        "trainee": "segmenter",
        "seed": 1,
        "steps": 2000,
        "batch": 32,
        "optimizer": {"lr": 1.0e-3, "weight_decay": 0.05, "warmup": 200},
        "ema": 0.998,
        "precision": "bf16",
        "checkpoint": {"every": 1000, "keep": 1},
        "validate": {"every": 500},
        "log_every": 50,
        "data": {
            "packs": [f"${{MIE_PACKS}}/{pack.name}"],
            "sources": [source],
            "targets": [target],
            "rows": task,
        },
        "model": {**MODEL, **({"trunk": f"${{MIE_PACKS}}/{trunk.name}"} if trunk else {})},
    }


def write_configs(pack: Path, folder: Path, least: int, trunk: Path | None) -> list[str]:
    images: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    held_out = set()
    for row in read_pack(pack).rows:
        if row.kind is EditKind.OVERLAY and row.task != "holistic":
            images[row.source, row.task, row.target].add(row.input)
            if row.fold == VALIDATION:
                held_out.add((row.source, row.task, row.target))
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for key in sorted(held_out):  # a single patient cannot choose a checkpoint
        if len(images[key]) >= least:
            body = config(pack, *key, trunk)
            atomic_write(folder / f"{body['name']}.yaml", yaml.safe_dump(body, sort_keys=False))
            names.append(body["name"])
    return names


def dice(sample: Sample, output: Any) -> float | None:
    """By the protocol; None where it is not defined."""
    reference = Reference.of(
        sample.perspective, sample.task, sample.colour, sample.input, sample.target_image
    )
    value = score_output(reference, output, "paper")["metrics"].get("dice")
    return None if value is None else float(value)


def compare(folder: Path, samples: Iterable[Sample], editor: Any) -> dict[str, Any] | None:
    """Both on the samples of one specialist; None where the split has none."""
    specialist = CompactDetector(folder / "weights.safetensors")
    asked = specialist.meta["config"]["data"]
    scores: list[tuple[float, float]] = []
    patients: list[str] = []
    unscored = 0
    for sample in samples:
        if (sample.source, sample.task, sample.target) != (
            asked["sources"][0],
            asked["rows"],
            asked["targets"][0],
        ):
            continue
        mine = dice(sample, paint(sample.input, specialist.find(sample.input).mask, sample.colour or "red"))
        theirs = dice(sample, editor.edit(sample.input, sample.prompt, seed=0, history=()).image)
        if mine is None or theirs is None:
            unscored += 1
            continue
        scores.append((mine, theirs))
        patients.append(sample.patient_id or sample.case_id)
    if not scores:
        return None
    both = np.array(scores)
    difference = mean_interval(both[:, 0] - both[:, 1], patients)
    return {
        "source": asked["sources"][0],
        "target": asked["targets"][0],
        "trained_on": specialist.meta["trained_on"]["images"],
        "samples": len(scores),
        "unscored": unscored,
        "specialist": float(both[:, 0].mean()),
        "editor": float(both[:, 1].mean()),
        "gap": difference.value,
        "gap_95": [difference.low, difference.high],
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| data set | target | trained on | samples | specialist | editor | specialist better by (95%) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        low, high = row["gap_95"]
        lines.append(
            f"| {row['source']} | {row['target']} | {row['trained_on']} | {row['samples']} "
            f"| {row['specialist']:.3f} | {row['editor']:.3f} "
            f"| {row['gap']:+.3f} ({low:+.3f} to {high:+.3f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    configs = verbs.add_parser("configs")
    configs.add_argument("pack", type=Path)
    configs.add_argument("-o", "--output", type=Path, required=True)
    configs.add_argument("--least", type=int, default=50)
    configs.add_argument("--trunk", type=Path)
    table = verbs.add_parser("table")
    table.add_argument("trainings", type=Path)
    table.add_argument("dataset", type=Path)
    table.add_argument("-o", "--output", type=Path, required=True)
    table.add_argument("--editor", default="compact")
    table.add_argument("--split", default="test")
    args = parser.parse_args()
    if args.verb == "configs":
        print("\n".join(write_configs(args.pack, args.output, args.least, args.trunk)))
        return
    dataset = Dataset(args.dataset)
    with open_editor(args.editor) as editor:
        folders = sorted(path.parent for path in args.trainings.glob("*/weights.safetensors"))
        compared = [compare(folder, dataset.samples(args.split), editor) for folder in folders]
    rows = [row for row in compared if row is not None]
    body = {"dataset": dataset.digest, "editor": args.editor, "split": args.split, "rows": rows}
    atomic_write(args.output, json.dumps(body, indent=2) + "\n")
    print(markdown(rows))


if __name__ == "__main__":
    main()
