"""Sensitivity by target at one false finding an image, on patients that no detector has seen.

    python examples/detectors/froc.py PACK [--weights FOLDER] [--families mri ct] [--own] [-o FILE]

PACK is a folder of `mie pack DATASET --split test`. The threshold is cross-fitted over two halves of its
patients: each half is measured at the lowest threshold that makes at most one false finding an image on the
other half. With --own it is that of the weights file: these figures are `quality` in the shipped files. The
weights are those that ship, or FOLDER/detector-FAMILY.safetensors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mie.core.documents import markdown_table
from mie.core.files import atomic_write
from mie.images.families import FAMILIES
from mie.networks.shipped import FOLDER
from mie.perspectives.modification.detectors.compact import load_detector
from mie.perspectives.modification.detectors.quality import LEVELS, Measured, by_name, choose, summarise
from mie.training.pack import read_pack
from mie.training.segmenter import RowFilter, SegmenterValidation, marked_images


def crossed(measured: Sequence[Measured]) -> dict[str, Any]:
    return choose(measured, by="lesions").as_json() or {}


def at_own(measured: Sequence[Measured], threshold: float) -> dict[str, Any]:
    level = LEVELS.index(round(threshold, 2))
    quality = summarise([one.counts[level] for one in measured], [one.score for one in measured])
    patients = len({one.patient for one in measured})
    names = by_name(measured, [level] * len(measured))
    return {**quality.as_json(), "threshold": threshold, "patients": patients, "targets": names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--weights", type=Path, default=FOLDER)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--own", action="store_true", help="at the threshold of the weights file")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    pack = read_pack(given.pack)
    found, rows = {}, []
    for family in given.families:
        path = given.weights / f"detector-{family}.safetensors"
        images = marked_images([pack], RowFilter("lesion", family))
        if not path.is_file() or not images:
            print(f"{family}: skipped, {'no images' if path.is_file() else 'no weights'}")
            continue
        network, meta = load_detector(path)
        held_out = SegmenterValidation(images, network.config.side, torch.device("cpu"), "lesions")
        measured = held_out.measured(network)
        found[family] = at_own(measured, meta["threshold"]) if given.own else crossed(measured)
        for name, of in found[family]["targets"].items():
            false = f"{found[family]['false_positives_per_image']:.2f}"
            counts = (f"{of[key]:,}" for key in ("lesions", "images", "patients"))
            rows.append([family, name, *counts, f"{of['sensitivity']:.2f}", false])
    head = ["family", "target", "lesions", "images", "patients", "sensitivity", "false an image"]
    print(markdown_table(head, rows))
    if given.output:
        atomic_write(given.output, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
