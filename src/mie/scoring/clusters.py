"""Which rows belong to one patient: samples of one patient are alike, so patients are what is counted."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mie.errors import MieError


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """N rows by patient, or by image where the patient is unknown."""

    codes: NDArray[np.int64]  # (N,): equal for rows that belong together
    known: NDArray[np.bool_]  # (N,): the row's patient is known

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: ArrayLike) -> Clusters:
        """Some of the rows, by number or by mask."""
        chosen = np.asarray(rows)
        chosen = chosen if chosen.dtype == bool else chosen.astype(np.int64)  # an empty list has no type
        return Clusters(self.codes[chosen], self.known[chosen])

    @property
    def patients(self) -> int:
        """How many known patients the rows come from."""
        return numbered(self.codes[self.known])[0]

    @property
    def unknown(self) -> int:
        """How many images without a known patient; each stands for a patient of its own."""
        return numbered(self.codes[~self.known])[0]


def numbered(codes: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """How many codes there are, and `codes` numbered from 0 in their order, `(N,)`.

    As `np.unique`, in linear time where codes are about as many as rows: a million rows are not sorted.

    >>> numbered(np.array([7, 3, 7, 9]))[1].tolist()
    [1, 0, 1, 2]
    """
    if not len(codes) or codes.min() < 0 or codes.max() > 8 * len(codes):
        names, numbers = np.unique(codes, return_inverse=True)
        return len(names), numbers
    there = np.zeros(int(codes.max()) + 1, np.bool_)
    there[codes] = True
    places = np.cumsum(there) - 1
    return int(places[-1]) + 1, places[codes]


# A sample's patient, None where it is unknown, and its image.
Identity: TypeAlias = tuple[str | None, str]
# What functions accept: the clusters themselves, a patient for each row, or nothing: each row stands alone.
ClustersLike: TypeAlias = Clusters | Sequence[Any] | NDArray[Any] | None


def clusters_of(patient_ids: Sequence[str | None], case_ids: Sequence[Hashable]) -> Clusters:
    """Rows by patient; rows whose patient is unknown (None or "") by case, which is the image.

    >>> found = clusters_of(["p1", "p1", None, None, None], ["a", "b", "c", "c", "d"])
    >>> found.codes.tolist(), found.patients, found.unknown
    ([0, 0, 1, 1, 2], 1, 2)
    """
    names = [
        ("patient", patient) if patient else ("case", case)
        for patient, case in zip(patient_ids, case_ids, strict=True)
    ]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    codes = np.array([numbers[name] for name in names], np.int64)
    return Clusters(codes, np.array([kind == "patient" for kind, _ in names], np.bool_))


def clusters_of_samples(samples: Sequence[str], identities: Mapping[str, Identity]) -> Clusters:
    """`clusters_of` samples by id; one without an identity stands alone."""
    found = [identities.get(sample, (None, f"sample {sample}")) for sample in samples]
    return clusters_of([patient for patient, _ in found], [case for _, case in found])


def as_clusters(clusters: ClustersLike, count: int) -> Clusters:
    """`Clusters` of `count` rows; plain names are known patients, None is a row of unknown patient each."""
    if clusters is None:
        return Clusters(np.arange(count), np.zeros(count, np.bool_))
    if not isinstance(clusters, Clusters):
        codes = np.unique(np.asarray(clusters), return_inverse=True)[1].astype(np.int64)
        clusters = Clusters(codes, np.ones(len(codes), np.bool_))
    if len(clusters) != count:
        raise MieError("values and clusters differ in number", expected=count, found=len(clusters))
    return clusters


def patients_in_words(patients: int, unknown: int = 0) -> str:
    """What a number rests on, for tables and captions.

    >>> patients_in_words(12), patients_in_words(0, 30), patients_in_words(1, 1)
    ('12 patients', '30 images, patients unknown', '1 patient and 1 image, patient unknown')
    """
    known = f"{patients:,} patient{'' if patients == 1 else 's'}"
    if not unknown:
        return known
    plural = "" if unknown == 1 else "s"
    images = f"{unknown:,} image{plural}, patient{plural} unknown"
    return f"{known} and {images}" if patients else images
