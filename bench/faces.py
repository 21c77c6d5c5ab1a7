"""False alarms and recall of the search for faces, on colour images of public data sets.

    python -m bench.faces FOLDER... [--images 10]

Each folder holds data sets, a folder each. Limits are to be chosen on the data sets of the first half (by a
hash of their names) and figures stated on the second. Recall: the portrait that comes with scikit-image, in
an ellipse, pasted into images of both halves at a quarter to four fifths of the shorter side, turned by up to
25 degrees, darker or brighter.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from skimage import data

from mie.privacy import faces

COMPOSITES = 60
_NO_IMAGES = ("mask", "label", "/gt", "seg")


def half(name: str) -> int:
    return _hash(name) % 2


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def colour_images(root: Path, most: int) -> Iterator[tuple[str, Any]]:
    """At most so many images of each data set, in the order of their names' hashes, without grey ones."""
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        files = [path for path in folder.rglob("*") if path.suffix in (".png", ".jpg")]
        files = [path for path in files if not any(word in str(path).lower() for word in _NO_IMAGES)]
        kept = 0
        for path in sorted(files, key=lambda path: _hash(path.name))[: 4 * most]:
            if kept == most:
                break
            read = cv2.imread(str(path))
            if read is not None and min(read.shape[:2]) >= 64 and faces.is_colour(read):
                kept += 1
                yield f"{root.name}/{folder.name}", np.ascontiguousarray(read[..., ::-1])


def composite(image: Any, number: int) -> Any:
    draw = np.random.default_rng(1000 + number)
    height, width = image.shape[:2]
    scale = min(1.0, 800 / max(height, width))
    image = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    height, width = image.shape[:2]
    head = np.ascontiguousarray(data.astronaut()[20:210, 140:310])
    side = int(min(height, width) * draw.uniform(0.25, 0.8))
    head = cv2.resize(head, (side * head.shape[1] // head.shape[0], side), interpolation=cv2.INTER_AREA)
    size = (head.shape[1], head.shape[0])
    mask = np.zeros(head.shape[:2], np.float32)
    cv2.ellipse(mask, (size[0] // 2, size[1] // 2), (size[0] // 2 - 1, size[1] // 2 - 1), 0, 0, 360, 1.0, -1)
    turn = cv2.getRotationMatrix2D((size[0] / 2, size[1] / 2), draw.uniform(-25, 25), 1)
    head = cv2.warpAffine(head, turn, size, borderMode=cv2.BORDER_REPLICATE)
    mask = cv2.warpAffine(mask, turn, size)[..., None]
    head = np.clip(head * draw.uniform(0.7, 1.3), 0, 255)
    top, left = (int(draw.integers(0, most + 1)) for most in (height - size[1], width - size[0]))
    place = np.s_[top : top + size[1], left : left + size[0]]
    image = image.copy()
    image[place] = mask * head + (1 - mask) * image[place]
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--images", type=int, default=10)
    asked = parser.parse_args()
    images = [one for folder in asked.folders for one in colour_images(folder, asked.images)]
    alarms = [bool(faces.face_boxes(image)) for _, image in images]
    for number, name in enumerate(("first half, for choosing", "second half, for stating")):
        found = [alarm for (source, _), alarm in zip(images, alarms, strict=True) if half(source) == number]
        sets = {source for source, _ in images if half(source) == number}
        print(f"{name}: {sum(found)} false alarms in {len(found)} colour images of {len(sets)} data sets")
    chosen = [images[37 * number % len(images)][1] for number in range(COMPOSITES)]
    hits = sum(bool(faces.face_boxes(composite(image, number))) for number, image in enumerate(chosen))
    print(f"composites: {hits} of {COMPOSITES} found")


if __name__ == "__main__":
    main()
