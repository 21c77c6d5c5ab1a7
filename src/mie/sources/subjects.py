"""Whose image a file is, and on which side its data set puts it: read from the path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from mie.sources.catalog import Entry
from mie.vocabulary import SPLITS


def patient_of(entry: Entry, name: str, places: Mapping[str, str]) -> str | None:
    """`cohort/patient`, so that one patient in two data sets of a cohort has one name; None where unknown."""
    patient = places.get("patient")
    if patient is None and entry.patient is not None:
        # "case_01.nii.gz" has the stem "case_01", not "case_01.nii".
        stem = PurePosixPath(re.sub(r"\.gz$", "", name, flags=re.IGNORECASE)).stem
        match = re.search(entry.patient, stem)
        patient = match[1] if match else None
    return None if patient is None else f"{entry.patient_cohort}/{patient}"


def split_of(entry: Entry, places: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(split, reason why there is none). The data set's own split is written in the path or fixed for all."""
    written = places.get("split")
    if written is None:
        return entry.split, None
    split = entry.splits.get(written, written)
    if split in SPLITS:
        return split, None
    return None, f"unknown split {written!r}; map it to train, val or test under `splits`"
