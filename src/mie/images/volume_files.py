"""The voxels and the affine that a volume file holds, in the file's own axis order.

NIfTI comes through nibabel, NRRD and MetaImage through SimpleITK. The header is read first, so that a file
which promises a billion voxels is refused before any of them is.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import nibabel as nib
import numpy as np
import SimpleITK as sitk  # noqa: N813 (the name its users know)
from isal import igzip
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from numpy.typing import NDArray

from mie.errors import ImageError
from mie.images.itk_headers import check_meta, check_nrrd, check_zlib
from mie.records import Step

NIFTI_SUFFIXES: Final = (".nii", ".nii.gz", ".hdr", ".img")
NRRD_SUFFIXES: Final = (".nrrd", ".nhdr")
META_SUFFIXES: Final = (".mha", ".mhd")
SUFFIXES: Final = NIFTI_SUFFIXES + NRRD_SUFFIXES + META_SUFFIXES

# ITK's world is LPS+ (x to the patient's Left, y Posterior); ours is RAS+.
LPS_TO_RAS: Final[NDArray[np.float64]] = np.diag([-1.0, -1.0, 1.0, 1.0])

# NIfTI's unit codes; everything else (also codes that do not exist) is taken as millimetres.
_MILLIMETRES: Final = {1: ("metres", 1000.0), 3: ("micrometres", 0.001)}


_BLOCK: Final = 1 << 20


class StoredVolume(NamedTuple):
    """Values (rescaled, else in the file's own type) by stored axis, and their RAS+ millimetres."""

    data: NDArray[Any]
    affine: NDArray[np.float64]
    steps: tuple[Step, ...]


def is_volume(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def read_stored(path: Path, max_voxels: int) -> StoredVolume:
    name = path.name.lower()
    if not path.is_file():
        raise ImageError("no such volume", where=path)
    if name.endswith(NIFTI_SUFFIXES):
        return _read_nifti(path, max_voxels)
    if name.endswith(NRRD_SUFFIXES + META_SUFFIXES):
        return _read_itk(path, max_voxels)
    raise ImageError("not a volume file", where=path, expected=" ".join(SUFFIXES), found=path.name)


def check_size(shape: Sequence[int], max_voxels: int, path: object) -> None:
    """Refuse an empty or an enormous grid while only its header has been read."""
    if min(shape, default=0) < 1 or math.prod(shape) > max_voxels:
        raise ImageError(
            "volume size out of bounds",
            where=path,
            expected=f"1 to {max_voxels:,} voxels",
            found=" x ".join(map(str, shape)) or "no axes",
        )


def _three_axes(shape: Sequence[int], path: Path) -> tuple[int, ...]:
    """The first three lengths; a fourth axis may only be of length 1."""
    if len(shape) < 3 or any(n != 1 for n in shape[3:]):
        count = math.prod(shape[3:])
        raise ImageError(
            "not one volume",
            where=path,
            expected="three axes (a fourth of length 1 is dropped)",
            found=f"{' x '.join(map(str, shape))}" + (f", that is {count} volumes" if count > 1 else ""),
            fix="save the volume you mean as a file of its own" if count > 1 else None,
        )
    return tuple(shape[:3])


def _read_nifti(path: Path, max_voxels: int) -> StoredVolume:
    try:
        # mmap=False: a mapped file that shrinks while we read would kill the process, not raise.
        image = nib.load(path, mmap=False)
        shape = image.shape
        check_size(shape, max_voxels, path)
        shape = _three_axes(shape, path)
        affine, steps = _nifti_affine(image)
        if image.get_data_dtype().kind not in "iuf":
            raise ImageError(
                "voxels are not plain numbers",
                where=path,
                expected="one number each",
                found=image.get_data_dtype(),
            )
        data = (
            _gzip_values(path, image) if path.name.lower().endswith(".gz") else np.asanyarray(image.dataobj)
        )
    except (OSError, EOFError, ValueError, zlib.error, ImageFileError, HeaderDataError) as error:
        raise ImageError("cannot read the NIfTI file", where=path, found=_one_line(error)) from error
    return StoredVolume(data.reshape(shape), affine, steps)


def _gzip_values(path: Path, image: Any) -> NDArray[Any]:
    """The voxels, read to the file's end: only there does gzip's checksum tell whether they are right."""
    with igzip.open(path, "rb") as file:
        again = type(image).from_file_map({"image": nib.FileHolder(fileobj=file)})
        data = np.asanyarray(again.dataobj)
        while file.read(_BLOCK):
            pass
    return data


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


def _read_itk(path: Path, max_voxels: int) -> StoredVolume:
    is_nrrd = path.name.lower().endswith(NRRD_SUFFIXES)
    header = check_nrrd(path) if is_nrrd else check_meta(path)
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    # Named, so that a file is what its suffix says and no other reader gets to look at it.
    reader.SetImageIO("NrrdImageIO" if is_nrrd else "MetaImageIO")
    try:
        reader.ReadImageInformation()
        shape = reader.GetSize()
        check_size(shape, max_voxels, path)
        _three_axes(shape, path)
        if reader.GetNumberOfComponents() != 1:
            raise ImageError(
                "voxels are not plain numbers",
                where=path,
                expected="one number each",
                found=f"{reader.GetNumberOfComponents()} components",
            )
        voxel_bytes = sitk.Image([1] * len(shape), reader.GetPixelIDValue()).GetSizeOfPixelComponent()
        check_zlib(header, math.prod(shape) * voxel_bytes)
        image = reader.Execute()
    except RuntimeError as error:
        raise ImageError("cannot read the volume file", where=path, found=_one_line(error)) from error
    axes = len(shape)
    data = sitk.GetArrayFromImage(image).T.reshape(shape[:3])
    affine = np.eye(4)
    direction = np.array(image.GetDirection()).reshape(axes, axes)[:3, :3]
    affine[:3, :3] = direction * np.array(image.GetSpacing()[:3])
    affine[:3, 3] = image.GetOrigin()[:3]
    steps: tuple[Step, ...] = ()
    if not header.oriented:
        steps = ({"step": "orientation", "found": "missing", "assumed": "LPS"},)
    return StoredVolume(data, LPS_TO_RAS @ affine, steps)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[-300:] or type(error).__name__
