import numpy as np
import pytest

from mie.errors import ImageError
from mie.perspectives.transformation.physics.ct import (
    ENERGIES,
    MASS_ATTENUATION,
    attenuation_to_hu,
    check_slice,
    hu_to_attenuation,
    linear_attenuation,
    one_energy,
    tungsten_120kvp,
    water_and_bone,
)
from tests.perspectives.transformation.physics.ct_slices import real_slice


def test_water_and_air_are_the_fixed_points():
    assert hu_to_attenuation(np.array([-1000.0, 0.0])) == pytest.approx([0, 0.01929])
    assert hu_to_attenuation(np.array([-3024.0])) == 0
    hu = real_slice()
    assert attenuation_to_hu(hu_to_attenuation(hu)) == pytest.approx(hu, abs=1e-3)


@pytest.mark.parametrize(
    ("material", "kev", "per_cm"),
    [  # mu/rho of NIST's database 126 times density
        ("water", 60, 0.2059),
        ("bone", 40, 0.6655 * 1.92),
        ("iron", 100, 0.3717 * 7.874),
        ("titanium", 50, 1.213 * 4.506),
        # Mixture rule by hand: 0.5 Hg 4.683, 0.35 Ag 5.766, 0.09 Sn 6.564, 0.06 Cu 1.593
        ("amalgam", 60, (0.5 * 4.683 + 0.35 * 5.766 + 0.09 * 6.564 + 0.06 * 1.593) * 11.6),
    ],
)
def test_linear_attenuation(material, kev, per_cm):
    assert linear_attenuation(material, kev) * 10 == pytest.approx(per_cm, rel=1e-3)


def test_attenuation_falls_with_energy_except_over_mercurys_edge():
    for material, values in MASS_ATTENUATION.items():
        rises = [ENERGIES[i] for i in range(len(values) - 1) if values[i + 1] > values[i]]
        assert rises == ([80] if material == "amalgam" else [])


def test_cortical_bone_looks_like_bone():
    bone = attenuation_to_hu(np.array([linear_attenuation("bone")]))
    assert 1200 < bone[0] < 2000


def test_the_spectrum_is_that_of_a_filtered_tungsten_tube():
    tube = tungsten_120kvp()
    assert sum(tube.weights) == pytest.approx(1)
    assert min(tube.weights) > 0
    assert tube.energies[int(np.argmax(tube.weights))] == 60  # the K lines
    assert 55 < np.dot(tube.energies, tube.weights) < 65
    # Half-value layer in aluminium of clinical beams at 120 kVp: 6 to 9 mm.
    aluminium = np.array([1.128, 0.5685, 0.3681, 0.2778, 0.2301, 0.2018, 0.1833, 0.1704, 0.1608, 0.1533])
    for millimetres, more_than_half in ((6, True), (9, False)):
        passed = np.dot(tube.weights, np.exp(-aluminium * 0.2699 * millimetres))
        assert (passed > 0.5) == more_than_half
    assert np.dot(tungsten_120kvp(12).weights, ENERGIES) > np.dot(tube.weights, ENERGIES)


def test_one_energy_is_one_energy():
    assert one_energy(50).attenuation("iron") == pytest.approx([1.958 * 0.7874])


def test_splitting_into_water_and_bone_loses_nothing():
    attenuation = hu_to_attenuation(np.concatenate([real_slice().ravel(), np.arange(-1000.0, 4000.0, 7)]))
    water, bone = water_and_bone(attenuation)
    together = water * linear_attenuation("water") + bone * linear_attenuation("bone")
    assert together == pytest.approx(attenuation, rel=1e-5, abs=1e-8)
    assert water.min() > -1e-5
    assert bone.min() == 0
    soft = attenuation < hu_to_attenuation(np.array([99.0]))
    assert not bone[soft].any()
    assert water_and_bone(np.array([linear_attenuation("bone")], np.float32))[1] == pytest.approx([1])


@pytest.mark.parametrize(("hu", "share"), [(99.0, 0.0), (101.0, 7e-4), (150.0, 0.0344), (300.0, 0.1376)])
def test_bone_begins_at_a_hundred_hounsfield_units(hu, share):
    """From 100 HU on, in proportion to the way from there to cortical bone (1558 HU)."""
    attenuation = hu_to_attenuation(np.array([hu], np.float32))
    cortical = attenuation_to_hu(np.array([linear_attenuation("bone")]))[0]
    assert share == pytest.approx(max(0.0, (hu - 100) / (cortical - 100)), rel=0.03)
    assert water_and_bone(attenuation)[1] == pytest.approx([share], rel=0.03, abs=1e-6)


@pytest.mark.parametrize(
    ("slice_", "spacing", "what"),
    [
        (np.zeros((32, 32, 3), np.float32), (1, 1), "grey slice"),
        (np.zeros((32, 32), np.uint8), (1, 1), "Hounsfield"),
        (np.zeros((32, 32), np.int16), (1, 1), "Hounsfield"),
        (np.zeros((1, 1), np.float32), (1, 1), "too small"),
        (np.full((32, 32), np.nan, np.float32), (1, 1), "not numbers"),
        (np.full((32, 32), np.inf, np.float32), (1, 1), "not numbers"),
        (np.zeros((32, 32), np.float32), (1, 2), "spacing"),
        (np.zeros((32, 32), np.float32), (0, 0), "spacing"),
        (np.zeros((32, 32), np.float32), (np.nan, np.nan), "spacing"),
    ],
)
def test_slices_that_are_not_ct_are_refused(slice_, spacing, what):
    with pytest.raises(ImageError, match=what):
        check_slice(slice_, spacing)


def test_spacing_is_the_pixels_side():
    assert check_slice(np.zeros((32, 40), np.float32), (0.7, 0.702)) == pytest.approx(0.701)
