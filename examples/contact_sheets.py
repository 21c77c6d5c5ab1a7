"""Contact sheets of a dataset: of transformation one per target, of modification one per modality.

    python examples/contact_sheets.py DATASET -o FOLDER

A modification sheet shows pairs: with the lesion | with a white hole | without the lesion.

With `--compare ct_metal`, pairs that a data set brought stand on the left and those that mie simulated on the
right: judge for yourself how real the physics looks. The dataset must hold both kinds.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import mie
from mie.datasets.schema import sample_from_row
from mie.records import Sample
from mie.report.contact_sheet import contact_sheet, pair_sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the PNG files")
    parser.add_argument("--compare", metavar="TARGET", help="brought | simulated, of this target only")
    parser.add_argument("--count", type=int, default=3, help="triplets of one target, or of one kind (3)")
    parser.add_argument("--cell", type=int, default=160, help="pixels of one image (160)")
    parser.add_argument("--seed", type=int, default=0, help="which samples are drawn (0)")
    options = parser.parse_args()

    dataset = mie.Dataset(options.dataset)
    by_target = ids_by_target(dataset, options.compare)
    if not by_target:
        wanted = options.compare or "transformation or modification"
        raise SystemExit(f"{options.dataset} has no {wanted} samples")
    drawn = {group: draw(found, options.count, options.seed) for group, found in by_target.items()}
    shown = {sample_id for ids in drawn.values() for sample_id in ids}
    samples = {row["id"]: sample_from_row(row) for row in dataset.rows() if row["id"] in shown}

    options.output.mkdir(parents=True, exist_ok=True)
    if options.compare:
        brought, simulated = (
            [replace(samples[i], target=f"{kind}: {samples[i].target}") for i in drawn.get(kind, [])]
            for kind in ("brought", "simulated")
        )
        if not (brought and simulated):
            found = f"{len(brought)} brought by a data set, {len(simulated)} simulated"
            raise SystemExit(f"{options.compare}: nothing to compare, {found}")
        rows = [sample for row in zip(brought, simulated, strict=False) for sample in row]
        write(rows, options.output / f"{options.compare}_compared.png", columns=2, cell=options.cell)
        return
    for key, ids in drawn.items():
        write([samples[i] for i in ids], options.output / f"{key}.png", columns=3, cell=options.cell)


def ids_by_target(dataset: mie.Dataset, compare: str | None) -> dict[str, list[tuple[str, str]]]:
    """(id, what it shows) by target; of one target to compare, by "brought" and "simulated".

    Of modification the removals, by modality.
    """
    found = defaultdict(list)
    table = dataset.table(["id", "perspective", "task", "modality", "source", "params"])
    for sample_id, perspective, task, modality, source, text in zip(*table.values(), strict=True):
        params = json.loads(text)
        if task == "removal" and compare is None:
            found[f"modification_{modality.replace(' ', '_')}"].append((sample_id, source))
        if perspective != "transformation" or compare not in (None, params["key"]):
            continue
        kind = "brought" if params["made"] == "pair" else "simulated"
        found[kind if compare else params["key"]].append((sample_id, f"{source} {params['named']}"))
    return found


def draw(found: list[tuple[str, str]], count: int, seed: int) -> list[str]:
    """`count` ids by seed; one of each data set and window or factor before the second of any."""
    shuffled = random.Random(seed).sample(found, len(found))
    seen: Counter[str] = Counter()
    turns = []
    for sample_id, shows in shuffled:
        turns.append((seen[shows], sample_id))
        seen[shows] += 1
    return [sample_id for _, sample_id in sorted(turns, key=lambda turn: turn[0])[:count]]


def write(samples: list[Sample], path: Path, *, columns: int, cell: int) -> None:
    pairs = all(sample.task == "removal" for sample in samples)
    sheet = (pair_sheet if pairs else contact_sheet)(samples, columns=columns, cell=cell)
    grey = bool((np.ptp(sheet, axis=2) == 0).all())
    Image.fromarray(sheet[..., 0] if grey else sheet).save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    main()
