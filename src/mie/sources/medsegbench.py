"""MedSegBench archives: arrays `{split}_images` and `{split}_label` in one `.npz`, or their `_C1` form."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mie.errors import ImageError, MieError
from mie.images.intensity import to_8bit
from mie.images.npz import NpzArrays
from mie.records import Case, Refusal, Step, Unit
from mie.sources import patterns
from mie.sources.catalog import Entry, MedSegBenchLayout
from mie.sources.markings import masks_of
from mie.sources.subjects import patient_of

_SPLITS = ("train", "val", "test")
_ROWS_PER_UNIT = 64


class MedSegBenchSource:
    """One or several archives of the family; the archives' own splits are followed."""

    def __init__(self, entry: Entry, root: Path) -> None:
        assert isinstance(entry.layout, MedSegBenchLayout)  # noqa: S101
        self.entry = entry
        self.root = root
        self.layout = entry.layout
        self._listing = patterns.Listing(root)

    def _names(self, split: str, arrays: NpzArrays) -> tuple[str, str]:
        """The arrays of a split. Some archives give a category its own images, others only its own labels."""
        suffix = f"_{self.layout.category}" if self.layout.category else ""
        own = f"{split}_images{suffix}"
        return own if own in arrays.names else f"{split}_images", f"{split}_label{suffix}"

    def _archives(self) -> list[tuple[str, dict[str, str]]]:
        """The archives that match; of one data set in several sizes, the largest."""
        largest: dict[tuple[tuple[str, str], ...], tuple[int, str, dict[str, str]]] = {}
        for path, places in self._listing.matches(self.layout.files):
            rest = tuple(sorted((k, v) for k, v in places.items() if k != "size"))
            size = int(places["size"]) if places.get("size", "").isdigit() else 0
            if rest not in largest or size > largest[rest][0]:
                largest[rest] = (size, path, places)
        return [(path, places) for _, path, places in largest.values()]

    def scan(self) -> Iterator[Unit | Refusal]:
        for path, places in self._archives():
            try:
                arrays = _open(self._listing.inside(path))
            except MieError as error:
                yield Refusal(self.entry.name, path, "source", error.reason)
                continue
            splits = [s for s in _SPLITS if set(self._names(s, arrays)) <= set(arrays.names)]
            if not splits:
                expected = " and ".join(self._names("train", arrays))
                reason = f"expected arrays {expected}; found {', '.join(arrays.names[:6]) or 'none'}"
                yield Refusal(self.entry.name, path, "source", reason)
            for split in splits:
                count = arrays.shape(self._names(split, arrays)[0])[0]
                for start in range(0, count, _ROWS_PER_UNIT):
                    rows = (start, min(start + _ROWS_PER_UNIT, count))
                    key = f"{path}:{split}:{rows[0]}-{rows[1]}"
                    yield Unit(key, {"image": (path,)}, patient_of(self.entry, path, places), split, rows)

    def load(self, unit: Unit) -> Iterator[Case | Refusal]:
        entry = self.entry
        path = unit.files["image"][0]
        start, stop = unit.rows or (0, 0)
        split = unit.split or "train"
        arrays = _open(self._listing.inside(path))
        image_name, label_name = self._names(split, arrays)
        images, labels = arrays.rows(image_name, start, stop), arrays.rows(label_name, start, stop)
        for at, (image, label) in enumerate(zip(images, labels, strict=True), start=start):
            case_id = f"{path}:{split}:{at}"
            try:
                pixels, steps = _rgb(image, entry)
                label = np.squeeze(label)
                if label.shape != pixels.shape[:2]:
                    raise ImageError(
                        "image and label differ in size", expected=pixels.shape[:2], found=label.shape
                    )
                masks = masks_of(label, entry.targets, entry)
            except MieError as error:
                yield Refusal(entry.name, case_id, "image", error.reason)
                continue
            yield Case(
                source=entry.name,
                case_id=case_id,
                image=pixels,
                modality=entry.modality,
                anatomy=entry.anatomy,
                masks={t.name: masks[t.name] for t in entry.targets if t.name in masks},
                targets={t.name: t.target for t in entry.targets},
                patient_id=unit.patient_id,
                split=split,
                license=entry.license.name,
                steps=steps,
            )


@lru_cache(maxsize=2)
def _open(path: Path) -> NpzArrays:
    return NpzArrays(path)


def _rgb(image: NDArray[Any], entry: Entry) -> tuple[NDArray[np.uint8], tuple[Step, ...]]:
    """(H, W), (H, W, 1) or (H, W, 3) of any type to RGB, with the step that made it 8 bits."""
    image = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise ImageError("array is not an image", expected="(H, W) or (H, W, 3)", found=image.shape)
    window = entry.window.model_dump() if entry.window else {}
    pixels, step = to_8bit(image, **window)
    rgb = np.repeat(pixels[..., None], 3, axis=2) if pixels.ndim == 2 else np.ascontiguousarray(pixels)
    return rgb, (step,) if step else ()
