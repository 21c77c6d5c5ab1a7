"""Who is in which split: the data set's own word first, else a seeded hash of the patient."""

from __future__ import annotations

from mie.building.config import SplitConfig
from mie.recipes.seeds import stable_hash
from mie.records import Case


def split_of(case: Case, shares: SplitConfig, seed: int) -> str:
    """The same patient always falls on the same side; an image without a known patient stands for itself."""
    if case.split is not None:
        return case.split
    subject = case.patient_id if case.patient_id is not None else f"{case.source}//{case.case_id}"
    place = stable_hash("split", seed, subject) / 2**64
    if place < shares.test:
        return "test"
    return "val" if place < shares.test + shares.val else "train"
