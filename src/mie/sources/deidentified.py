"""Whether somebody states that no patient can be identified in a data set, and who."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pydicom
from pydicom.errors import InvalidDicomError

from mie.records import Unit
from mie.sources.catalog import DicomLayout, Entry

_TAGS: Final = ["PatientIdentityRemoved", "BurnedInAnnotation"]


def deidentification(entry: Entry, root: Path, units: Iterable[Unit]) -> tuple[bool, str]:
    """(stated, in which words). Of pixels nothing is known: text in an image is not looked for.

    The words name no file, since `dataset.json` is there to be shared.
    """
    if entry.deidentified:
        return True, "the entry states it"
    if not isinstance(entry.layout, DicomLayout):
        return False, "not stated"
    files = [file for unit in units for role in ("image", "pair") for file in unit.files.get(role, ())]
    for file in files:
        try:
            header = pydicom.dcmread(root / file, stop_before_pixels=True, specific_tags=_TAGS)
        except (OSError, InvalidDicomError):
            return False, "not every file can be read"
        if header.get("PatientIdentityRemoved") != "YES":
            return False, "not every file says PatientIdentityRemoved"
        if header.get("BurnedInAnnotation") == "YES":
            return False, "a file says BurnedInAnnotation"
    return bool(files), "every file says PatientIdentityRemoved"
