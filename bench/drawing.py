"""Who draws the compact editor's modifications better: its network, or the flow expert?

    python -m bench.drawing DATASET [--split test] [--limit 60]

DATASET is one of `examples/modification.yaml`. Each of its samples is edited by `compact,draw=network` and by
`compact,draw=flow`, with the modality given. Inside the area that changes, PSNR and SSIM to the target are
those of the MieDB benchmark. Texture is that of the area against the healthy tissue around it: a smooth fill
is near to the target in PSNR, and its variance ratio tells it. Samples that the expert leaves to the network
are counted, and left out.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np

from mie.datasets.dataset import Dataset
from mie.editors import Editor, open_editor
from mie.images.families import family_of
from mie.images.texture import compare, texture
from mie.perspectives.modification.lesions import body_of, ring_around
from mie.records import Sample
from mie.scoring.benchmarks.miedb.score import score_triplet

WAYS = ("network", "flow")
TEXTURE = ("variance_ratio", "gradient_distance", "spectrum_distance")


@cache
def editor(way: str, modality: str) -> Editor:
    return open_editor(f"compact,draw={way},modality={modality}")


def measured(sample: Sample, way: str) -> dict[str, float] | None:
    """The figures of one edit; None where the expert did not draw it."""
    edited = editor(way, sample.modality).edit(
        sample.input.copy(), sample.prompt, seed=sample.seed % 2**31, history=()
    )
    if way == "flow" and "drawn" not in edited.meta:
        return None
    area = np.asarray(sample.mask) > 0
    scored = score_triplet(
        sample.input,
        sample.prompt,
        sample.target_image,
        edited.image,
        mask=area,
        perspective="modification",
    )
    figures = {name: scored["metrics"][name] for name in ("changed_psnr", "changed_ssim")}
    ring = ring_around(area, body_of(sample.target_image, str(family_of(sample.modality))), area)
    inside, around = texture(edited.image, area), texture(sample.target_image, ring)
    if inside is not None and around is not None:
        figures |= {name: compare(inside, around)[name] for name in TEXTURE}
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=60, help="samples of each kind")
    given = parser.parse_args()
    rows: dict[str, list[dict[str, dict[str, float]]]] = defaultdict(list)
    left: dict[str, int] = defaultdict(int)
    for sample in Dataset(given.dataset).samples(given.split):
        if len(rows[sample.task]) >= given.limit or family_of(sample.modality) is None:
            continue
        flow = measured(sample, "flow")
        if flow is None:
            left[sample.task] += 1
            continue
        rows[sample.task].append({"flow": flow, "network": measured(sample, "network") or {}})
    print("| kind | samples | left to the network | by | PSNR dB | SSIM | variance | gradients | spectrum |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for task, pairs in rows.items():
        for way in WAYS:
            print(f"| {task} | {len(pairs)} | {left[task]} | {way} | {line([one[way] for one in pairs])} |")


def line(rows: list[dict[str, Any]]) -> str:
    """Means of PSNR and SSIM, medians of the texture's figures."""
    cells = [f"{np.mean([row['changed_psnr'] for row in rows]):.1f}"]
    cells.append(f"{np.mean([row['changed_ssim'] for row in rows]):.3f}")
    for name in TEXTURE:
        values = [row[name] for row in rows if name in row]
        cells.append(f"{np.median(values):.2f}" if values else "–")
    return " | ".join(cells)


if __name__ == "__main__":
    main()
