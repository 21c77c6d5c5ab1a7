"""An edited image as a file: PNG, or DICOM where it came from DICOM, marked as synthetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_write
from mie.errors import ConfigError
from mie.images.credentials import sign_png
from mie.images.dicom_write import derived_dicom
from mie.images.png import encode_png
from mie.images.provenance import mark_png
from mie.images.read import picture_kind
from mie.images.watermark import add_watermark
from mie.records import Picture, Pixels

PNG: Final = ".png"
DICOM: Final = ".dcm"


@dataclass(frozen=True, slots=True)
class Marks:
    """What is put on a saved edit besides the mark that every synthetic image has."""

    watermark: bool = False
    certificate: Path | None = None  # PEM files: sign the PNG with Content Credentials
    key: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigError(
                "Content Credentials need both a certificate and its key", fix="give both options"
            )


def edits_of(image: Path, output: Path, *, dicom: bool) -> dict[Path, Path]:
    """Every picture to edit and the file to write: one for a file, all in a folder for a folder.

    Args:
        image: A picture or DICOM file, or a folder of them (folders in it are not looked into).
        output: A file for a file, a folder for a folder.
        dicom: For a folder: DICOM files become DICOM files, not PNG.

    """
    if not image.is_dir():
        suffix = output.suffix.lower()
        if suffix not in (PNG, DICOM):
            raise ConfigError(
                "the output is written as PNG or DICOM",
                expected="a name that ends in .png or .dcm",
                found=output,
            )
        if suffix == DICOM and image.is_file() and picture_kind(image) != "DICOM":
            raise ConfigError(
                "only an edited DICOM file can be written as DICOM", where=image, fix="choose a .png output"
            )
        return {image: output}
    if output.is_file():
        raise ConfigError("the output of a folder is a folder", where=output, found="a file")
    pairs: dict[Path, Path] = {}
    for path in sorted(path for path in image.iterdir() if path.is_file()):
        kind = picture_kind(path)
        if kind is not None:
            pairs[path] = output / f"{path.stem}{DICOM if dicom and kind == 'DICOM' else PNG}"
    if not pairs:
        raise ConfigError("no picture in this folder", where=image, expected="picture or DICOM files")
    targets = list(pairs.values())
    doubled = sorted({target.name for target in targets if targets.count(target) > 1})
    if doubled:
        raise ConfigError(
            "two pictures would be written to the same file", where=image, found=", ".join(doubled[:3])
        )
    return pairs


def save_edit(
    pixels: Pixels, picture: Picture, source: Path, output: Path, mark: Mapping[str, Any], marks: Marks
) -> None:
    """Write an edit. A PNG is marked where a model made its pixels.

    The watermark changes pixels by a few grey levels; the other marks do not touch them.
    """
    if marks.watermark:
        pixels = add_watermark(pixels)
    if output.suffix.lower() == DICOM:
        data = derived_dicom(source, pixels, mark, _shown(picture.steps))
    else:
        data = encode_png(pixels)
        data = mark_png(data, mark) if mark["synthetic"] else data
        if marks.certificate is not None and marks.key is not None:
            data = sign_png(data, mark, marks.certificate, marks.key)
    atomic_write(output, data)


def _shown(steps: Sequence[Mapping[str, Any]]) -> str:
    """How the source was shown to the editor, in words for the file."""
    windows = [step for step in steps if step["step"] == "window"]
    if not windows:
        return "stored values as they are"
    return ", ".join(f"{key} {value}" for key, value in windows[0].items() if key != "step")
