"""MedSegBench archives: arrays `{split}_images` and `{split}_label` in one `.npz`, or their `_C1` form."""

from __future__ import annotations

import io
import math
import mmap
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mie.errors import ImageError, MieError
from mie.images.limits import DEFAULT_LIMITS, check_pixels, check_promise, decoding
from mie.images.windows import to_8bit
from mie.records import Case, Rejection, Step, Unit
from mie.sources import patterns
from mie.sources.catalog import Entry, MedSegBenchLayout, patient_of
from mie.sources.markings import masks_of

_LOCAL_HEADER = 30
_MAX_BYTES = 64 * 2**30
_MAX_MEMBERS = 10_000
_NPY_HEADER = 1 << 16  # bytes that hold an array's header
# Masks deflate well; what grows beyond both is a bomb.
_UNPACKED = 2**30
_GROWTH = 500


class _Layout(NamedTuple):
    """What an array's header says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int  # bytes before the values

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class NpzArrays:
    """The arrays of one archive. Stored ones are mapped in place; deflated ones are unpacked once per process
    to a nameless temporary file, so that reading any rows costs the same and nothing is left behind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with decoding("npz", where=path), zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > _MAX_MEMBERS:
                raise ImageError("archive has too many members", where=path, found=len(members))
            self._members = {
                i.filename.removesuffix(".npy"): i for i in members if i.filename.endswith(".npy")
            }
        self._mapped: dict[str, NDArray[Any]] = {}

    @property
    def names(self) -> list[str]:
        return sorted(self._members)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape, whose values the archive does hold."""
        member = self._member(name)
        with decoding("npz", where=f"{self.path}:{name}"):
            with zipfile.ZipFile(self.path) as archive, archive.open(member) as stream:
                layout = self._layout(stream.read(_NPY_HEADER), name)
            self._check_promise(layout, member, name)
        return layout.shape

    def rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop of the named array, as a view."""
        if name not in self._mapped:
            with decoding("npz", where=f"{self.path}:{name}"):
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

    def _layout(self, head: bytes, name: str) -> _Layout:
        """From the array's first bytes: a header cannot ask for more of them than are given."""
        where = f"{self.path}:{name}"
        stream = io.BytesIO(head)
        try:
            version = npy.read_magic(stream)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(stream)
        except (ValueError, EOFError, SyntaxError, TypeError) as error:
            raise ImageError("damaged array header", where=where, found=error) from None
        if dtype.hasobject:
            raise ImageError(
                "array holds Python objects, which only pickle could read",
                where=where,
                expected="a numeric array",
                found=dtype,
            )
        if dtype.kind not in "biuf" or not 3 <= len(shape) <= 4 or min(shape[1:]) < 1 or shape[0] < 0:
            raise ImageError(
                "array is not a stack of images",
                where=where,
                expected="(N, H, W) or (N, H, W, C) numbers",
                found=f"{shape} {dtype}",
            )
        check_pixels(shape[1], shape[2], where=where, limits=DEFAULT_LIMITS)
        layout = _Layout(shape, fortran, dtype, stream.tell())
        if layout.size > _MAX_BYTES:
            raise ImageError("array is too large", where=where, found=f"{layout.size} bytes")
        return layout

    def _check_promise(self, layout: _Layout, member: zipfile.ZipInfo, name: str) -> None:
        where = f"{self.path}:{name}"
        held = min(member.compress_size, self.path.stat().st_size)
        if member.compress_type == zipfile.ZIP_STORED:
            if layout.start + layout.size > held:
                raise ImageError("array is cut short", where=where, expected=layout.size, found=held)
            return
        check_promise(layout.size, held, where=where)
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if layout.size > free // 2 or (layout.size > _UNPACKED and layout.size > _GROWTH * held):
            raise ImageError(
                "array grows too much when it is unpacked",
                where=where,
                expected=f"at most {_GROWTH} times its {held:,} bytes, and half of the {free:,} free ones",
                found=f"{layout.size:,} bytes",
                fix="save the archive without compression (`numpy.savez`) if you trust it",
            )

    def _map(self, name: str) -> NDArray[Any]:
        member = self._member(name)
        if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
            with self.path.open("rb") as file:
                file.seek(member.header_offset)
                local = file.read(_LOCAL_HEADER)
                extra = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
                start = member.header_offset + _LOCAL_HEADER + extra
                file.seek(start)
                layout = self._layout(file.read(_NPY_HEADER), name)
                return self._memmap(file, start, layout, name)
        with tempfile.TemporaryFile(prefix="mie-npz-") as file:
            layout = self._unpack(member, file, name)
            return self._memmap(file, 0, layout, name)

    def _memmap(self, file: IO[bytes], start: int, layout: _Layout, name: str) -> NDArray[Any]:
        if 0 in layout.shape:
            return np.empty(layout.shape, layout.dtype)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start += layout.start
        if start + layout.size > len(mapped):
            raise ImageError("array is cut short", where=f"{self.path}:{name}")
        flat = np.frombuffer(mapped, layout.dtype, count=math.prod(layout.shape), offset=start)
        return flat.reshape(layout.shape, order="F" if layout.fortran else "C")

    def _unpack(self, member: zipfile.ZipInfo, file: IO[bytes], name: str) -> _Layout:
        """Write the member to the file, up to the bytes that its header promises."""
        with zipfile.ZipFile(self.path) as archive, archive.open(member) as source:
            head = source.read(_NPY_HEADER)
            layout = self._layout(head, name)
            self._check_promise(layout, member, name)
            left = layout.start + layout.size
            while head and left > 0:
                file.write(head[:left])
                left -= len(head)
                head = source.read(1 << 22)
            if left or head or source.read(1):  # at its end the member's checksum is compared
                raise ImageError("array is not as long as its header says", where=f"{self.path}:{name}")
        file.flush()
        return layout


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

    def scan(self) -> Iterator[Unit | Rejection]:
        for path, places in self._archives():
            try:
                arrays = _open(self._listing.inside(path))
            except MieError as error:
                yield Rejection(self.entry.name, path, "source", error.reason)
                continue
            splits = [s for s in _SPLITS if set(self._names(s, arrays)) <= set(arrays.names)]
            if not splits:
                expected = " and ".join(self._names("train", arrays))
                reason = f"expected arrays {expected}; found {', '.join(arrays.names[:6]) or 'none'}"
                yield Rejection(self.entry.name, path, "source", reason)
            for split in splits:
                try:
                    counts = [arrays.shape(name)[0] for name in self._names(split, arrays)]
                except MieError as error:
                    yield Rejection(self.entry.name, f"{path}:{split}", "source", error.reason)
                    continue
                if counts[0] != counts[1]:
                    reason = f"{counts[0]} images and {counts[1]} labels in {split}"
                    yield Rejection(self.entry.name, f"{path}:{split}", "source", reason)
                    continue
                count = counts[0]
                for start in range(0, count, _ROWS_PER_UNIT):
                    rows = (start, min(start + _ROWS_PER_UNIT, count))
                    key = f"{path}:{split}:{rows[0]}-{rows[1]}"
                    yield Unit(key, {"image": (path,)}, patient_of(self.entry, path, places), split, rows)
        yield from self._listing.odd(self.entry.name)

    def load(self, unit: Unit) -> Iterator[Case | Rejection]:
        entry = self.entry
        path = unit.files["image"][0]
        start, stop = unit.rows or (0, 0)
        split = unit.split or "train"
        arrays = _open(self._listing.inside(path))
        image_name, label_name = self._names(split, arrays)
        images, labels = arrays.rows(image_name, start, stop), arrays.rows(label_name, start, stop)
        if len(images) != len(labels):
            raise ImageError("images and labels differ in number", where=path)
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
                yield Rejection(entry.name, case_id, "image", error.reason)
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
