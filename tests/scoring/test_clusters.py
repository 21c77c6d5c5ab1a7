"""Who belongs together, and how many of them are patients."""

import numpy as np
import pytest

from mie.errors import MieError
from mie.scoring.clusters import as_clusters, clusters_of, clusters_of_samples, patients_in_words


def test_patients_where_known_else_images():
    found = clusters_of(["a", "b", "a", None, None, ""], ["1", "1", "2", "1", "1", "3"])
    assert found.codes.tolist() == [0, 1, 0, 2, 2, 3]
    assert found.known.tolist() == [True, True, True, False, False, False]
    assert (found.patients, found.unknown, len(found)) == (2, 2, 6)
    # An image of the same name as a patient is not that patient.
    assert clusters_of(["a", None], ["x", "a"]).codes.tolist() == [0, 1]


def test_some_of_the_rows():
    found = clusters_of(["a", "b", None, None], ["1", "2", "3", "3"])
    assert (found[[0, 2]].patients, found[[0, 2]].unknown) == (1, 1)
    mask = np.array([False, False, True, True])
    assert (found[mask].patients, found[mask].unknown, len(found[mask])) == (0, 1, 2)
    assert (found[[]].patients, found[[]].unknown, len(found[[]])) == (0, 0, 0)


def test_plain_names_are_patients_and_nothing_is_unknown_patients():
    named = as_clusters(["x", "y", "x"], 3)
    assert (named.codes.tolist(), named.patients, named.unknown) == ([0, 1, 0], 2, 0)
    alone = as_clusters(None, 3)
    assert (alone.codes.tolist(), alone.patients, alone.unknown) == ([0, 1, 2], 0, 3)
    assert as_clusters(named, 3) is named
    with pytest.raises(MieError, match="differ in number"):
        as_clusters(["x"], 2)


def test_samples_by_their_identities():
    identities = {"s1": ("p", "a"), "s2": (None, "b"), "s3": (None, "b")}
    found = clusters_of_samples(["s1", "s2", "s3", "nobody", "s1"], identities)
    assert found.codes.tolist() == [0, 1, 1, 2, 0]
    assert (found.patients, found.unknown) == (1, 2)


def test_in_words():
    assert patients_in_words(1) == "1 patient"
    assert patients_in_words(1200) == "1,200 patients"
    assert patients_in_words(0, 1) == "1 image, patient unknown"
    assert patients_in_words(2, 30) == "2 patients and 30 images, patients unknown"
    assert patients_in_words(0) == "0 patients"
