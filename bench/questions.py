"""50,000 template questions from 5,000 images: under three minutes on two cores, each image decoded once.

The alternative, printed as a ratio, is the least that any builder must do: decode every image and mask, and
encode each image once. Processor time is printed beside the wall clock, which a busy machine stretches.

    python bench/questions.py [--images 5000] [--workers 2]
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from mie.images.png import encode_png
from mie.images.read import read_labels, read_picture
from mie.questions.build import build_questions
from mie.questions.recipe import parse_question_recipe
from tests.conftest import crop

LIMIT = 180.0  # seconds for 5,000 images
SIZE = 256
NAMES = ("glioma", "meningioma", "pituitary tumour", "ventricle", "cerebellum", "brainstem")


def write_images(root: Path, count: int) -> None:
    """Crops of real pictures, each with one tumour and three organs."""
    draw = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for number in range(count):
        labels = np.zeros((SIZE, SIZE), np.uint8)
        for value in (4, 5, 6, 1 + number % 3):
            centre = tuple(int(v) for v in draw.integers(40, SIZE - 40, 2))
            axes = tuple(int(v) for v in draw.integers(10, 34, 2))
            cv2.ellipse(labels, centre, axes, float(draw.integers(180)), 0, 360, value, cv2.FILLED)
        name = f"p{number // 4}_{number}.png"
        cv2.imwrite(str(root / "images" / name), crop(number, SIZE, SIZE)[..., ::-1])
        cv2.imwrite(str(root / "masks" / name), labels)


def recipe(root: Path) -> Any:
    source = {
        "name": "bench",
        "root": str(root),
        "title": "crops",
        "modality": "MRI",
        "submodality": "T2W",
        "anatomy": "brain",
        "targets": [
            {"name": name, "kind": "lesion" if value < 4 else "anatomy", "value": value}
            for value, name in enumerate(NAMES, start=1)
        ],
        "layout": {
            "kind": "folder",
            "images": "images/{patient}_{id}.png",
            "masks": "masks/{patient}_{id}.png",
        },
        "license": {"name": "CC0", "use": "open"},
    }
    body = {
        "name": "bench",
        "per_image": 10,
        "curate": {"near_duplicates": False, "most_same_answer": 1.0, "most_above_chance": 10},
        "sources": [source],
    }
    return parse_question_recipe(body, where="bench", base=root)


def least_work(root: Path) -> float:
    """Processor seconds to decode every image and mask, and to encode every image."""
    start = time.process_time()
    for path in sorted((root / "images").iterdir()):
        encode_png(read_picture(path).pixels)
        read_labels(root / "masks" / path.name)
    return time.process_time() - start


def spent() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "pictures"
        write_images(root, options.images)
        floor = least_work(root)
        before, start = spent(), time.perf_counter()
        found = build_questions(recipe(root), Path(folder) / "set", workers=options.workers)
        wall, processor = time.perf_counter() - start, spent() - before
        size = sum(path.stat().st_size for path in (found.folder / "data").iterdir())
        limit = LIMIT * options.images / 5000
        print(f"{len(found):,} questions from {options.images:,} images, {size / 2**20:.0f} MiB")
        each = 1000 * processor / len(found)
        print(f"{wall:.1f} s wall, {processor:.1f} s of processor: {each:.2f} ms a question")
        print(
            f"{processor / floor:.1f} times the work of decoding and encoding each image once ({floor:.1f} s)"
        )
        verdict = "within" if wall <= limit else "ABOVE"
        print(f"{verdict} the limit of {limit:.0f} s; {processor / 2:.0f} s if two cores were free")


if __name__ == "__main__":
    main()
