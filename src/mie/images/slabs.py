"""Volumes a few slices at a time: read, shown as radiologists look at them, and written back where they lay.

A slab is `(X, Y, n)`: `n` slices along the volume's last stored axis, in which files hold their slices one
after the other. So a volume that is larger than the memory can be read and written, also through gzip. Any
other plane needs the whole volume in memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import nibabel as nib
import numpy as np
from isal import igzip
from numpy.typing import NDArray

from mie.core.files import atomic_path
from mie.errors import ConfigError, ImageError
from mie.images.dicom_series import Series
from mie.images.volume_files import MAX_VOXELS, NIFTI_SUFFIXES, NiftiStream, read_stored
from mie.images.volumes import AXIS, check_affine, obliquity_steps, slice_of, slice_spacing
from mie.images.windows import check_finite, holds_air, volume_window
from mie.records import Step
from mie.vocabulary import PLANES

NIFTI_OUT: Final = (".nii", ".nii.gz")
_SAMPLED: Final = 1 << 23  # values from which a window is found


class Stored(Protocol):
    """A volume by its stored axes, the slices along the last one."""

    @property
    def shape(self) -> tuple[int, int, int]: ...
    @property
    def affine(self) -> NDArray[np.float64]: ...
    @property
    def steps(self) -> tuple[Step, ...]: ...
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Slices `start` to `stop`, `(X, Y, n)`. Slabs are read forwards."""
        ...


@dataclass(frozen=True)
class InMemory:
    """A volume whose voxels are all there."""

    data: NDArray[Any]
    affine: NDArray[np.float64]
    steps: tuple[Step, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        x, y, z = self.data.shape
        return x, y, z

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.data[:, :, start:stop]


@dataclass(frozen=True)
class Slabs:
    """A stored volume and the plane in which its slices are shown; made by `open_slabs`."""

    stored: Stored
    plane: str
    axes: tuple[int, int, int]  # of the file, in the order of the slabs' axes
    header: Any = None  # the NIfTI header, where the file has one

    @property
    def count(self) -> int:
        return self.stored.shape[2]

    @property
    def turn(self) -> NDArray[Any]:
        """From the slabs' axes to RAS+."""
        return np.asarray(nib.io_orientation(self.stored.affine))

    @property
    def spacing(self) -> tuple[float, float]:
        """(row, column) millimetres of a slice as it is shown."""
        sizes = np.linalg.norm(self.stored.affine[:3, :3], axis=0)
        x, y, z = (float(sizes[int(np.flatnonzero(self.turn[:, 0] == axis)[0])]) for axis in range(3))
        return slice_spacing((x, y, z), self.plane)

    @property
    def thickness(self) -> float:
        """Millimetres from slice to slice."""
        return float(np.linalg.norm(self.stored.affine[:3, 2]))

    def slabs(self, size: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """(first slice, slab), forwards; values are finite."""
        for start in range(0, self.count, size):
            slab = self.stored.read(start, min(start + size, self.count))
            check_finite(slab, self.plane)
            yield start, slab

    def shown(self, slab: NDArray[Any]) -> list[NDArray[Any]]:
        """The slab's slices as views that hang as on a light box; writing to them writes to the slab."""
        turned = nib.apply_orientation(slab, self.turn)
        count = slab.shape[2]
        # Along the patient's axis the slices may run the other way.
        backwards = self.turn[2, 1] < 0
        return [slice_of(turned, self.plane, count - 1 - at if backwards else at) for at in range(count)]

    def window(self, *, hounsfield: bool | None, where: object) -> dict[str, Any]:
        """A grey window for the whole volume, from at most some million of its values.

        Args:
            hounsfield: Whether the values are Hounsfield units; None: yes where they hold air.
            where: The file, for errors.

        """
        every = max(1, math.ceil(math.prod(self.stored.shape) / _SAMPLED))
        parts = [slab.ravel(order="K")[::every].copy() for _, slab in self.slabs(_slab_size(self))]
        values = np.concatenate(parts)
        window = volume_window(
            values, hounsfield=holds_air(values) if hounsfield is None else hounsfield, where=where
        )
        if window.get("constant"):
            raise ImageError("volume holds one value only", where=where, found=window["low"])
        return window


def _slab_size(slabs: Slabs) -> int:
    x, y, _ = slabs.stored.shape
    return max(1, _SAMPLED // (x * y))


@contextlib.contextmanager
def open_slabs(source: Path | Series, plane: str | None = None) -> Iterator[Slabs]:
    """A NIfTI, NRRD or MetaImage file, or a DICOM series, in slabs along `plane`.

    By default the plane is the one whose slices the file holds one after the other. Then a NIfTI file or a
    series may be larger than the memory.
    """
    if plane is not None and plane not in PLANES:
        raise ConfigError("no such plane", expected=", ".join(PLANES), found=plane)
    if isinstance(source, Series):
        check_affine(source.affine, source.where)
        yield _along(source, plane, source.where)
        return
    name = source.name.lower()
    if not name.endswith(NIFTI_SUFFIXES):
        stored = read_stored(source, MAX_VOXELS)
        check_affine(stored.affine, source)
        yield _along(InMemory(*stored), plane, source)
        return
    if not source.is_file():
        raise ImageError("no such volume", where=source, expected="a file")
    with NiftiStream(source) as stream:
        check_affine(stream.affine, source)
        found = _along(stream, plane, source)
        yield Slabs(found.stored, found.plane, found.axes, stream.header)


def _along(stored: Stored, plane: str | None, where: object) -> Slabs:
    turn = nib.io_orientation(stored.affine)
    own = next(name for name, axis in AXIS.items() if axis == int(turn[2, 0]))
    if plane is None or plane == own:
        return Slabs(_with_steps(stored), own, (0, 1, 2))
    if math.prod(stored.shape) > MAX_VOXELS:
        raise ImageError(
            "the volume is too large to be cut in this plane",
            where=where,
            expected=f"at most {MAX_VOXELS:,} voxels, or the plane {own}, in which its slices are stored",
            found=" x ".join(map(str, stored.shape)),
        )
    axis = int(np.flatnonzero(turn[:, 0] == AXIS[plane])[0])
    first, second = (a for a in range(3) if a != axis)
    axes = (first, second, axis)
    data = stored.read(0, stored.shape[2]).transpose(axes)
    affine = stored.affine[:, [*axes, 3]]
    return Slabs(_with_steps(InMemory(data, affine, stored.steps)), plane, axes)


def _with_steps(stored: Stored) -> Stored:
    """The stored volume; an oblique one says so in its steps."""
    return _Described(stored, (*stored.steps, *obliquity_steps(stored.affine)))


@dataclass(frozen=True)
class _Described:
    stored: Stored
    steps: tuple[Step, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.stored.shape

    @property
    def affine(self) -> NDArray[np.float64]:
        return self.stored.affine

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.stored.read(start, stop)


class NiftiWriter:
    """Writes slabs of `slabs`' volume as NIfTI on the very grid of its file, one after the other.

    The file appears under its name when all slices are there. The same slabs give the same bytes.
    """

    def __init__(self, path: Path, slabs: Slabs, dtype: Any, description: str) -> None:
        if not path.name.lower().endswith(NIFTI_OUT):
            raise ConfigError("a volume is written as NIfTI", expected=" or ".join(NIFTI_OUT), found=path)
        self._path = path
        self._axes = slabs.axes
        self._dtype = np.dtype(dtype)
        self._streams = slabs.axes == (0, 1, 2)
        self._collected: list[NDArray[Any]] = []
        shape = tuple(slabs.stored.shape[slabs.axes.index(axis)] for axis in range(3))
        columns = [slabs.axes.index(axis) for axis in range(3)]
        self._header = _header(slabs.header, slabs.stored.affine[:, [*columns, 3]], shape, self._dtype)
        self._header["descrip"] = description.encode("ascii", "replace")[:79]
        self._left = slabs.count

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self._scratch = self._stack.enter_context(atomic_path(self._path))
        file = self._stack.enter_context(self._scratch.open("wb"))
        self._file: Any = file
        if self._path.name.lower().endswith(".gz"):
            # No time and no name in the gzip header.
            self._file = self._stack.enter_context(
                igzip.IGzipFile(filename="", mode="wb", fileobj=file, mtime=0)
            )
        self._header.write_to(self._file)  # with the four bytes that say "no extension"
        return self

    def write(self, slab: NDArray[Any]) -> None:
        """Append `(X, Y, n)` slices by the slabs' axes."""
        self._left -= slab.shape[2]
        if self._streams:
            self._file.write(np.asarray(slab, self._dtype).tobytes(order="F"))
        else:
            self._collected.append(np.asarray(slab, self._dtype))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._left:
            kind, error = ImageError, ImageError("slices are missing at the end", found=self._left)
        if kind is None and self._collected:
            whole = np.concatenate(self._collected, axis=2)
            back = whole.transpose([self._axes.index(axis) for axis in range(3)])
            self._file.write(np.ascontiguousarray(back.T).tobytes())
        if kind is None:
            self._stack.close()
        else:
            self._stack.__exit__(kind, error, trace)


def _header(source: Any, affine: NDArray[np.float64], shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    """The source's NIfTI header, or a new one from the affine, for voxels of `dtype`."""
    if isinstance(source, nib.Nifti1Header):
        header = source.copy()
        header.extensions.clear()
        for field in ("cal_min", "cal_max", "intent_code", "intent_p1", "intent_p2", "intent_p3"):
            header[field] = 0
        header["intent_name"] = b""
    else:
        header = nib.Nifti1Header()
        header.set_xyzt_units("mm")
        header.set_qform(affine, code="scanner", strip_shears=True)
        header.set_sform(affine, code="scanner")
        header["pixdim"][1:4] = np.linalg.norm(affine[:3, :3], axis=0)
    header.set_data_shape(shape)
    header.set_data_dtype(dtype)
    header.set_slope_inter(1, 0)
    header["vox_offset"] = header.single_vox_offset
    header["magic"] = header.single_magic
    return header
