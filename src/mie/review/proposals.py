"""Masks to choose from where a data set has one: its own, a tighter and a wider one, so named.

Masks are `(H, W) uint8`; class k of n has the value round(255 k / n), 0 is background.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from sqlalchemy import Connection, insert, select

from mie.core.files import inside
from mie.core.hashing import file_stem
from mie.errors import ImageError, MieError
from mie.images.limits import Limits, check_bytes
from mie.images.png import encode_png, png_size
from mie.images.raster import raster_format, read_raster_labels
from mie.records import Pixels
from mie.review.database import items, masks
from mie.review.material import Candidate, Material

MOST: Final = 3
_UPLOAD: Final = Limits(max_pixels=64_000_000, max_bytes=8 * 2**20)


def radius(size: Sequence[int]) -> int:
    """How far to shrink and grow: a hundredth of the shorter side, at least a pixel."""
    return max(1, round(min(size[:2]) / 100))


def labels(size: Sequence[int]) -> dict[str, str]:
    """What each proposal of an image is, in words; keys are those of `proposals` and of `Regions`."""
    by = radius(size)
    return {
        "source": "the data set's mask",
        "eroded": f"shrunk by {by} px",
        "dilated": f"grown by {by} px",
        "thresholded": "Otsu threshold inside the mask's box",
        **{name: f"proposed region {n}" for n, name in enumerate(NAMES, start=1)},
    }


def proposals(mask: Pixels, image: Pixels) -> dict[str, Pixels]:
    """At most three masks by name, the data set's own first; none twice, and none that loses a class."""
    found = {"source": mask}
    makers = {"eroded": _eroded, "dilated": _dilated, "thresholded": _thresholded}
    values = _values(mask)
    for name, make in makers.items():
        made = make(mask, image)
        fresh = not any(np.array_equal(made, other) for other in found.values())
        if len(found) < MOST and fresh and _values(made) == values:
            found[name] = made
    return found


def _values(mask: Pixels) -> set[int]:
    return set(np.unique(mask).tolist()) - {0}


def _disc(by: int) -> Any:
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * by + 1, 2 * by + 1))


def _eroded(mask: Pixels, _image: Pixels) -> Pixels:
    out = np.zeros_like(mask)
    for value in _values(mask):
        region = (mask == value).astype(np.uint8)
        # Beyond the border lies more of the same: a region that is cut off there is not shrunk there.
        out[cv2.erode(region, _disc(radius(mask.shape)), borderType=cv2.BORDER_REPLICATE) > 0] = value
    return out


def _dilated(mask: Pixels, _image: Pixels) -> Pixels:
    """Each class grows into the background only."""
    out = mask.copy()
    for value in sorted(_values(mask)):
        grown = cv2.dilate((mask == value).astype(np.uint8), _disc(radius(mask.shape))) > 0
        out[grown & (out == 0)] = value
    return out


def _thresholded(mask: Pixels, image: Pixels) -> Pixels:
    """Of one class: the brighter or the darker part of its box, whichever the mask covers more of."""
    out = np.zeros_like(mask)
    values = _values(mask)
    if len(values) != 1:
        return out
    ys, xs = np.nonzero(mask)
    box = np.s_[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]
    grey = (
        image[box] if image.ndim == 2 else cv2.cvtColor(np.ascontiguousarray(image[box]), cv2.COLOR_RGB2GRAY)
    )
    _, bright = cv2.threshold(np.ascontiguousarray(grey), 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    inside = bright[mask[box] > 0].mean()
    out[box] = np.where(bright == (inside >= 0.5), values.pop(), 0)
    return out


def read_upload(data: bytes, size: tuple[int, int], classes: Mapping[int, str]) -> Pixels:
    """A repaired mask as a person sent it: `(H, W) uint8` of `size`, refused when it is anything else."""
    check_bytes(len(data), where="the upload", limits=_UPLOAD)
    if raster_format(data[:12]) != "PNG":
        raise ImageError("the mask is not a PNG file", expected="PNG")
    values = read_raster_labels(data, where="the upload", limits=_UPLOAD)
    if values.shape != size:
        raise ImageError(
            "the mask has another size",
            expected=f"{size[1]}x{size[0]}",
            found=f"{values.shape[1]}x{values.shape[0]}",
        )
    there = set(np.unique(values).tolist())
    if strange := sorted(there - {0, *classes}):
        raise ImageError("the mask has unknown values", expected=f"0, {sorted(classes)}", found=strange[:5])
    if missing := [name for value, name in classes.items() if value not in there]:
        raise ImageError(
            "the mask leaves something out",
            expected=", ".join(missing),
            fix="reject the sample if it is not there",
        )
    return np.ascontiguousarray(values.astype(np.uint8))


# Regions that models propose, from the folder that `mie propose` writes: what the mask work shows.
#
# `proposals.jsonl` names the regions of each sample, `<id>_<n>.png` holds them (255 inside). They are
# copied
# into the review's database when its items are made: the folder is not needed after that.

NAMES: Final = ("region-1", "region-2", "region-3")


class Regions:
    """The proposals of a folder, by sample."""

    def __init__(self, folder: Path) -> None:
        path = folder / "proposals.jsonl"
        try:
            data = path.read_bytes()
        except OSError:
            fix = "make them with `mie propose DATASET -o FOLDER`"
            raise MieError("no region proposals here", where=path, fix=fix) from None
        data = data[: data.rfind(b"\n") + 1]  # not a line that is being written
        self.folder = folder
        self.digest = hashlib.sha256(data).hexdigest()
        self._listed: dict[str, int] = {}
        for number, line in enumerate(data.splitlines(), start=1):
            try:
                body: Any = json.loads(line)
                self._listed[str(body["id"])] = len([n for n in body["regions"] if n != "source"])
            except (ValueError, KeyError, TypeError):
                where = f"{path}:{number}"
                raise MieError("not a line about regions", where=where, found=line[:60]) from None

    def __contains__(self, sample_id: object) -> bool:
        return self._listed.get(str(sample_id), 0) > 0

    def of(self, sample_id: str, size: tuple[int, int]) -> dict[str, bytes]:
        """Name -> PNG, `size` (height, width), 255 inside; empty regions and doubles are left out."""
        found: dict[str, bytes] = {}
        for number in range(self._listed.get(sample_id, 0)):
            path = inside(self.folder, self.folder, f"{file_stem(sample_id)}_{number}.png")
            values = read_raster_labels(path.read_bytes(), where=path)
            if values.shape != size:
                expected = f"{size[1]}x{size[0]}"
                raise ImageError("a region of another size than its image", where=path, expected=expected)
            png = encode_png(np.where(values > 0, np.uint8(255), np.uint8(0)))
            if values.any() and png not in found.values():
                found[NAMES[len(found)]] = png
        return found


def beside(
    material: Material, chosen: Sequence[Candidate], regions: Regions | None
) -> Iterable[tuple[Candidate, list[tuple[Any, str, str]]]]:
    """Each sample and, for masks, the regions [(name, sample, sha256), ...] that models proposed.

    A region has one class: samples with several keep the proposals made from their own mask.
    """
    for one in chosen:
        found: list[tuple[Any, str, str]] = []
        if regions is not None and not one.several:
            made = _regions_of(material, one.sample_id, one.places[0], regions)
            found = [(name, one.sample_id, hashlib.sha256(png).hexdigest()) for name, png in made.items()]
        if found or one.painted or regions is None:
            yield one, found


def _regions_of(
    material: Material, sample_id: str, place: Sequence[Any], regions: Regions
) -> dict[str, bytes]:
    return regions.of(sample_id, png_size(material.row(place, ["input"])["input"]["bytes"]))


def keep(connection: Connection, material: Material, task_id: int, regions: Regions) -> None:
    """Copy the regions of the items into the database, beside the masks that people repair."""
    of_task = select(items.c.id, items.c.sample_id, items.c.places, items.c.outputs)
    for row in connection.execute(of_task.where(items.c.task_id == task_id)).all():
        if row.outputs:
            made = _regions_of(material, row.sample_id, row.places[0], regions)
            bodies = [
                {"sha256": sha256, "item_id": row.id, "png": made[name], "at": time.time()}
                for name, _, sha256 in row.outputs
            ]
            connection.execute(insert(masks), bodies)
