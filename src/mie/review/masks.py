"""Masks to choose from, masks that people repaired, and the mask that most of them chose.

Masks are `(H, W) uint8`; class k of n has the value round(255 k / n), 0 is background.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from sqlalchemy import Connection, select

from mie.core.files import inside
from mie.core.hashing import file_stem
from mie.errors import ImageError, MieError
from mie.images.png import encode_png, png_size
from mie.images.raster import raster_format, read_raster_labels
from mie.records import Pixels
from mie.review.database import items, masks

MAX_PROPOSALS: Final = 3
REGION_NAMES: Final = ("region-1", "region-2", "region-3")


def propose_masks(mask: Pixels, image: Pixels) -> dict[str, Pixels]:
    """Return at most three masks by name, the dataset's own first; no duplicates, no class lost."""
    proposals = {"source": mask}
    classes = _classes(mask)
    for name, derive in (("eroded", _eroded), ("dilated", _dilated), ("thresholded", _thresholded)):
        derived = derive(mask, image)
        is_new = not any(np.array_equal(derived, other) for other in proposals.values())
        if len(proposals) < MAX_PROPOSALS and is_new and _classes(derived) == classes:
            proposals[name] = derived
    return proposals


def _classes(mask: Pixels) -> set[int]:
    return set(np.unique(mask).tolist()) - {0}


def _disc(mask: Pixels) -> Any:
    """Return a disc whose radius is a hundredth of the shorter side, at least one pixel."""
    radius = max(1, round(min(mask.shape[:2]) / 100))
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))


def _eroded(mask: Pixels, _image: Pixels) -> Pixels:
    out = np.zeros_like(mask)
    for value in _classes(mask):
        region = (mask == value).astype(np.uint8)
        # The border is replicated: a region that is cut off by the image's edge is not eroded there.
        out[cv2.erode(region, _disc(mask), borderType=cv2.BORDER_REPLICATE) > 0] = value
    return out


def _dilated(mask: Pixels, _image: Pixels) -> Pixels:
    """Each class grows into the background only."""
    out = mask.copy()
    for value in sorted(_classes(mask)):
        grown = cv2.dilate((mask == value).astype(np.uint8), _disc(mask)) > 0
        out[grown & (out == 0)] = value
    return out


def _thresholded(mask: Pixels, image: Pixels) -> Pixels:
    """Split the box around a single class by Otsu's threshold; keep the side that the mask covers more."""
    out = np.zeros_like(mask)
    classes = _classes(mask)
    if len(classes) != 1:
        return out
    ys, xs = np.nonzero(mask)
    box = np.s_[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    grey = (
        image[box] if image.ndim == 2 else cv2.cvtColor(np.ascontiguousarray(image[box]), cv2.COLOR_RGB2GRAY)
    )
    _, bright = cv2.threshold(np.ascontiguousarray(grey), 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    covered = bright[mask[box] > 0].mean()
    out[box] = np.where(bright == (covered >= 0.5), classes.pop(), 0)
    return out


def read_upload(data: bytes, size: tuple[int, int], classes: Mapping[int, str]) -> Pixels:
    """Decode a repaired mask, `(H, W) uint8` of `size`; anything else is an error."""
    if raster_format(data[:12]) != "PNG" or len(data) < 33:
        raise ImageError("the mask is not a PNG file", expected="PNG")
    stated = png_size(data)
    if stated != size:  # before anything is decoded: so large as the item's image, and no larger
        raise ImageError(
            "the mask has the wrong size",
            expected=f"{size[1]}x{size[0]}",
            found=f"{stated[1]}x{stated[0]}",
        )
    values = read_raster_labels(data, where="the upload")
    present = set(np.unique(values).tolist())
    if unknown := sorted(present - {0, *classes}):
        raise ImageError("the mask has unknown values", expected=f"0, {sorted(classes)}", found=unknown[:5])
    if missing := [name for value, name in classes.items() if value not in present]:
        raise ImageError(
            "a class is missing from the mask",
            expected=", ".join(missing),
            fix="reject the sample if the structure is not there",
        )
    return np.ascontiguousarray(values.astype(np.uint8))


class RegionProposals:
    """The regions in a folder that `mie propose` wrote, by sample.

    `proposals.jsonl` lists the regions of each sample, `<id>_<n>.png` holds them (255 inside). They are
    copied into the review's database when its items are created; the folder is not needed afterwards.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "proposals.jsonl"
        try:
            data = path.read_bytes()
        except OSError:
            fix = "create it with `mie propose DATASET -o FOLDER`"
            raise MieError("no region proposals in this folder", where=path, fix=fix) from None
        data = data[: data.rfind(b"\n") + 1]  # without a line that is still being written
        self.folder = folder
        self.digest = hashlib.sha256(data).hexdigest()
        self._counts: dict[str, int] = {}
        for number, line in enumerate(data.splitlines(), start=1):
            try:
                body: Any = json.loads(line)
                self._counts[str(body["id"])] = len([n for n in body["regions"] if n != "source"])
            except (ValueError, KeyError, TypeError):
                where = f"{path}:{number}"
                raise MieError("not a line of region proposals", where=where, found=line[:60]) from None

    def __contains__(self, sample_id: object) -> bool:
        return self._counts.get(str(sample_id), 0) > 0

    def load(self, sample_id: str, size: tuple[int, int]) -> dict[str, bytes]:
        """Return name -> PNG of `size` (height, width), 255 inside, without empty regions and duplicates."""
        regions: dict[str, bytes] = {}
        for number in range(self._counts.get(sample_id, 0)):
            path = inside(self.folder, self.folder, f"{file_stem(sample_id)}_{number}.png")
            values = read_raster_labels(path.read_bytes(), where=path)
            if values.shape != size:
                expected = f"{size[1]}x{size[0]}"
                raise ImageError("the region and its image differ in size", where=path, expected=expected)
            png = encode_png(np.where(values > 0, np.uint8(255), np.uint8(0)))
            if values.any() and png not in regions.values():
                regions[REGION_NAMES[len(regions)]] = png
        return regions


@dataclass(frozen=True, slots=True)
class MaskVote:
    """The mask that most raters chose."""

    choice: str
    upload: str | None  # the SHA-256 of a repaired mask
    votes: int


def majority(payloads: Sequence[Mapping[str, Any]]) -> MaskVote | None:
    """Return what more than half of the raters chose; None if there is no such mask, as at exactly half."""
    (choice, upload), votes = Counter((p["choice"], p["mask"]) for p in payloads).most_common(1)[0]
    return MaskVote(choice, upload, votes) if 2 * votes > len(payloads) else None


def stored_mask(connection: Connection, item_id: int, vote: MaskVote) -> bytes | None:
    """Return a repaired mask or a proposed region as PNG; None if it is derived from the dataset's mask."""
    sha256 = vote.upload
    if vote.choice in REGION_NAMES:
        outputs = connection.execute(select(items.c.outputs).where(items.c.id == item_id)).scalar_one()
        sha256 = {name: sha for name, _, sha in outputs}[vote.choice]
    if sha256 is None:
        return None
    query = select(masks.c.png).where(masks.c.sha256 == sha256, masks.c.item_id == item_id)
    return bytes(connection.execute(query).scalar_one())
