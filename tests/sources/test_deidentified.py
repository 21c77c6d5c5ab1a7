"""Who states that nobody can be identified: the entry, or each DICOM file of a source."""

from __future__ import annotations

from pathlib import Path

import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from mie.records import Unit
from mie.sources.catalog import Entry, deidentification


def entry(kind: str, **changes) -> Entry:
    layouts = {
        "dicom": {"kind": "dicom", "series": "{instance}.dcm", "slices": 1},
        "folder": {"kind": "folder", "images": "{id}.png", "masks": "{id}_m.png"},
    }
    target = {"name": "letter", "kind": "anatomy", "value": 1}
    return Entry(
        name="x",
        title="X",
        modality="CT",
        anatomy="none",
        layout=layouts[kind],
        targets=(target,),
        license={"name": "CC0-1.0", "use": "open"},
        **changes,
    )


def write(path, removed: str | None, burned: str | None = None, name: str = "") -> str:
    header = pydicom.Dataset()
    header.file_meta = pydicom.dataset.FileMetaDataset()
    header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    header.file_meta.MediaStorageSOPClassUID = header.SOPClassUID = CTImageStorage
    header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID = generate_uid()
    header.PatientName = name
    if removed:
        header.PatientIdentityRemoved = removed
    if burned:
        header.BurnedInAnnotation = burned
    header.save_as(path, enforce_file_format=True)
    return path.name


@pytest.mark.parametrize(
    ("second", "yes"),
    [
        (("YES", None), True),
        (("YES", "NO"), True),
        (("YES", "YES"), False),
        (("NO", None), False),
        ((None,), False),
    ],
)
def test_every_dicom_file_must_say_it(tmp_path, second, yes):
    files = (write(tmp_path / "a.dcm", "YES"), write(tmp_path / "b.dcm", *second))
    units = [Unit("u", {"image": files[:1]}), Unit("v", {"image": files[1:]})]
    found, reason = deidentification(entry("dicom"), tmp_path, units)
    assert found is yes
    assert "PatientIdentityRemoved" in reason or "BurnedInAnnotation" in reason
    assert not any(name in reason for name in files)


def test_a_damaged_deflated_file_is_only_unreadable(tmp_path):
    data = bytearray(Path(get_testdata_file("image_dfl.dcm")).read_bytes())
    data[400:500] = b"\xff" * 100
    (tmp_path / "a.dcm").write_bytes(data)
    found, reason = deidentification(entry("dicom"), tmp_path, [Unit("u", {"image": ("a.dcm",)})])
    assert (found, reason) == (False, "not every file can be read")


def test_other_files_say_nothing_and_an_entry_may(tmp_path):
    unit = Unit("u", {"image": ("a.png",)})
    assert deidentification(entry("folder"), tmp_path, [unit]) == (False, "not stated")
    assert deidentification(entry("folder", deidentified=True), tmp_path, [unit])[0] is True
    assert deidentification(entry("dicom"), tmp_path, [])[0] is False
    (tmp_path / "a.png").write_bytes(b"no DICOM")
    assert deidentification(entry("dicom"), tmp_path, [unit]) == (False, "not every file can be read")


def test_a_file_that_says_so_but_names_the_patient_is_not_deidentified(tmp_path):
    file = write(tmp_path / "a.dcm", "YES", name="Doe^Jane")
    found, reason = deidentification(entry("dicom"), tmp_path, [Unit("u", {"image": (file,)})])
    assert not found
    assert "PatientName" in reason
    assert "Doe" not in reason
