"""Identifiers in words: attributes of DICOM files, and names in paths.

The DICOM attributes are those of the Basic Application Level Confidentiality Profile (PS3.15, table E.1-1).
Those that name a person, a place or a number of theirs are direct identifiers: a file with one is not
de-identified, whatever it says. Of the others (dates, descriptions, devices, private attributes) people are
told. Whether a UID was replaced cannot be seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from pydicom.datadict import dictionary_VR
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset

from mie.core.yaml_files import read_mapping

FILE: Final = "dicom_profile.yaml"
# What a de-identified file has not, or empty. A dummy or a new UID (D, U) looks like any other value.
_GONE: Final = ("X", "Z", "X/Z")
_DEEPEST: Final = 20  # of sequences in sequences
_CURVES, _OVERLAYS = 0x5000, 0x6000  # repeating groups: (50xx,eeee), (60xx,3000) and (60xx,4000)
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


class Profile(NamedTuple):
    """The table of the standard, by keyword."""

    direct: frozenset[str]
    gone: frozenset[str]  # must be absent or empty
    newer: frozenset[int]  # tags of the same kind that pydicom has no keyword for


@lru_cache(maxsize=1)
def profile() -> Profile:
    """The attributes that the basic profile removes or empties."""
    table = read_mapping(Path(__file__).with_name(FILE), "profile", expected="actions: {...}")
    gone = frozenset(keyword for action in _GONE for keyword in table["actions"][action])
    return Profile(frozenset(table["direct"]), gone, frozenset(int(tag, 16) for tag in table["newer"]))


@lru_cache(maxsize=1)
def header_tags() -> tuple[str, ...]:
    """What is read of a header to see whether a file is de-identified: what else it holds takes no memory."""
    known = profile()
    sequences = (keyword for keyword in known.gone if dictionary_VR(keyword) == "SQ")
    plain = ("PatientIdentityRemoved", "BurnedInAnnotation", "PatientID")
    return (*plain, *sorted({*known.direct, *sequences}))


def dicom_identifiers(header: Dataset) -> list[str]:
    """The keywords of attributes with content that a de-identified file must not have, sorted.

    A patient's name that is the patient's ID, or says that it is none, counts as a pseudonym.
    """
    patient = str(header.get("PatientID", ""))
    direct = profile().direct
    found = set()
    for element in _elements(header):
        keyword = element.keyword
        if keyword in direct and (text := _content(element)):
            pseudonym = keyword == "PatientName" and text == patient
            if not pseudonym and not _DUMMY.match(text):
                found.add(keyword)
    return sorted(found)


def profile_remains(header: Dataset) -> list[str]:
    """What else the basic profile removes or empties and the header still has, sorted.

    Private attributes, curves and overlays are counted together; the patient's ID is taken for a pseudonym.
    """
    known = profile()
    left = known.gone - known.direct - {"PatientID"}
    found, private, drawn = set(), 0, 0
    for element in _elements(header):
        tag = element.tag
        if tag.is_private:
            private += not tag.is_private_creator
        elif tag.group & 0xFF00 == _CURVES or (
            tag.group & 0xFF00 == _OVERLAYS and tag.element in (0x3000, 0x4000)
        ):
            drawn += 1
        elif element.keyword in left or int(tag) in known.newer:
            text = _content(element)
            if text and not _DUMMY.match(text):
                found.add(element.keyword or str(tag))
    groups = {"private attributes": private, "curves or overlays": drawn}
    return [*sorted(found), *(f"{count} {name}" for name, count in groups.items() if count)]


def _elements(dataset: Dataset, depth: int = 0) -> Iterator[DataElement]:
    """Every element, also of the items of sequences. A long value that was left in its file stays there."""
    for tag in dataset.keys():  # noqa: SIM118 (values are converted one by one)
        if tag.is_private and depth == 0:
            raw = dataset.get_item(tag)
            yield DataElement(tag, "UN", b"" if raw is None or raw.value is None else b"x")
            continue
        element = dataset[tag]
        yield element
        if element.VR == "SQ" and depth < _DEEPEST:
            for item in element.value:
                yield from _elements(item, depth + 1)


def _content(element: DataElement) -> str:
    if element.is_empty:
        return ""
    return "items" if element.VR == "SQ" else str(element.value).strip(" ^\0")[:1000]


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
