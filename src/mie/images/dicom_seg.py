"""Label volumes as DICOM-SEG: a segment for each label, on the slices of the series they were drawn on."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import highdicom as hd
import numpy as np
from numpy.typing import NDArray
from pydicom.sr.codedict import codes
from pydicom.uid import generate_uid

import mie
from mie.errors import ImageError
from mie.images.dicom import read_header
from mie.images.dicom_series import Series


class SegmentName(NamedTuple):
    label: str  # "liver"
    lesion: bool = False


def seg_bytes(series: Series, labels: NDArray[np.uint8], names: Sequence[SegmentName], editor: str) -> bytes:
    """A DICOM-SEG file of `labels`, (columns, rows, slices) in the series' order; label k is `names[k - 1]`.

    The same labels on the same series give the same UIDs.
    """
    if labels.shape != series.shape:
        raise ImageError("labels and series differ in size", expected=series.shape, found=labels.shape)
    if not labels.any():
        raise ImageError(
            "nothing is marked, and a DICOM-SEG file without a segment is none",
            where=series.where,
            expected="at least one marked voxel",
            fix="choose a .nii.gz output, which may be empty",
        )
    sources = [read_header(path, None) for path in series.files]
    frames = np.ascontiguousarray(labels.T)
    segments = [
        hd.seg.SegmentDescription(
            segment_number=number,
            segment_label=name.label[:64],
            segmented_property_category=_category(name),
            segmented_property_type=_category(name),
            algorithm_type="AUTOMATIC",
            algorithm_identification=hd.AlgorithmIdentificationSequence(
                name=editor[:64], family=codes.DCM.ArtificialIntelligence, version=mie.__version__
            ),
        )
        for number, name in enumerate(names, start=1)
    ]
    stacked = np.stack([frames == number for number in range(1, len(names) + 1)], axis=-1)
    entropy = [str(sources[0].SeriesInstanceUID), editor, *(name.label for name in names)]
    entropy.append(hashlib.sha256(frames.tobytes()).hexdigest())
    seg = hd.seg.Segmentation(
        source_images=sources,
        pixel_array=stacked.astype(np.uint8),
        segmentation_type="BINARY",
        segment_descriptions=segments,
        series_instance_uid=generate_uid(entropy_srcs=[*entropy, "series"]),
        series_number=1,
        sop_instance_uid=generate_uid(entropy_srcs=[*entropy, "instance"]),
        instance_number=1,
        manufacturer="mie",
        manufacturer_model_name=editor[:64] or "mie",
        software_versions=mie.__version__,
        device_serial_number="0",
        content_label="MIE",
        content_description="Research only",
    )
    seg.ContentQualification = "RESEARCH"
    stream = io.BytesIO()
    seg.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def _category(name: SegmentName) -> Any:
    return codes.SCT.MorphologicallyAbnormalStructure if name.lesion else codes.SCT.AnatomicalStructure
