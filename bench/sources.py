"""Image/mask folders for benchmarks: real retina and tissue texture, every crop different."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import skimage


def write_sources(root: Path, count: int, size: int) -> dict:
    """Write `count` pairs of `size` x `size` PNG files; returns the recipe that builds from them."""
    shipped = Path(skimage.__file__).parent / "data"
    pictures = [cv2.imread(str(shipped / name)) for name in ("retina.jpg", "ihc.png")]
    # The tissue image is 512 wide: enlarge it so that crops differ.
    pictures[1] = cv2.resize(pictures[1], None, fx=3, fy=3, interpolation=cv2.INTER_CUBIC)
    draw = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    for n in range(count):
        picture = pictures[n % 2]
        y, x = (int(draw.integers(0, side - size)) for side in picture.shape[:2])
        flip = int(draw.integers(-1, 2))
        mask = np.zeros((size, size), np.uint8)
        centre = [int(draw.integers(size // 4, 3 * size // 4)) for _ in "xy"]
        axes = [int(draw.integers(size // 12, size // 5)) for _ in "xy"]
        cv2.ellipse(mask, centre, axes, float(draw.integers(0, 180)), 0, 360, 255, -1)
        cv2.imwrite(
            str(root / "images" / f"{n:06d}.png"), cv2.flip(picture[y : y + size, x : x + size], flip)
        )
        cv2.imwrite(str(root / "masks" / f"{n:06d}.png"), mask)
    source = {
        "name": "bench",
        "root": str(root),
        "title": "Crops for a benchmark",
        "modality": "fundus",
        "anatomy": "retina",
        "license": {"name": "CC0-1.0", "use": "open"},
        # The crops overlap, so one patient: the leak gate then has nothing to refuse.
        "split": "train",
        "layout": {"kind": "folder", "images": "images/{id}.png", "masks": "masks/{id}.png"},
        "targets": [{"name": "lesion", "kind": "lesion", "value": 255}],
    }
    return {"name": "bench", "sources": [source]}
