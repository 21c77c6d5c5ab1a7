"""What an image file says about its origin: mark, Content Credentials, watermark, DICOM attributes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mie.core.environment import install_hint
from mie.images.credentials import can_read_credentials, read_credentials
from mie.images.provenance import read_mark, read_source_type
from mie.images.read import picture_kind, read_picture
from mie.images.watermark import SMALLEST, THRESHOLD, watermark_score

_MARKED: Final = ("PNG", "WEBP")
_DICOM_TAGS: Final = {
    "SyntheticData": "synthetic",
    "ImageType": "image_type",
    "ContentQualification": "qualification",
    "DerivationDescription": "derivation",
}


def inspect_image(path: Path) -> dict[str, Any]:
    """What is found in a picture or DICOM file.

    `synthetic` is True where the mark, valid credentials or the watermark say so; False means no more than
    that nothing says so.
    """
    picture = read_picture(path)  # raises for what is no image, within limits
    kind = picture_kind(path)
    mark = _dicom_mark(path) if kind == "DICOM" else _file_mark(path) if kind in _MARKED else {}
    score = watermark_score(picture.pixels) if min(picture.pixels.shape[:2]) >= SMALLEST else None
    watermarked = score is not None and score >= THRESHOLD
    credentials, note = None, "none"
    if not can_read_credentials():
        note = f"not looked for ({install_hint('marks')})"
    elif kind == "PNG":
        credentials = read_credentials(path)
    signed = credentials is not None and credentials["state"] != "Invalid" and bool(credentials.get("mark"))
    return {
        "image": str(path),
        "format": kind,
        "synthetic": mark.get("synthetic") is True or signed or watermarked,
        "mark": mark,
        "watermark": {"found": watermarked, "score": score, "threshold": THRESHOLD},
        "credentials": credentials,
        "credentials_note": note,
    }


def _file_mark(path: Path) -> dict[str, Any]:
    source = read_source_type(path)
    return {**({"source_type": source} if source else {}), **read_mark(path)}


def _dicom_mark(path: Path) -> dict[str, Any]:
    from mie.images.dicom import read_header

    header = read_header(path, list(_DICOM_TAGS))
    mark: dict[str, Any] = {}
    for keyword, name in _DICOM_TAGS.items():
        value = header.get(keyword)
        if value:
            mark[name] = value == "YES" if name == "synthetic" else _text(value)
    return mark


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str) else "\\".join(map(str, value))
