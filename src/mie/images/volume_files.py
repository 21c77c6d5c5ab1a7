"""Volume files (NIfTI, NRRD, MetaImage) as they are stored.

NIfTI comes through nibabel, NRRD and MetaImage through readers of our own. The header is read first, so that
a file which promises a billion voxels, or more than its bytes can hold, is refused before any is read.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

import nibabel as nib
import numpy as np
from isal import igzip
from numpy.typing import NDArray

from mie.core import scratch
from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, check_bytes, check_promise, decoding
from mie.images.metaimage import read_meta_header
from mie.images.nrrd import read_nrrd_header
from mie.images.volume_headers import file_beside, read_voxels
from mie.records import Step

NIFTI_SUFFIXES: Final = (".nii", ".nii.gz", ".hdr", ".img")
NRRD_SUFFIXES: Final = (".nrrd", ".nhdr")
META_SUFFIXES: Final = (".mha", ".mhd")
SUFFIXES: Final = NIFTI_SUFFIXES + NRRD_SUFFIXES + META_SUFFIXES

# ITK's world is LPS+ (x to the patient's Left, y Posterior); ours is RAS+.
LPS_TO_RAS: Final[NDArray[np.float64]] = np.diag([-1.0, -1.0, 1.0, 1.0])

# NIfTI's unit codes; everything else (also codes that do not exist) is taken as millimetres.
_MILLIMETRES: Final = {1: ("metres", 1000.0), 3: ("micrometres", 0.001)}

# 512 x 512 x 2048. The largest whole-body CT series are below it.
MAX_VOXELS: Final = 2**29
# Of the values that are worked on: MAX_VOXELS of float32.
MAX_BYTES: Final = 2**31

_BLOCK: Final = 1 << 20
_LONGEST_READ: Final = 1 << 26  # of a header's extension
_AFTER_VOXELS: Final = 1 << 24


class StoredVolume(NamedTuple):
    """Values (rescaled, else in the file's own type) by stored axis, and their RAS+ millimetres."""

    data: NDArray[Any]
    affine: NDArray[np.float64]
    steps: tuple[Step, ...]


def is_volume(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def read_stored(path: Path, max_voxels: int, channel: int | None = None) -> StoredVolume:
    name = path.name.lower()
    if not path.is_file():
        raise ImageError("no such volume", where=path, expected="a file")
    check_bytes(path.stat().st_size, where=path, limits=DEFAULT_LIMITS)
    if name.endswith(NIFTI_SUFFIXES):
        with decoding("NIfTI", where=path):
            return _read_nifti(path, max_voxels, channel)
    if name.endswith(NRRD_SUFFIXES):
        with decoding("NRRD", where=path):
            return _read_described(path, max_voxels)
    if name.endswith(META_SUFFIXES):
        with decoding("MetaImage", where=path):
            return _read_described(path, max_voxels)
    raise ImageError("not a volume file", where=path, expected=" ".join(SUFFIXES), found=path.name)


def check_size(shape: Sequence[int], max_voxels: int, path: object, width: int = 1) -> None:
    """Refuse an empty or an enormous grid, of `width` bytes a voxel, while only its header has been read."""
    if min(shape, default=0) < 1 or math.prod(shape) > max_voxels:
        raise ImageError(
            "volume size out of bounds",
            where=path,
            expected=f"1 to {max_voxels:,} voxels",
            found=" x ".join(map(str, shape)) or "no axes",
        )
    if math.prod(shape) * width > MAX_BYTES:
        raise ImageError(
            "volume is too large to work on",
            where=path,
            expected=f"at most {MAX_BYTES:,} bytes",
            found=f"{' x '.join(map(str, shape))} voxels of {width} bytes",
            fix="save it in a smaller type, or cut it",
        )


def _three_axes(shape: Sequence[int], path: Path, channel: int | None = None) -> tuple[int, ...]:
    """The first three lengths; a fourth axis may only be of length 1, or one of it is chosen."""
    if channel is not None and len(shape) == 4 and channel < shape[3]:
        return tuple(shape[:3])
    if len(shape) < 3 or any(n != 1 for n in shape[3:]):
        count = math.prod(shape[3:])
        raise ImageError(
            "not one volume",
            where=path,
            expected="three axes (a fourth of length 1 is dropped)",
            found=f"{' x '.join(map(str, shape))}" + (f", that is {count} volumes" if count > 1 else ""),
            fix="save the volume you mean as a file, or give `channel` in the layout" if count > 1 else None,
        )
    return tuple(shape[:3])


def _read_nifti(path: Path, max_voxels: int, channel: int | None) -> StoredVolume:
    if path.name.lower().endswith(".gz"):
        with igzip.open(path, "rb") as file:
            return _nifti_values(path, _open_gzip(file), max_voxels, file, channel)
    if path.suffix.lower() in (".hdr", ".img"):
        for suffix in (".hdr", ".img", ".HDR", ".IMG"):
            other = path.with_suffix(suffix)
            if os.path.lexists(other):
                file_beside(path, other.name)
    # mmap=False: a mapped file that shrinks while we read would kill the process, not raise.
    return _nifti_values(path, nib.load(path, mmap=False), max_voxels, None, channel)


def _nifti_values(
    path: Path, image: Any, max_voxels: int, stream: IO[bytes] | None, channel: int | None
) -> StoredVolume:
    kind = image.get_data_dtype()
    shape = _three_axes(image.shape, path, channel)
    check_size(shape, max_voxels, path)
    if kind.kind not in "iuf":
        raise ImageError("voxels are not plain numbers", where=path, expected="one number each", found=kind)
    scaled = (image.dataobj.slope, image.dataobj.inter) != (1, 0)
    check_size(shape, max_voxels, path, width=8 if scaled else kind.itemsize)
    affine, steps = _nifti_affine(image)
    promised = math.prod(image.shape) * kind.itemsize
    if stream is not None:
        check_promise(promised, path.stat().st_size, where=path)
    elif promised > (held := Path(image.file_map["image"].filename).stat().st_size):
        # Before the memory for them is taken.
        raise ImageError(
            "fewer voxels than the header says", where=path, expected=f"{promised:,} bytes", found=f"{held:,}"
        )
    chosen = channel is not None and len(image.shape) == 4
    data = _in_slabs(image.dataobj, shape, (channel,) if chosen else (0,) * (len(image.shape) - 3))
    if stream is not None:
        _read_to_end(stream, path, promised)
    steps += ({"step": "channel", "found": image.shape[3], "to": channel},) if chosen else ()
    return StoredVolume(data, affine, steps)


def _in_slabs(stored: Any, shape: tuple[int, ...], more: tuple[int | None, ...]) -> NDArray[Any]:
    """The voxels at `more` of the axes beyond the third, read a few slices at a time."""
    size = max(1, scratch.BLOCK // (shape[0] * shape[1] * 8))
    data: NDArray[Any] | None = None
    for start in range(0, shape[2], size):
        at = slice(None), slice(None), slice(start, start + size)
        slab = np.asanyarray(stored[(*at, *more)])
        data = scratch.zeros(shape, slab.dtype, order="F") if data is None else data
        data[at] = slab
        scratch.give_back()
    assert data is not None  # noqa: S101 (no axis is empty)
    return data


class NiftiStream:
    """A NIfTI file read forwards, a few slices along its last axis at a time. Not limited in voxels."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        path = self._path
        with self._stack, decoding("NIfTI", where=path):
            self._gzip: Any = None
            if path.name.lower().endswith(".gz"):
                self._gzip = self._stack.enter_context(igzip.open(path, "rb"))
                self._image = _open_gzip(self._gzip)
            else:
                self._image = nib.load(path, mmap=False)
            kind = self._image.get_data_dtype()
            x, y, z = _three_axes(self._image.shape, path)
            check_size((x, y, 1), MAX_VOXELS, path, width=8)  # one slice must fit
            if kind.kind not in "iuf":
                raise ImageError(
                    "voxels are not plain numbers", where=path, expected="one number each", found=kind
                )
            self.shape = x, y, z
            self.affine, self.steps = _nifti_affine(self._image)
            self.header = self._image.header
            promised = math.prod(self.shape) * kind.itemsize
            if self._gzip is not None:
                check_promise(promised, path.stat().st_size, where=path)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Slices `start` to `stop`, `(X, Y, n)`, after the header's scale."""
        x, y, z = self.shape
        with decoding("NIfTI", where=self._path):
            slab = np.asanyarray(self._image.dataobj[:, :, start:stop]).reshape(x, y, stop - start)
            if stop == z and self._gzip is not None:
                _read_to_end(self._gzip, self._path)
        return slab


def _read_to_end(stream: IO[bytes], path: Path, more: int = 0) -> None:
    """Only at the end of the file does gzip's checksum tell whether the voxels are right."""
    left = _AFTER_VOXELS + more
    while block := stream.read(_BLOCK):
        left -= len(block)
        if left < 0:
            raise ImageError(
                "more data than the header says", where=path, expected=f"at most {_AFTER_VOXELS} bytes"
            )


class _Bounded(io.BufferedIOBase):
    """A decompressed stream for nibabel, without reads to its end: those could be of any length."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_READ:
            raise ValueError(f"the header asks for a field of {size} bytes")
        return bytes(self._file.read(size))

    def readinto(self, buffer: Any, /) -> int:
        return int(self._file.readinto(buffer))

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())


def _open_gzip(file: IO[bytes]) -> Any:
    head = file.read(nib.Nifti2Header.sizeof_hdr)
    file.seek(0)
    for kind in (nib.Nifti1Image, nib.Nifti2Image):
        if kind.header_class.may_contain_header(head):
            return kind.from_file_map({"image": nib.FileHolder(fileobj=_Bounded(file))})
    raise ValueError("not a NIfTI header")


def _nifti_affine(image: Any) -> tuple[NDArray[np.float64], tuple[Step, ...]]:
    header = image.header
    steps: list[Step] = []
    affine = np.array(image.affine, np.float64)
    if not isinstance(header, nib.Nifti1Header):
        # Analyze 7.5 has no orientation at all; nibabel's documented reading is radiological (LAS).
        steps.append({"step": "orientation", "found": "missing", "assumed": "LAS"})
        return affine, tuple(steps)
    if header["qform_code"] == 0 and header["sform_code"] == 0:
        # nibabel would flip x here, as for Analyze; the NIfTI standard's "method 1" does not.
        affine = np.diag([*map(float, header.get_zooms()[:3]), 1.0])
        steps.append({"step": "orientation", "found": "missing", "assumed": "RAS"})
    code = int(header["xyzt_units"]) & 7
    if code in _MILLIMETRES:
        unit, millimetres = _MILLIMETRES[code]
        affine[:3] *= millimetres
        steps.append({"step": "units", "found": unit, "to": "millimetres"})
    return affine, tuple(steps)


def _read_described(path: Path, max_voxels: int) -> StoredVolume:
    """A NRRD or MetaImage file."""
    is_nrrd = path.name.lower().endswith(NRRD_SUFFIXES)
    header = read_nrrd_header(path) if is_nrrd else read_meta_header(path)
    check_size(header.shape, max_voxels, path, header.dtype.itemsize)
    shape = _three_axes(header.shape, path)
    if header.components != 1:
        raise ImageError(
            "voxels are not plain numbers",
            where=path,
            expected="one number each",
            found=f"{header.components} components",
        )
    steps: tuple[Step, ...] = ()
    if not header.oriented:
        steps = ({"step": "orientation", "found": "missing", "assumed": "LPS"},)
    return StoredVolume(read_voxels(header).reshape(shape, order="F"), LPS_TO_RAS @ header.affine, steps)
