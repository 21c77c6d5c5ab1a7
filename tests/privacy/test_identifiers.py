"""The table of the basic profile, and what is found by it."""

from pathlib import Path

import pytest
import yaml
from pydicom.datadict import dictionary_VR, keyword_dict, tag_for_keyword
from pydicom.dataset import Dataset

from mie.privacy import identifiers
from mie.privacy.identifiers import FILE, dicom_identifiers, header_tags, profile, profile_remains

TABLE = yaml.safe_load((Path(identifiers.__file__).parent / FILE).read_text())


def test_every_keyword_of_the_table_is_in_pydicoms_dictionary_and_stands_there_once():
    keywords = [keyword for names in TABLE["actions"].values() for keyword in names]
    assert [keyword for keyword in keywords if keyword not in keyword_dict] == []
    assert len(keywords) == len(set(keywords)) == 627
    assert set(TABLE["actions"]) == {"X", "Z", "X/Z", "D", "Z/D", "X/D", "X/Z/D", "X/Z/U*", "U"}
    assert set(TABLE["direct"]) <= set(keywords)
    for tag in TABLE["newer"]:
        with pytest.raises(KeyError):
            dictionary_VR(int(tag, 16))


def test_the_table_has_every_kind_of_identifier():
    """Some that everybody knows, of each kind of value, against the printed table."""
    expected = {
        "X": ["PatientAddress", "OtherPatientIDsSequence", "RequestAttributesSequence", "PatientAge"],
        "Z": ["PatientName", "PatientBirthDate", "StudyDate", "AccessionNumber", "PatientSex"],
        "U": ["StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "FrameOfReferenceUID"],
        "Z/D": ["PatientID"],
        "X/Z/D": ["InstitutionName", "OperatorsName"],
    }
    for action, keywords in expected.items():
        assert set(keywords) <= set(TABLE["actions"][action]), action
    names = {k for names in TABLE["actions"].values() for k in names if dictionary_VR(k) == "PN"}
    assert names - profile().direct == {"SelectorPNValue"}
    assert all(tag_for_keyword(tag) is not None for tag in header_tags())


def header(**values):
    dataset = Dataset()
    for keyword, value in values.items():
        setattr(dataset, keyword, value)
    return dataset


def test_direct_identifiers_also_in_sequences():
    item = header(PersonName="Doe^Jane", PersonTelephoneNumbers="555")
    nested = header(PatientID="p1", RequestAttributesSequence=[header(OrderEnteredBy="A^B")])
    nested.ContentCreatorIdentificationCodeSequence = [item]
    assert dicom_identifiers(nested) == ["OrderEnteredBy", "PersonName", "PersonTelephoneNumbers"]
    assert dicom_identifiers(header(PatientID="p1", PatientName="p1", InstitutionName="removed")) == []


def test_what_else_the_profile_removes():
    dataset = header(StudyDate="20200101", StudyTime="", SeriesDescription="Head", StudyInstanceUID="1.2.3")
    dataset.PatientID = "p1"
    dataset.add_new(0x00100014, "LO", "newer")
    dataset.add_new(0x60003000, "OW", b"\0\0")
    dataset.private_block(0x0009, "MAKER", create=True).add_new(1, "LO", "anything")
    dataset.PatientName = "Doe^Jane"
    assert profile_remains(dataset) == [
        "(0010,0014)",
        "SeriesDescription",
        "StudyDate",
        "1 private attributes",
        "1 curves or overlays",
    ]
    assert profile_remains(header(PatientID="p1", StudyInstanceUID="1.2", Rows=3, Modality="CT")) == []
