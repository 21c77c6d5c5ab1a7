"""What identifies somebody in a folder of files: text in pictures, DICOM attributes, names in paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from mie.errors import MieError
from mie.images.dicom import read_header
from mie.images.read import read_picture
from mie.privacy.gate import Finding, Gate, PrivacyError
from mie.privacy.identifiers import HEADER, dicom_identifiers, name_reason

_PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".gif")
_DICOM = (".dcm", ".dicom", ".ima")


def scan_files(place: Path, gate: Gate, progress: Callable[[int, int], None]) -> tuple[int, list[Finding]]:
    """Look at a file, or at every file below a folder; how many were looked at, and what was found."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    base = place.parent if place.is_file() else place
    findings: list[Finding] = []
    looked = 0
    for done, path in enumerate(files, start=1):
        name = str(path.relative_to(base))
        if (reason := name_reason(name)) is not None:
            findings.append(Finding(name, "name", reason))
        if path.suffix.lower() in (*_PICTURES, *_DICOM):
            looked += 1
            findings += _scan_file(path, name, gate)
        progress(done, len(files))
    return looked, findings


def _scan_file(path: Path, name: str, gate: Gate) -> Iterator[Finding]:
    if path.suffix.lower() in _DICOM:
        try:
            header = read_header(path, HEADER)
            for keyword in dicom_identifiers(header):
                yield Finding(name, "dicom", f"the attribute {keyword} has content")
            if header.get("BurnedInAnnotation") == "YES":
                yield Finding(name, "dicom", "the file says BurnedInAnnotation")
        except MieError:
            yield Finding(name, "dicom", "the header cannot be read")
            return
    try:
        yield from gate.look(read_picture(path).pixels, name)
    except MieError as error:
        if isinstance(error, PrivacyError):
            raise
        yield Finding(name, "unread", f"the image cannot be read: {error.what}")
