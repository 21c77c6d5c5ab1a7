"""Families of modalities."""

from mie.images import families
from mie.vocabulary import MODALITIES


def test_every_modality_has_its_family_or_none():
    found = {name: families.family_of(name) for name in MODALITIES}
    assert {f for f in found.values() if f} == set(families.FAMILIES)
    assert [name for name, family in found.items() if family is None] == [
        "OCT",
        "surgical photo",
    ]
    assert families.nearest_family("surgical photo") == "endoscopy"
    assert families.nearest_family("OCT") is None
    assert families.nearest_family("CT") == families.family_of("CT") == "ct"
    assert families.family_of("unknown") is None


def test_each_family_has_a_margin():
    assert set(families.MARGIN) == set(families.FAMILIES)
    assert families.GREY.issubset(families.FAMILIES)
    assert all(0 < m.share < 0.5 and m.least >= 1 for m in families.MARGIN.values())
