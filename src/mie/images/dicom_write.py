"""An edited image as DICOM: a new instance in a new series, derived from the file that was edited.

Patient and study are those of the source, so that the edit lies beside it. What described the source's pixels
(window, rescale, palette, overlays, pixel data of other kinds) is left out: an editor sees 8 bits through a
window, and that is what it returns. The file says whether a model made its pixels, that it is for research,
and what it was derived from. The same edit has the same UIDs.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

import mie
from mie.core.files import atomic_path
from mie.errors import ImageError
from mie.images.dicom import open_dicom
from mie.images.dicom_series import Series
from mie.images.overlay import is_grey
from mie.images.slabs import Slabs
from mie.records import Pixels

# Copied from the source: who and which study, and where the image lies in space.
_KEPT: Final = (
    "SpecificCharacterSet",
    "PatientName",
    "PatientID",
    "IssuerOfPatientID",
    "PatientBirthDate",
    "PatientSex",
    "PatientAge",
    "PatientIdentityRemoved",
    "DeidentificationMethod",
    "StudyInstanceUID",
    "StudyID",
    "StudyDate",
    "StudyTime",
    "StudyDescription",
    "AccessionNumber",
    "ReferringPhysicianName",
    "Modality",
    "BodyPartExamined",
    "Laterality",
    "PatientOrientation",
    "BurnedInAnnotation",
)
_IN_SPACE: Final = ("FrameOfReferenceUID", "ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")


# Of a slice in a series: what readers need to stack it, and what its class asks for.
_OF_SLICES: Final = (
    "PatientPosition",
    "PositionReferenceIndicator",
    "SliceThickness",
    "SpacingBetweenSlices",
    "SliceLocation",
    "GantryDetectorTilt",
    "AcquisitionNumber",
    "RescaleType",
    "Units",
    "KVP",
    "ScanningSequence",
    "SequenceVariant",
    "ScanOptions",
    "MRAcquisitionType",
    "EchoTime",
    "RepetitionTime",
    "EchoTrainLength",
    "WindowCenter",
    "WindowWidth",
)


def derived_dicom(source: Path, pixels: Pixels, mark: Mapping[str, Any], window: str) -> bytes:
    """A DICOM file of `pixels`, derived from the one in `source`.

    Args:
        source: The file that was edited.
        pixels: `(H, W, 3) uint8`; stored as grey where all three channels are equal.
        mark: What made them; see `mie.images.provenance`.
        window: How the source was shown to the editor, in words.

    """
    original = open_dicom(source)
    frames = int(original.get("NumberOfFrames") or 1)
    same_size = (original.Rows, original.Columns) == pixels.shape[:2] and frames == 1
    derived = Dataset()
    for keyword in (*_KEPT, *(_IN_SPACE if same_size else ())):
        if keyword in original:
            derived[keyword] = original[keyword]
    entropy = [str(original.get("SOPInstanceUID", "")), str(sorted(mark.items()))]
    entropy.append(hashlib.sha256(pixels.tobytes()).hexdigest())
    derived.SOPClassUID = SecondaryCaptureImageStorage
    derived.SOPInstanceUID = generate_uid(entropy_srcs=[*entropy, "instance"])
    derived.SeriesInstanceUID = generate_uid(
        entropy_srcs=[str(original.get("SeriesInstanceUID", "")), str(mark["editor"]), "series"]
    )
    derived.SeriesNumber = None
    derived.InstanceNumber = original.get("InstanceNumber")
    synthetic = bool(mark["synthetic"])
    derived.SeriesDescription = f"{'SYNTHETIC' if synthetic else 'EDITED'} {mark['editor']}"[:64]
    derived.ImageType = ["DERIVED", "SECONDARY", "OTHER", *(["SYNTHETIC"] if synthetic else [])]
    derived.ConversionType = "WSD"  # from a workstation
    derived.SyntheticData = "YES" if synthetic else "NO"
    derived.ContentQualification = "RESEARCH"
    derived.DerivationDescription = (
        f"Edited by {mark['editor']} with {mark['software']}, seed {mark['seed']}; 8 bits, {window}"
    )[:1024]
    derived.LossyImageCompression = "01" if str(original.get("LossyImageCompression")) == "01" else "00"
    derived.SourceImageSequence = [_reference(original)] if "SOPInstanceUID" in original else []
    derived.ContributingEquipmentSequence = [_equipment(mark)]
    _set_pixels(derived, pixels)
    return _file(derived)


class SeriesWriter:
    """Writes the edited slabs of a series as a new series: a folder with a file for each slice.

    Values are in the source's units, 16 bits through each slice's own rescale, at the source's place. The
    folder appears under its name when all slices are there. The same edit gives the same bytes.
    """

    def __init__(self, path: Path, slabs: Slabs, series: Series, made_by: str, about: str) -> None:
        self._path = path
        self._series = series
        self._axes = slabs.axes
        self._made_by = made_by
        self._entropy = [str(slabs.stored.affine.tolist()), made_by, about]
        self._collected: list[NDArray[Any]] = []
        self._done = 0

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._scratch = self._stack.enter_context(atomic_path(self._path))
        self._scratch.mkdir()
        return self

    def write(self, slab: NDArray[Any]) -> None:
        """Append `(X, Y, n)` slices by the slabs' axes."""
        if self._axes == (0, 1, 2):
            self._write(slab)
        else:
            self._collected.append(np.asarray(slab, np.float32))

    def _write(self, slab: NDArray[Any]) -> None:
        for at in range(slab.shape[2]):
            data = self._slice(self._series.files[self._done], slab[:, :, at].T)
            self._done += 1
            (self._scratch / f"{self._done:05d}.dcm").write_bytes(data)

    def _slice(self, source: Path, values: NDArray[Any]) -> bytes:
        original = open_dicom(source)
        synthetic = self._made_by.startswith("SYNTHETIC ")
        derived = Dataset()
        for keyword in (*_KEPT, *_IN_SPACE, *_OF_SLICES):
            if keyword in original:
                derived[keyword] = original[keyword]
        slope, intercept = float(original.get("RescaleSlope", 1)), float(original.get("RescaleIntercept", 0))
        kind = np.dtype(np.int16 if original.PixelRepresentation else np.uint16)
        bounds = np.iinfo(kind)
        stored = np.clip(np.rint((values - intercept) / slope), bounds.min, bounds.max).astype(kind)
        entropy = [str(original.get("SeriesInstanceUID", "")), *self._entropy]
        instance = [
            *entropy,
            str(original.get("SOPInstanceUID", "")),
            hashlib.sha256(stored.tobytes()).hexdigest(),
        ]
        derived.SOPClassUID = original.SOPClassUID
        derived.SOPInstanceUID = generate_uid(entropy_srcs=[*instance, "instance"])
        derived.SeriesInstanceUID = generate_uid(entropy_srcs=[*entropy, "series"])
        derived.SeriesNumber = None
        derived.InstanceNumber = self._done + 1
        derived.SeriesDescription = (self._made_by if synthetic else f"EDITED {self._made_by}")[:64]
        derived.ImageType = ["DERIVED", "SECONDARY", "OTHER", *(["SYNTHETIC"] if synthetic else [])]
        derived.SyntheticData = "YES" if synthetic else "NO"
        derived.ContentQualification = "RESEARCH"
        derived.DerivationDescription = f"Edited by {self._made_by} with mie {mie.__version__}"[:1024]
        derived.LossyImageCompression = "01" if str(original.get("LossyImageCompression")) == "01" else "00"
        derived.SourceImageSequence = [_reference(original)] if "SOPInstanceUID" in original else []
        derived.ContributingEquipmentSequence = [_equipment({"editor": self._made_by})]
        derived.Rows, derived.Columns = stored.shape
        derived.SamplesPerPixel, derived.PhotometricInterpretation = 1, "MONOCHROME2"
        derived.BitsAllocated = derived.BitsStored = 16
        derived.HighBit, derived.PixelRepresentation = 15, int(kind.kind == "i")
        derived.RescaleSlope, derived.RescaleIntercept = slope, intercept
        derived.PixelData = np.ascontiguousarray(stored, kind.newbyteorder("<")).tobytes()
        derived["PixelData"].VR = "OW"
        return _file(derived)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack as stack:
            if kind is not None:
                stack.__exit__(kind, error, trace)
                return
            if self._collected:
                whole = np.concatenate(self._collected, axis=2)
                self._write(whole.transpose([self._axes.index(axis) for axis in range(3)]))
            if self._done != len(self._series.files):
                raise ImageError("slices are missing at the end", found=len(self._series.files) - self._done)


def _reference(original: Dataset) -> Dataset:
    item = Dataset()
    item.ReferencedSOPClassUID = original.get("SOPClassUID", SecondaryCaptureImageStorage)
    item.ReferencedSOPInstanceUID = original.SOPInstanceUID
    item.PurposeOfReferenceCodeSequence = [
        _code("121322", "DCM", "Source image for image processing operation")
    ]
    return item


def _equipment(mark: Mapping[str, Any]) -> Dataset:
    item = Dataset()
    item.PurposeOfReferenceCodeSequence = [_code("109103", "DCM", "Modifying Equipment")]
    item.Manufacturer = "mie"
    item.ManufacturerModelName = str(mark["editor"])[:64]
    item.SoftwareVersions = mie.__version__
    item.ContributionDescription = "Text-guided image editing"
    return item


def _code(value: str, scheme: str, meaning: str) -> Dataset:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, meaning
    return item


def _set_pixels(derived: Dataset, pixels: Pixels) -> None:
    grey = is_grey(pixels)
    derived.Rows, derived.Columns = pixels.shape[:2]
    derived.SamplesPerPixel = 1 if grey else 3
    derived.PhotometricInterpretation = "MONOCHROME2" if grey else "RGB"
    if not grey:
        derived.PlanarConfiguration = 0
    derived.BitsAllocated = derived.BitsStored = 8
    derived.HighBit, derived.PixelRepresentation = 7, 0
    data = np.ascontiguousarray(pixels[..., 0] if grey else pixels).tobytes()
    derived.PixelData = data + b"\0" * (len(data) % 2)
    derived["PixelData"].VR = "OB"


def _file(derived: Dataset) -> bytes:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = UID(derived.SOPClassUID)
    meta.MediaStorageSOPInstanceUID = UID(derived.SOPInstanceUID)
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    stream = io.BytesIO()
    FileDataset(stream, derived, file_meta=meta, preamble=b"\0" * 128).save_as(
        stream, enforce_file_format=True
    )
    return stream.getvalue()
