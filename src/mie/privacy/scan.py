"""What identifies somebody in a folder of files: text, faces, DICOM attributes, headers, names in paths."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import nibabel as nib
import numpy as np
from isal import igzip

from mie.errors import MieError
from mie.images.dicom import read_header
from mie.images.dicom_series import read_series
from mie.images.limits import decoding
from mie.images.read import read_picture
from mie.images.volume_files import NIFTI_SUFFIXES, is_volume
from mie.images.volume_headers import header_lines
from mie.images.volumes import AXIS, Volume, read_volume, slice_of
from mie.images.windows import to_8bit
from mie.privacy.gate import Finding, Gate, PrivacyError
from mie.privacy.heads import find_head
from mie.privacy.identifiers import dicom_identifiers, name_reason, profile, profile_remains

_PICTURES: Final = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".gif")
_DICOM: Final = (".dcm", ".dicom", ".ima")
_SLICES: Final = 8  # of a volume that are searched for text
_LEAST_SERIES: Final = 10  # files of one series that may be a head
_SHOWN: Final = 6  # attributes in one line
_FIELD: Final = re.compile(r"(.*?)(?::=|:|=)(.*)", re.DOTALL)
_NIFTI_HEAD: Final = 560  # the longer header, and the beginning of an extension
_DICOM_EXTENSION: Final = (b"\2\0\0\0", b"\0\0\0\2")
_TELLING: Final = re.compile(r"(?i)patient|birth|physician|operator|institution|hospital|accession|\bmrn\b")


@dataclass
class Scan:
    """What was looked at, what was found, and the files that were not looked at: suffix -> count."""

    images: int = 0
    volumes: int = 0
    findings: list[Finding] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def scan_files(place: Path, gate: Gate, progress: Callable[[int, int], None]) -> Scan:
    """Look at a file, or at every file below a folder."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    base = place.parent if place.is_file() else place
    scan = Scan()
    series: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    for done, path in enumerate(files, start=1):
        name = str(path.relative_to(base))
        if (reason := name_reason(name)) is not None:
            scan.findings.append(Finding(name, "name", reason))
        if path.suffix.lower() in _PICTURES:
            scan.images += 1
            scan.findings += _picture(path, name, gate)
        elif path.suffix.lower() in _DICOM or _is_dicom(path):
            scan.images += 1
            scan.findings += _dicom(path, name, gate, series)
        elif is_volume(path.name) and not _is_second_half(path):
            scan.volumes += 1
            scan.findings += _volume(path, name, gate)
        else:
            scan.skipped[path.suffix.lower() or "no suffix"] += 1
        progress(done, len(files))
    for (folder, _), paths in series.items():
        if len(paths) >= _LEAST_SERIES:
            scan.volumes += 1
            scan.findings += _series(paths, str(folder.relative_to(base)), gate)
    return scan


def _picture(path: Path, name: str, gate: Gate) -> Iterator[Finding]:
    try:
        yield from gate.look(read_picture(path).pixels, name)
    except PrivacyError:
        raise
    except MieError as error:
        yield Finding(name, "unread", f"the image cannot be read: {error.what}")


def _dicom(
    path: Path, name: str, gate: Gate, series: dict[tuple[Path, str], list[Path]]
) -> Iterator[Finding]:
    try:
        header = read_header(path, None)
        with decoding("DICOM", where=path):
            direct, others = dicom_identifiers(header), profile_remains(header)
            uid = str(header.get("SeriesInstanceUID", ""))
            burned_in = header.get("BurnedInAnnotation") == "YES"
    except MieError:
        yield Finding(name, "unread", "the DICOM header cannot be read")
        return
    for keyword in direct:
        yield Finding(name, "dicom", f"the attribute {keyword} has content")
    if others:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        shown = ", ".join(others[:_SHOWN])
        yield Finding(name, "profile", f"the basic profile of PS3.15 removes or empties {shown}{more}")
    if burned_in:
        yield Finding(name, "dicom", "the file says BurnedInAnnotation")
    series[path.parent, uid].append(path)
    yield from _picture(path, name, gate)


def _series(paths: list[Path], name: str, gate: Gate) -> Iterator[Finding]:
    """A series of slices, each of which has been looked at: only what takes all of them."""
    try:
        yield from _face(read_series(paths), name)
    except MieError:
        return  # scouts, colour, several acquisitions: no volume, and every picture was looked at


def _volume(path: Path, name: str, gate: Gate) -> Iterator[Finding]:
    try:
        for key, text in _header_texts(path):
            reason = name_reason(text)
            if reason is None and (_TELLING.search(key) or key in profile().direct):
                reason = "its name says that it identifies somebody"
            if reason is not None and text.strip():
                yield Finding(name, "header", f"the field {key[:60]!r}: {reason}")
        volume = read_volume(path)
    except MieError as error:
        yield Finding(name, "unread", f"the volume cannot be read: {error.what}")
        return
    yield from _face(volume, name)
    # Across the axis with the thickest slices: text was written into those.
    plane = max(AXIS, key=lambda plane: volume.spacing[AXIS[plane]])
    count = volume.data.shape[AXIS[plane]]
    for index in sorted({round(at) for at in np.linspace(0, count - 1, min(_SLICES, count))}):
        values = np.ascontiguousarray(slice_of(volume.data, plane, index))
        try:
            pixels, _ = to_8bit(values, percentiles=(0.5, 99.5))
        except MieError:
            continue  # a slice of one value shows nothing
        yield from gate.look(pixels, f"{name} ({plane} slice {index})")


def _face(volume: Volume, name: str) -> Iterator[Finding]:
    head = find_head(volume)
    if head is not None and head.has_face:
        yield Finding(name, "face", "a head with its face: a surface can be rendered; deface it")


def _header_texts(path: Path) -> Iterator[tuple[str, str]]:
    """(field, text) of what people and programs write into headers. Nothing of it enters a dataset."""
    with decoding("volume", where=path):
        if path.name.lower().endswith(NIFTI_SUFFIXES):
            yield from _nifti_texts(path)
            return
        with path.open("rb") as file:
            for line in header_lines(file, path):
                match = _FIELD.fullmatch(line)
                if not line or (match is not None and match[1].strip() == "ElementDataFile"):
                    return  # the voxels follow
                if line.startswith("#"):
                    yield "comment", line[1:]
                elif match is not None:
                    yield match[1].strip(), match[2].strip()


def _nifti_texts(path: Path) -> Iterator[tuple[str, str]]:
    opener: Any = igzip.open if path.name.lower().endswith(".gz") else open
    with opener(path, "rb") as file:
        head = file.read(_NIFTI_HEAD)
    kinds: tuple[Any, ...] = (nib.Nifti2Header, nib.Nifti1Header, nib.AnalyzeHeader)
    kind = next((one for one in kinds if one.may_contain_header(head)), None)
    if kind is None:
        return
    header = kind(head[: kind.sizeof_hdr], check=False)
    for key in header.keys():  # noqa: SIM118 (a header is no mapping)
        if header[key].dtype.kind == "S":
            yield key, header[key].item().decode(errors="replace").strip("\0 ")
    mark, code = head[kind.sizeof_hdr : kind.sizeof_hdr + 1], head[kind.sizeof_hdr + 8 : kind.sizeof_hdr + 12]
    if kind is not nib.AnalyzeHeader and mark == b"\1" and code in _DICOM_EXTENSION:
        yield "patient attributes", "a copy of DICOM attributes"


def _is_dicom(path: Path) -> bool:
    """By content: scanners write files without a suffix."""
    with path.open("rb") as file:
        return file.read(132)[128:] == b"DICM"


def _is_second_half(path: Path) -> bool:
    return path.suffix.lower() == ".img" and any(path.with_suffix(end).exists() for end in (".hdr", ".HDR"))
