"""Families of modalities, and who is held out."""

from hypothesis import given
from hypothesis import strategies as st

from mie.images import families
from mie.recipes.seeds import stable_hash
from mie.vocabulary import MODALITIES


def test_every_modality_has_its_family_or_none():
    found = {name: families.family_of(name) for name in MODALITIES}
    assert {f for f in found.values() if f} == set(families.FAMILIES)
    assert [name for name, family in found.items() if family is None] == [
        "microscopy",
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


@given(st.text(min_size=1), st.text(min_size=1))
def test_held_out_is_the_same_hash_as_everywhere(source, patient):
    subject = patient if "/" in patient else f"{source}//{patient}"
    assert families.is_held_out(source, patient) == (stable_hash("held out", subject) / 2**64 < 0.2)


def test_one_patient_in_five_is_held_out_and_a_cohort_stays_together():
    held = [families.is_held_out("set", str(n)) for n in range(5000)]
    assert 900 < sum(held) < 1100
    assert all(
        families.is_held_out("set_a", f"cohort/{n}") == families.is_held_out("set_b", f"cohort/{n}")
        for n in range(100)
    )
