"""One build of three perspectives against three separate builds of the same files.

Volumes (gzipped NIfTI, a few slices each) and photographs (12-megapixel JPEG) are read once instead of three
times. Perception, transformation and modification run as recipes have them, with the exemplar inpainter and
one candidate. Single process and its CPU time, so that the ratio is about work and neither about start-up nor
about what else the machine does; runs are interleaved and medians compared. The samples must be the same both
ways, to the digest.

    python bench/one_build.py [--volumes 12] [--photographs 24] [--repeats 3]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import nibabel
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.recipe import parse_recipe

LIMIT = 1.5
PERSPECTIVES: list[dict[str, Any]] = [
    {"kind": "perception"},
    {"kind": "transformation", "per_case": 1},
    {"kind": "modification", "inpainter": "exemplar", "detector": None, "candidates": 1},
]


def write_volumes(root: Path, count: int) -> dict[str, Any]:
    """Heads of smooth noise with a bright ball as the lesion, 192 x 192 x 96."""
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    grid = np.stack(np.meshgrid(*(np.arange(n) for n in (192, 192, 96)), indexing="ij")).astype(np.float32)
    body = ((grid[0] - 96) / 80) ** 2 + ((grid[1] - 96) / 70) ** 2 + ((grid[2] - 48) / 46) ** 2 < 1
    for n in range(count):
        draw = np.random.default_rng(n)
        noise = draw.normal(0, 30, body.shape).astype(np.float32)
        centre = draw.integers([70, 70, 35], [120, 120, 60])
        lesion = sum((grid[k] - centre[k]) ** 2 for k in range(3)) < 81
        volume = np.where(body, 400 + cv2.GaussianBlur(noise, (5, 5), 1) + 250 * lesion, 0)
        for kind, array in (("images", volume.astype(np.int16)), ("masks", lesion.astype(np.uint8))):
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), root / kind / f"{n:03d}.nii.gz")
    return {
        "name": "volumes",
        "root": str(root),
        "title": "Synthetic heads",
        "modality": "MRI",
        "anatomy": "brain",
        "license": {"name": "CC0-1.0", "use": "open"},
        "targets": [{"name": "brain lesion", "kind": "lesion", "value": 1}],
        "layout": {
            "kind": "volume",
            "images": "images/{patient}.nii.gz",
            "masks": "masks/{patient}.nii.gz",
            "slices": 2,
        },
    }


def write_photographs(root: Path, count: int) -> dict[str, Any]:
    """Skin-coloured noise with a dark patch, 4000 x 3000 JPEG."""
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for n in range(count):
        draw = np.random.default_rng(100 + n)
        grain = cv2.resize(draw.normal(0, 12, (375, 500, 3)).astype(np.float32), (4000, 3000))
        mask = np.zeros((3000, 4000), np.uint8)
        centre = tuple(int(v) for v in draw.integers([1500, 1100], [2500, 1900]))
        cv2.circle(mask, centre, int(draw.integers(90, 140)), 255, -1)
        image = np.array([150, 170, 205], np.float32) + grain - 70 * (mask[..., None] > 0)
        cv2.imwrite(str(root / f"images/{n:03d}.jpg"), np.clip(image, 0, 255).astype(np.uint8))
        cv2.imwrite(str(root / f"masks/{n:03d}.png"), mask)
    return {
        "name": "photographs",
        "root": str(root),
        "title": "Synthetic skin",
        "modality": "dermoscopy",
        "anatomy": "skin",
        "license": {"name": "CC0-1.0", "use": "open"},
        "targets": [{"name": "skin lesion", "kind": "lesion", "value": 255}],
        "layout": {"kind": "folder", "images": "images/{patient}.jpg", "masks": "masks/{patient}.png"},
    }


def run(source: dict[str, Any], folder: Path, **settings: Any) -> tuple[float, dict[str, str]]:
    shutil.rmtree(folder, ignore_errors=True)
    # No test split: its images keep their size, and encoding them would hide everything else.
    body = {"name": "bench", "split": {"test": 0}, "sources": [source], **settings}
    config = parse_recipe(body, where="bench", base=Path())
    start = time.process_time()
    build(config, folder, workers=1)
    seconds = time.process_time() - start
    table = Dataset(folder).table(["id", "sha256"])
    return seconds, dict(zip(table["id"], table["sha256"], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--volumes", type=int, default=12)
    parser.add_argument("--photographs", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory(prefix="mie-bench-") as folder:
        root = Path(folder)
        for source in (
            write_volumes(root / "volumes", options.volumes),
            write_photographs(root / "photographs", options.photographs),
        ):
            run(source, root / "all", perspectives=PERSPECTIVES)  # imports, and files into memory
            apart, together, parts = [], [], dict.fromkeys((p["kind"] for p in PERSPECTIVES), 0.0)
            for _ in range(options.repeats):
                samples: dict[str, str] = {}
                total = 0.0
                for settings in PERSPECTIVES:
                    seconds, some = run(source, root / "one", recipe=settings)
                    samples |= some
                    total += seconds
                    parts[settings["kind"]] = seconds
                apart.append(total)
                seconds, joint = run(source, root / "all", perspectives=PERSPECTIVES)
                together.append(seconds)
                if joint != samples:
                    sys.exit("one build gives other samples than three")
            three, one = statistics.median(apart), statistics.median(together)
            ratios.append(three / one)
            shares = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in parts.items())
            print(f"{source['name']}: {len(samples)} samples, CPU time")
            print(f"  three builds {three:7.2f} s   ({shares})")
            print(f"  one build    {one:7.2f} s   {ratios[-1]:.2f} times as fast (limit {LIMIT})", flush=True)
    if min(ratios) < LIMIT:
        sys.exit("one build saves less than it should")


if __name__ == "__main__":
    main()
