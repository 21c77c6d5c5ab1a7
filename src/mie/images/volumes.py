"""Volume files (NIfTI, NRRD, MetaImage) in one orientation, and their slices as radiologists look at them.

NIfTI comes through nibabel, NRRD and MetaImage through readers of our own. The header is read first, so that
a file which promises a billion voxels, or more than its bytes can hold, is refused before any is read.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

import cv2
import nibabel as nib
import numpy as np
from isal import igzip
from numpy.typing import NDArray
from scipy import ndimage

from mie.errors import ImageError
from mie.images.limits import DEFAULT_LIMITS, check_bytes, check_promise, decoding
from mie.images.metaimage import read_meta_header
from mie.images.nrrd import read_nrrd_header
from mie.images.volume_headers import file_beside, read_voxels
from mie.records import Step
from mie.vocabulary import PLANES

NIFTI_SUFFIXES: Final = (".nii", ".nii.gz", ".hdr", ".img")
NRRD_SUFFIXES: Final = (".nrrd", ".nhdr")
META_SUFFIXES: Final = (".mha", ".mhd")
SUFFIXES: Final = NIFTI_SUFFIXES + NRRD_SUFFIXES + META_SUFFIXES

# ITK's world is LPS+ (x to the patient's Left, y Posterior); ours is RAS+.
LPS_TO_RAS: Final[NDArray[np.float64]] = np.diag([-1.0, -1.0, 1.0, 1.0])

# NIfTI's unit codes; everything else (also codes that do not exist) is taken as millimetres.
_MILLIMETRES: Final = {1: ("metres", 1000.0), 3: ("micrometres", 0.001)}


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
    data = np.asanyarray(image.dataobj[..., channel] if chosen else image.dataobj)
    if stream is not None:
        _read_to_end(stream, path, promised)
    steps += ({"step": "channel", "found": image.shape[3], "to": channel},) if chosen else ()
    return StoredVolume(data.reshape(shape), affine, steps)


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


# Volumes in one orientation, and the slices of them as radiologists look at them.
#
# Every volume comes out as RAS+: axis 0 grows towards the patient's Right, axis 1 Anterior, axis 2 Superior
# (nibabel's convention). DICOM and ITK think in LPS+; the readers turn that round.

# 512 x 512 x 2048. The largest whole-body CT series are below it.
MAX_VOXELS: Final = 2**29
# Of the values that are worked on: MAX_VOXELS of float32.
MAX_BYTES: Final = 2**31
# The axis that runs through a plane's slices.
AXIS: Final = {"axial": 2, "coronal": 1, "sagittal": 0}

_VOXEL_MM: Final = (1e-6, 1e4)
_SHEARED: Final = 0.01  # the volume of a voxel with edges of length 1; 1 is a cube
_OBLIQUE_DEGREES: Final = 0.01  # below is rounding in the header
_SAME_PLACE: Final = 0.01  # of a voxel
_SQUARE: Final = 1.02
_MAX_STRETCH: Final = 100.0


@dataclass(frozen=True)
class Volume:
    """`data` is (X, Y, Z), RAS+; `affine` takes (i, j, k, 1) to RAS+ millimetres of the voxel's centre."""

    data: NDArray[Any]
    spacing: tuple[float, float, float]
    affine: NDArray[np.float64]
    steps: tuple[Step, ...] = ()
    frame_of_reference: str | None = None  # DICOM's UID, where the file has one


def read_volume(
    path: Path, *, labels: bool = False, max_voxels: int = MAX_VOXELS, channel: int | None = None
) -> Volume:
    """A NIfTI, NRRD or MetaImage volume in RAS+ orientation.

    With `labels`, values must be whole numbers and come as integers. An oblique volume is not resampled: its
    axes are taken as the nearest patient axes and the angle is recorded. `channel` chooses one volume of a
    NIfTI file with four axes.
    """
    stored = read_stored(Path(path), max_voxels, channel)
    data = _whole_numbers(stored.data, path) if labels else stored.data
    return canonical(data, stored.affine, steps=stored.steps, where=path)


def canonical(
    data: NDArray[Any],
    affine: NDArray[np.float64],
    *,
    steps: Sequence[Step] = (),
    where: object = None,
    frame_of_reference: str | None = None,
) -> Volume:
    """Permute and flip the axes to the nearest RAS+ ones; `affine` is the RAS+ affine of `data` as given."""
    check_affine(affine, where)
    if data.dtype.kind == "f":
        wrong = data.size - int(np.isfinite(data).sum())
        if wrong:
            raise ImageError(
                "volume holds values that are no numbers",
                where=where,
                expected="finite values",
                found=f"{wrong} of {data.size} voxels are NaN or infinite",
            )
    found = "".join(nib.aff2axcodes(affine))
    steps = list(steps)
    if not any(step["step"] == "orientation" for step in steps):
        steps.append({"step": "orientation", "found": found, "to": "RAS"})
    steps += obliquity_steps(affine)
    turn = nib.io_orientation(affine)
    affine = affine @ nib.orientations.inv_ornt_aff(turn, data.shape)
    x, y, z = (float(mm) for mm in np.linalg.norm(affine[:3, :3], axis=0))
    return Volume(nib.apply_orientation(data, turn), (x, y, z), affine, tuple(steps), frame_of_reference)


def check_affine(affine: NDArray[np.float64], where: object) -> None:
    """Refuse axes that do not span space, and voxels of absurd sizes."""
    sizes = np.linalg.norm(affine[:3, :3], axis=0)
    small, large = _VOXEL_MM
    if (
        not np.isfinite(affine).all()
        or not ((sizes >= small) & (sizes <= large)).all()
        or abs(np.linalg.det(affine[:3, :3] / sizes)) < _SHEARED
    ):
        raise ImageError(
            "the volume's axes do not span space",
            where=where,
            expected=f"three directions and voxels of {small:g} to {large:g} mm",
            found=affine[:3].tolist(),
        )


def obliquity_steps(affine: NDArray[np.float64]) -> list[Step]:
    """A step that says by how much the axes differ from the patient's; none where they do not."""
    degrees = _obliquity(affine)
    return [{"step": "oblique", "degrees": round(degrees, 2)}] if degrees > _OBLIQUE_DEGREES else []


def _obliquity(affine: NDArray[np.float64]) -> float:
    """The largest angle in degrees between a voxel axis and the patient axis nearest to it."""
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    # By the sine: the arc cosine of a number near 1 turns 32-bit rounding into hundredths of a degree.
    off_axis = np.sqrt(np.maximum(0, (axes**2).sum(axis=0) - (axes**2).max(axis=0)))
    return float(np.degrees(np.arcsin(np.minimum(1, off_axis))).max())


def _whole_numbers(data: NDArray[Any], path: object) -> NDArray[Any]:
    if data.dtype.kind in "iu":
        return data
    limits = np.iinfo(np.int32)
    # NaN fails every comparison, so it counts as broken here too.
    whole = (data == np.rint(data)) & (data >= limits.min) & (data <= limits.max)
    if not whole.all():
        raise ImageError(
            "label map holds values that are no labels",
            where=path,
            expected="whole numbers",
            found=f"{int((~whole).sum())} voxels such as {data[~whole][0]:g}",
        )
    return data.astype(np.int32)


def slice_of(data: NDArray[Any], plane: str, index: int) -> NDArray[Any]:
    """One slice of RAS+ data as a 2-D view, the way it hangs on a light box (radiological convention).

    axial: rows run anterior to posterior, columns from the patient's right to left, so that the patient's
    right is on the image's left. coronal: rows superior to inferior, columns right to left. sagittal: rows
    superior to inferior, columns anterior to posterior.
    """
    if plane == "axial":
        return data[::-1, ::-1, index].T
    if plane == "coronal":
        return data[::-1, index, ::-1].T
    if plane == "sagittal":
        return data[index, ::-1, ::-1].T
    raise ValueError(f"plane must be one of {PLANES}, got {plane!r}")


def slice_spacing(spacing: tuple[float, float, float], plane: str) -> tuple[float, float]:
    """(row, column) millimetres of a slice from `slice_of`."""
    x, y, z = spacing
    return {"axial": (y, x), "coronal": (z, x), "sagittal": (z, y)}[plane]


def is_square(spacing: tuple[float, float]) -> bool:
    return max(spacing) <= _SQUARE * min(spacing)


def square_pixels(image: NDArray[Any], spacing: tuple[float, float], *, is_mask: bool) -> NDArray[Any]:
    """`image` (H, W[, C]) uint8, float32 (H, W), or a bool mask, with pixels as wide as they are high.

    The smaller spacing is kept, so nothing is thrown away; within 2% of square the array comes back as it is.
    """
    if is_square(spacing):
        return image
    if max(spacing) > _MAX_STRETCH * min(spacing):
        raise ImageError(
            "pixels are too far from square", expected=f"at most {_MAX_STRETCH:g} to 1", found=f"{spacing} mm"
        )
    rows, columns = (round(n * mm / min(spacing)) for n, mm in zip(image.shape[:2], spacing, strict=True))
    # NEAREST_EXACT samples at pixel centres, as LINEAR does; plain NEAREST would shift masks by half a pixel.
    way = cv2.INTER_NEAREST_EXACT if is_mask else cv2.INTER_LINEAR
    pixels = np.ascontiguousarray(image, dtype=np.float32 if image.dtype.kind == "f" else np.uint8)
    return cv2.resize(pixels, (columns, rows), interpolation=way).astype(image.dtype, copy=False)


def scaling(columns: float, rows: float) -> NDArray[np.float64]:
    """From pixel centres of a scaled image to those of the original, which has so many pixels for one."""
    matrix = np.eye(4)
    matrix[0, 0], matrix[1, 1] = columns, rows
    matrix[0, 3], matrix[1, 3] = (columns - 1) / 2, (rows - 1) / 2
    return matrix


def resampled(volume: Volume, onto: Volume, *, labels: bool = False, where: object = None) -> Volume:
    """`volume` on the grid of `onto`, both in the same patient space, linearly; outside it is its minimum.

    With `labels` each voxel takes the nearest value, and outside it is 0.
    """
    to_own = np.linalg.inv(volume.affine) @ onto.affine
    corners = np.array([(*c, 1) for c in product(*((0, n - 1) for n in onto.data.shape))], np.float64).T
    box = (to_own @ corners)[:3]
    if (box.max(axis=1) < 0).any() or (box.min(axis=1) > np.array(volume.data.shape) - 1).any():
        raise ImageError(
            "the two volumes do not overlap",
            where=where,
            expected=f"{_times(onto.data.shape)} voxels from {np.round(onto.affine[:3, 3], 1).tolist()} mm",
            found=f"{_times(volume.data.shape)} voxels from {np.round(volume.affine[:3, 3], 1).tolist()} mm",
        )
    data = ndimage.affine_transform(
        volume.data if labels else np.asarray(volume.data, np.float32),
        to_own[:3, :3],
        to_own[:3, 3],
        output_shape=onto.data.shape,
        order=0 if labels else 1,
        cval=0.0 if labels else float(volume.data.min()),
    )
    step = {"step": "resample", "found": list(volume.spacing), "to": list(onto.spacing)}
    return Volume(data, onto.spacing, onto.affine, (*volume.steps, step), volume.frame_of_reference)


def same_geometry(a: Volume, b: Volume) -> str | None:
    """None where the two grids lie on each other, else the reason in words.

    The corners may differ by a hundredth of a voxel: headers are written in 32-bit floats or a few digits.
    """
    if a.data.shape != b.data.shape:
        return f"shapes differ: {_times(a.data.shape)} and {_times(b.data.shape)} voxels"
    corners = np.array([(*c, 1) for c in product(*((0, n - 1) for n in a.data.shape))], np.float64).T
    apart = np.linalg.norm(((a.affine - b.affine) @ corners)[:3], axis=0).max()
    if apart <= _SAME_PLACE * min(a.spacing):
        return None
    if not np.allclose(a.spacing, b.spacing, rtol=1e-3):
        return f"spacings differ: {_times(a.spacing)} and {_times(b.spacing)} mm"
    return f"positions differ by up to {apart:.3g} mm (voxels of {_times(a.spacing)} mm)"


def _times(numbers: Sequence[float]) -> str:
    return " x ".join(f"{n:.4g}" if isinstance(n, float) else str(n) for n in numbers)
