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
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

import mie
from mie.images.dicom import open_dicom
from mie.images.overlay import is_grey
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
