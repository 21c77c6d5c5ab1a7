"""Building from 512x512 PNG files against the codec work that no build can avoid.

The floor decodes every image and mask once and encodes every input, target and mask once, with the same
libraries, on the same number of processes. Runs are interleaved; medians are compared. Half a second of a
build is start-up (workers and their imports), so small builds lie higher.

    python bench/build.py [--images 4000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.sources import write_sources
from mie.images.png import encode_png

WORKERS = 2
LIMIT = 1.5


def codec_floor(paths: list[tuple[str, str]]) -> int:
    """Decode two files, encode three pictures, for every case of the chunk."""
    total = 0
    for image_path, mask_path in paths:
        image = cv2.imdecode(np.frombuffer(Path(image_path).read_bytes(), np.uint8), cv2.IMREAD_UNCHANGED)
        mask = cv2.imdecode(np.frombuffer(Path(mask_path).read_bytes(), np.uint8), cv2.IMREAD_UNCHANGED)
        # The target differs from the input only inside the region; encoding the input twice costs the same.
        total += len(encode_png(image)) + len(encode_png(image)) + len(encode_png(mask))
    return total


def run_floor(root: Path) -> float:
    images = sorted((root / "images").iterdir())
    pairs = [(str(p), str(root / "masks" / p.name)) for p in images]
    chunks = [pairs[i : i + 128] for i in range(0, len(pairs), 128)]
    start = time.perf_counter()
    with ProcessPoolExecutor(WORKERS, get_context("spawn"), initializer=_one_thread) as pool:
        list(pool.map(codec_floor, chunks))
    return time.perf_counter() - start


def _one_thread() -> None:
    cv2.setNumThreads(1)


def run_build(recipe: dict, folder: Path) -> tuple[float, int]:
    # Imported here: the floor's processes load this file too, and need none of it.
    from mie.datasets.build import build
    from mie.datasets.recipe import parse_recipe

    shutil.rmtree(folder, ignore_errors=True)
    config = parse_recipe(recipe, where="bench", base=Path())
    start = time.perf_counter()
    result = build(config, folder, workers=WORKERS)
    return time.perf_counter() - start, result.info["counts"]["samples"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mie-bench-") as folder:
        root = Path(folder)
        recipe = write_sources(root / "source", options.images, 512)
        floors, builds, samples = [], [], 0
        for _ in range(options.repeats):
            floors.append(run_floor(root / "source"))
            seconds, samples = run_build(recipe, root / "dataset")
            builds.append(seconds)
    floor, whole = statistics.median(floors), statistics.median(builds)
    print(f"{samples} samples from {options.images} pairs of 512x512 PNG, {WORKERS} processes")
    print(f"codec floor  {floor:7.2f} s   {1e3 * floor / options.images:6.2f} ms a pair")
    print(f"mie build    {whole:7.2f} s   {1e3 * whole / options.images:6.2f} ms a pair")
    print(f"ratio        {whole / floor:7.2f}     (limit {LIMIT})")
    if whole / floor > LIMIT:
        sys.exit("the build costs more than it may")


if __name__ == "__main__":
    main()
