"""Choosing 3,485 of 100,000 samples, with made-up thumbnails: strata of very different sizes.

Reading the images is not part of it: `python bench/store.py` measures that. The alternative is a draw by
chance of as many samples of each stratum: how many kinds of images both find is printed.

    python bench/choose.py [--samples 100000]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from mie.datasets.choose import PRESETS, STRATA, Candidates, Quota, choose, unit

LIMIT = 300.0  # seconds


def made(count: int) -> tuple[Candidates, list[int]]:
    """Candidates, and the kind of each one's image."""
    draw = np.random.default_rng(0)
    thumbs = np.empty((count, 256), np.uint8)
    kinds = draw.integers(0, 256, (2000, 256))
    of_kind = (2000 * draw.random(count) ** 3).astype(int)  # some kinds of images are much more frequent
    for start in range(0, count, 10_000):
        rows = slice(start, min(start + 10_000, count))
        noise = draw.normal(0, 20, (rows.stop - start, 256))
        thumbs[rows] = np.clip(kinds[of_kind[rows]] + noise, 0, 255)
    targets = (60 * draw.random(count) ** 2).astype(int)
    modalities = draw.integers(0, 10, count)
    columns = {
        "perspective": [("perception", "modification", "transformation")[t % 3] for t in targets],
        "task": [f"task {t % 5}" for t in targets],
        "modality": [f"modality {m}" for m in modalities],
        "target": [f"target {t}" for t in targets],
        **{name: ["same"] * count for name in ("anatomy", "source", "split")},
    }
    subjects = [f"patient {n}" for n in draw.integers(0, count // 5, count)]
    ids = [f"{n:016x}" for n in range(count)]
    return Candidates(ids, subjects, columns, unit(thumbs)), of_kind.tolist()


def by_chance(
    candidates: Candidates, strata: list[tuple[str, ...]], wanted: Counter[tuple[str, ...]]
) -> list[int]:
    """As many samples of each stratum, drawn by chance."""
    left = Counter(wanted)
    places = []
    for at in np.random.default_rng(1).permutation(len(candidates.ids)):
        if left[strata[at]]:
            left[strata[at]] -= 1
            places.append(int(at))
    return places


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100_000)
    options = parser.parse_args()
    candidates, kinds = made(options.samples)
    start = time.perf_counter()
    choice = choose(candidates, Quota(total=PRESETS["miedb"]))
    seconds = time.perf_counter() - start
    strata = list(zip(*(candidates.columns[name] for name in STRATA), strict=True))
    drawn = by_chance(candidates, strata, Counter(strata[at] for at in choice.places))
    print(
        f"{len(choice.places):,} of {options.samples:,} samples, {len(choice.strata)} strata: {seconds:.1f} s"
    )
    for said, places in (("chosen", choice.places), ("by chance", drawn)):
        shown = len({(strata[at], kinds[at]) for at in places})
        patients = len({candidates.subjects[at] for at in places})
        print(f"{said:10} {shown:,} kinds of images in their strata, {patients:,} patients")
    if seconds > LIMIT:
        sys.exit(f"choosing takes longer than {LIMIT:.0f} s")


if __name__ == "__main__":
    main()
