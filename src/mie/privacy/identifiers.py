"""Identifiers in words: attributes of DICOM files, and names in paths.

The DICOM attributes are those of the Basic Application Level Confidentiality Profile (PS3.15, table E.1-1)
that name a person, a place or a number of theirs. Dates, UIDs and devices are left out: pixels are what
leaves, and the header only tells whether somebody has de-identified the file.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from pydicom.dataset import Dataset

DIRECT: Final = frozenset(
    [
        "AccessionNumber",
        "AdmissionID",
        "ConsultingPhysicianName",
        "CountryOfResidence",
        "CurrentPatientLocation",
        "InstitutionAddress",
        "InstitutionName",
        "InsurancePlanIdentification",
        "IssuerOfPatientID",
        "MedicalRecordLocator",
        "MilitaryRank",
        "NameOfPhysiciansReadingStudy",
        "OperatorsName",
        "OtherPatientIDs",
        "OtherPatientNames",
        "PatientAddress",
        "PatientBirthDate",
        "PatientBirthName",
        "PatientBirthTime",
        "PatientComments",
        "PatientInstitutionResidence",
        "PatientMotherBirthName",
        "PatientName",
        "PatientReligiousPreference",
        "PatientTelephoneNumbers",
        "PatientTelecomInformation",
        "PerformingPhysicianName",
        "PhysiciansOfRecord",
        "ReferringPhysicianAddress",
        "ReferringPhysicianName",
        "ReferringPhysicianTelephoneNumbers",
        "RegionOfResidence",
        "RequestingPhysician",
        "ResponsiblePerson",
        "ReviewerName",
        "ScheduledPerformingPhysicianName",
        "VerifyingObserverName",
        "ContentCreatorName",
    ]
)
# Where such attributes also stand.
SEQUENCES: Final = (
    "OtherPatientIDsSequence",
    "RequestAttributesSequence",
    "PersonIdentificationCodeSequence",
)
# All that is read of a header: what else it holds takes no memory.
HEADER: Final = (
    "PatientIdentityRemoved",
    "BurnedInAnnotation",
    "PatientID",
    *sorted(DIRECT),
    *SEQUENCES,
)
_DUMMY: Final = re.compile(r"(?:anon|de-?ident|removed|unknown|none|no[ _^]?name|dummy|redacted|x+)", re.I)
_DATE: Final = re.compile(
    r"(?<!\d)(?:19|20)\d\d[-_.]?(?:0[1-9]|1[0-2])[-_.]?(?:0[1-9]|[12]\d|3[01])(?!\d)"
    r"|(?<!\d)(?:0[1-9]|[12]\d|3[01])[-_.](?:0[1-9]|1[0-2])[-_.](?:19|20)\d\d(?!\d)"
)
_NUMBER: Final = re.compile(
    r"(?i)(?:\bmrn|\bssn|patient[ _-]?id)[ _:#-]*\d{4,}|(?<!\d)\d{3}-\d{2}-\d{4}(?!\d)"
)
# Given names that are frequent in several countries; two words of which one is here are taken for a person.
_GIVEN: Final = frozenset(
    [
        "ahmed",
        "aiko",
        "ali",
        "alice",
        "ana",
        "andrea",
        "andrew",
        "anna",
        "anne",
        "antonio",
        "barbara",
        "carlos",
        "carmen",
        "charles",
        "chen",
        "chris",
        "christine",
        "claire",
        "daniel",
        "david",
        "elena",
        "elizabeth",
        "emily",
        "emma",
        "eva",
        "fatima",
        "francesco",
        "frank",
        "george",
        "giovanni",
        "hans",
        "helen",
        "ibrahim",
        "ines",
        "ingrid",
        "ivan",
        "jack",
        "jacob",
        "james",
        "jan",
        "jane",
        "janet",
        "jean",
        "jennifer",
        "jessica",
        "joan",
        "johann",
        "john",
        "jose",
        "joseph",
        "juan",
        "julia",
        "karen",
        "katherine",
        "klaus",
        "laura",
        "lee",
        "leila",
        "linda",
        "lisa",
        "louise",
        "lucas",
        "luis",
        "luigi",
        "marco",
        "margaret",
        "maria",
        "marie",
        "mario",
        "mark",
        "martin",
        "mary",
        "mehmet",
        "michael",
        "michelle",
        "miguel",
        "mohamed",
        "mohammed",
        "muhammad",
        "nancy",
        "natalia",
        "nicole",
        "nina",
        "olga",
        "omar",
        "patricia",
        "patrick",
        "paul",
        "paula",
        "pedro",
        "peter",
        "philip",
        "pierre",
        "rachel",
        "rebecca",
        "richard",
        "robert",
        "rosa",
        "ruth",
        "samuel",
        "sandra",
        "sarah",
        "sofia",
        "sophie",
        "stephen",
        "steven",
        "susan",
        "thomas",
        "tim",
        "tom",
        "ursula",
        "victor",
        "vladimir",
        "walter",
        "wei",
        "william",
        "wolfgang",
        "yusuf",
    ]
)


def dicom_identifiers(header: Dataset) -> list[str]:
    """The keywords of attributes with content that a de-identified file must not have, sorted.

    A patient's name that is the patient's ID, or says that it is none, counts as a pseudonym.
    """
    patient = str(header.get("PatientID", ""))
    found = set()
    for element in header.iterall():
        if element.keyword not in DIRECT or element.is_empty:
            continue
        text = str(element.value).strip(" ^\0")
        pseudonym = element.keyword == "PatientName" and text == patient
        if text and not pseudonym and not _DUMMY.match(text):
            found.add(element.keyword)
    return sorted(found)


def name_reason(text: str) -> str | None:
    """Why a path or another text looks as if it named a person; None where it does not.

    >>> name_reason("scans/Smith_John/axial.png")
    "it holds what looks like a person's name"
    >>> name_reason("drive/21_training.png") is None
    True
    """
    if re.search(r"[A-Za-z]{2,}\^[A-Za-z]+", text):
        return "it holds a name as DICOM writes it"
    if _NUMBER.search(text):
        return "it holds what looks like a patient's number"
    if _DATE.search(text):
        return "it holds a date"
    for part in re.split(r"[/\\]", text):
        words = re.findall(r"[^\W\d_]{2,}", re.sub(r"\.[A-Za-z0-9]{2,4}$", "", part))
        for one, other in pairwise(words):
            if one.lower() in _GIVEN or other.lower() in _GIVEN:
                return "it holds what looks like a person's name"
    return None
