"""Names of patients and files, replaced by pseudonyms before they reach a dataset.

A folder may be called after a patient. A dataset shows a keyed hash instead. The same name gives the same
pseudonym in every dataset, whatever its recipe: patients on both sides of a split are still found across
datasets, and the same recipe gives the same digest. This is pseudonymisation, not anonymisation: whoever can
guess a name can compute its pseudonym and compare.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from mie.datasets.rejected import BAD_FILE_GATES
from mie.records import Rejection, Sample

_PSEUDONYM: Final = re.compile(r"[0-9a-f]{16}")
# A path, or a name with an ending of image files.
_FILE: Final = re.compile(
    r"[^\s'\",;()]*[/\\][^\s'\",;()]*"
    r"|[^\s'\",;]+\.(?:png|jpe?g|tiff?|bmp|gif|webp|dcm|nii|gz|nrrd|mh[ad]|np[yz])\b",
    re.IGNORECASE,
)

_UID: Final = re.compile(r"\b\d+(?:\.\d+){4,}\b")
_VALUE: Final = re.compile(r"'[^']*'|\"[^\"]*\"|[^\s'\"]+\^[^\s'\"]*")


def pseudonym(group: str, name: str) -> str:
    """Sixteen hexadecimal digits of keyed BLAKE2b; the key is the group that the name belongs to.

    >>> pseudonym("drive", "Smith_John")
    'cc562d721f8eb25a'
    """
    key = hashlib.blake2b(group.encode(), digest_size=32).digest()
    return hashlib.blake2b(name.encode(), digest_size=8, key=key, person=b"mie names").hexdigest()


def comparable(patient_id: str | None) -> str | None:
    """The pseudonym of a patient, also where a dataset kept the name: older versions kept every name."""
    if patient_id is None or _PSEUDONYM.fullmatch(patient_id.partition("/")[2]):
        return patient_id
    return Names().patient(patient_id)


def comparable_case(source: str, case_id: str) -> str:
    """The pseudonym of a case, also where a dataset kept the name."""
    known = _PSEUDONYM.fullmatch(case_id.partition("#")[0])
    return case_id if known else Names().case(source, case_id)


@dataclass(frozen=True, slots=True)
class Names:
    """What a dataset calls patients and cases; their own names where `keep` is true."""

    keep: bool = False

    def patient(self, patient_id: str | None) -> str | None:
        """`cohort/pseudonym`: the cohort is the data set's, not a person's."""
        if self.keep or patient_id is None:
            return patient_id
        cohort, _, name = patient_id.partition("/")
        return f"{cohort}/{pseudonym(cohort, name)}"

    def case(self, source: str, case_id: str) -> str:
        """The pseudonym of the file, and which slice of it: `0123456789abcdef#axial-0042`."""
        if self.keep:
            return case_id
        name, mark, part = case_id.partition("#")
        return f"{pseudonym(source, name)}{mark}{part}"

    def sample(self, sample: Sample) -> Sample:
        if self.keep:
            return sample
        case = self.case(sample.source, sample.case_id)
        return replace(sample, case_id=case, patient_id=self.patient(sample.patient_id))

    def rejection(self, rejection: Rejection) -> Rejection:
        """The rejection with a pseudonym as `where`, and without names of files in its reason."""
        if self.keep:
            return rejection
        where = rejection.where
        if where.endswith(")") and " (" in where:  # which file of the case it was
            where = where.rpartition(" (")[0]
        reason = rejection.reason
        if rejection.gate in BAD_FILE_GATES:  # the others speak of pixels
            reason = _VALUE.sub("(value)", _FILE.sub("(file)", _UID.sub("(uid)", reason)))
            stem = PurePosixPath(where.partition("#")[0]).name.partition(".")[0]
            reason = reason.replace(stem, "(file)") if len(stem) > 2 else reason
        return replace(rejection, where=self.case(rejection.source, where), reason=reason)
