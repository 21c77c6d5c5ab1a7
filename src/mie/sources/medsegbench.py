"""MedSegBench archives: arrays `{split}_images` and `{split}_label` in one `.npz`, or their `_C1` form."""

from __future__ import annotations

import mmap
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mie.errors import ImageError, MieError
from mie.images.windows import to_8bit
from mie.records import Case, Refusal, Step, Unit
from mie.sources import patterns
from mie.sources.catalog import Entry, MedSegBenchLayout, patient_of
from mie.sources.markings import masks_of

_LOCAL_HEADER = 30
_MAX_BYTES = 64 * 2**30


class NpzArrays:
    """The arrays of one archive. Stored ones are mapped in place; deflated ones are unpacked once per process
    to a nameless temporary file, so that reading any rows costs the same and nothing is left behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._members = {
                    i.filename.removesuffix(".npy"): i
                    for i in archive.infolist()
                    if i.filename.endswith(".npy")
                }
        except (OSError, zipfile.BadZipFile) as error:
            raise ImageError("not a readable .npz archive", where=path, found=error) from None
        self._mapped: dict[str, NDArray[Any]] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._members)

    def shape(self, name: str) -> tuple[int, ...]:
        with zipfile.ZipFile(self.path) as archive, archive.open(self._member(name)) as stream:
            return self._header(stream, name)[0]

    def rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop of the named array, as a view."""
        if name not in self._mapped:
            self._mapped[name] = self._map(name)
        return self._mapped[name][start:stop]

    def _member(self, name: str) -> zipfile.ZipInfo:
        if name not in self._members:
            raise ImageError(
                "array missing from the archive",
                where=self.path,
                expected=name,
                found=", ".join(self.names[:8]) or "no arrays",
            )
        return self._members[name]

    def _header(self, stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        try:
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(stream)
        except (ValueError, zipfile.BadZipFile, EOFError) as error:
            raise ImageError("damaged array header", where=f"{self.path}:{name}", found=error) from None
        if dtype.hasobject:
            raise ImageError(
                "array holds Python objects, which only pickle could read",
                where=f"{self.path}:{name}",
                expected="a numeric array",
                found=dtype,
            )
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size > _MAX_BYTES:
            raise ImageError("array is too large", where=f"{self.path}:{name}", found=f"{size} bytes")
        return shape, fortran, dtype

    def _map(self, name: str) -> NDArray[Any]:
        member = self._member(name)
        if member.compress_type == zipfile.ZIP_STORED:
            with self.path.open("rb") as file:
                file.seek(member.header_offset)
                local = file.read(_LOCAL_HEADER)
                extra = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
                file.seek(member.header_offset + _LOCAL_HEADER + extra)
                return self._memmap(file, name)
        with tempfile.TemporaryFile(prefix="mie-npz-") as file:
            self._unpack(member, file)
            return self._memmap(file, name)

    def _memmap(self, file: IO[bytes], name: str) -> NDArray[Any]:
        shape, fortran, dtype = self._header(file, name)
        if 0 in shape:
            return np.empty(shape, dtype)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if file.tell() + size > len(mapped):
            raise ImageError("array is cut short", where=f"{self.path}:{name}")
        flat = np.frombuffer(mapped, dtype, count=int(np.prod(shape)), offset=file.tell())
        return flat.reshape(shape, order="F" if fortran else "C")

    def _unpack(self, member: zipfile.ZipInfo, file: IO[bytes]) -> None:
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(member) as source:
                while block := source.read(1 << 22):
                    file.write(block)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ImageError("damaged array", where=f"{self.path}:{member.filename}", found=error) from None
        file.flush()
        file.seek(0)


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
