"""Regions that models propose, from the folder that `mie propose` writes: what the mask work shows.

`proposals.jsonl` names the regions of each sample, `<id>_<n>.png` holds them (255 inside). They are copied
into the review's database when its items are made: the folder is not needed after that.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, insert, select

from mie.errors import ImageError, MieError
from mie.images.png import encode_png, png_size
from mie.images.raster import read_raster_labels
from mie.review.candidates import Candidate
from mie.review.material import Material
from mie.review.tables import items, masks
from mie.store.exports.target import stem
from mie.store.paths import inside

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
            path = inside(self.folder, self.folder, f"{stem(sample_id)}_{number}.png")
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
