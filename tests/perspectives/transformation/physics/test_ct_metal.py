import json

import numpy as np
import pytest

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.ct import (
    even_angles,
    fbp,
    hu_to_attenuation,
    linear_attenuation,
    one_energy,
    project,
    tungsten_120kvp,
)
from mie.perspectives.transformation.physics.ct_dose import to_hu
from mie.perspectives.transformation.physics.ct_metal import (
    KINDS,
    MATERIALS,
    PHOTONS,
    MetalArtifact,
    correct_for_water,
    place_metal,
    transmission,
)
from tests.perspectives.transformation.physics.ct_slices import REAL_SPACING, inside, real_slice, water_disc

SIDE = 3.0


def scan_water(spectrum, corrected):
    """A water disc of 240 mm, reconstructed from a polychromatic scan, in HU."""
    angles = even_angles(160)
    water = project(hu_to_attenuation(water_disc()), angles) * np.float32(SIDE / linear_attenuation("water"))
    lines = -np.log(transmission({"water": water}, spectrum))
    if corrected:
        lines = correct_for_water(lines, spectrum)
    return to_hu(fbp(lines, angles, "hann"), SIDE) - 1000


def cupping(hu):
    """How much lower the middle lies than the rim, in HU."""
    return hu[inside(96, 35) & ~inside(96, 30)].mean() - hu[inside(96, 8)].mean()


def test_beam_hardening_cups_water_and_one_energy_does_not():
    assert cupping(scan_water(tungsten_120kvp(), corrected=False)) > 20
    assert abs(cupping(scan_water(one_energy(70), corrected=False))) < 2
    assert abs(cupping(scan_water(one_energy(50), corrected=False))) < 2


def test_correction_for_water_takes_the_cup_away():
    straight = scan_water(tungsten_120kvp(), corrected=True)
    assert abs(cupping(straight)) < 2
    assert straight[inside(96, 30)].mean() == pytest.approx(0, abs=5)


def test_transmission_is_beer_lambert_at_each_energy():
    paths = {"water": np.full((1, 2), 100, np.float32), "iron": np.array([[0, 5]], np.float32)}
    tube = tungsten_120kvp()
    by_hand = [
        sum(w * np.exp(-mw * 100 - mi * iron) for w, mw, mi in zip(tube.weights, *mus, strict=True))
        for mus in [(tube.attenuation("water"), tube.attenuation("iron"))]
        for iron in (0, 5)
    ]
    assert transmission(paths, tube)[0] == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_metal_lies_in_the_body_and_has_its_size(kind):
    disc = water_disc(128, 60)
    areas = {"fillings": (5, 170), "clips": (10, 110), "hip": (600, 3000), "screws": (350, 1000)}
    for seed in range(6):
        share = place_metal(kind, disc, 1.5, np.random.default_rng(seed))
        assert share.min() >= 0
        assert 0.05 < share.max() <= 1
        assert not share[~inside(128, 62)].any()
        low, high = areas[kind]
        assert low < share.sum() * 1.5**2 < high, seed


def test_metal_has_the_same_area_at_any_resolution():
    for kind in KINDS:
        coarse = place_metal(kind, water_disc(64, 30), 4.0, np.random.default_rng(3)).sum() * 16
        fine = place_metal(kind, water_disc(256, 120), 1.0, np.random.default_rng(3)).sum()
        assert coarse == pytest.approx(fine, rel=0.1), kind


def test_bony_implants_sit_in_bone_and_the_couch_gets_none():
    hu = water_disc(128, 45)
    hu[60:84, 80:104] = 900
    hu[118:121] = 400  # the couch
    for kind in ("hip", "screws", "fillings"):
        share = place_metal(kind, hu, 2.0, np.random.default_rng(1))
        assert not share[114:].any()
        rows, columns = np.nonzero(share)
        assert abs(rows.mean() - 72) < 20
        assert columns.mean() > 64 or kind == "hip"  # both hips may be replaced


def two_rods(material, photons=2e7):
    """Two hips side by side in water: the artifact between and above them."""
    disc = water_disc(128, 55)
    for seed in range(60):
        out, metal = MetalArtifact("hip", material, photons).insert(
            disc, np.random.default_rng(seed), spacing=(SIDE, SIDE)
        )
        columns = np.nonzero(metal.any(0))[0]
        if np.ptp(columns) > 50 and not metal[:, 58:70].any():
            row = round(float(np.nonzero(metal)[0].mean()))
            return out, metal, row
    raise AssertionError("no seed replaced both hips")


def test_dark_bands_join_two_metals_and_iron_is_worse_than_titanium():
    darkness = {}
    for material in ("iron", "titanium"):
        out, metal, row = two_rods(material)
        darkness[material] = -out[row - 1 : row + 2, 58:70].mean()
        assert out[metal].mean() > 2500
    assert darkness["iron"] > darkness["titanium"] > 50


def test_fewer_photons_give_noisier_streaks():
    disc = water_disc(96, 40)
    noise = {}
    for photons in PHOTONS:
        # The same place of the same metal: shapes are drawn before the photons.
        a, b = (
            MetalArtifact("screws", "iron", photons).apply(disc, NoisyRng(seed), spacing=(SIDE, SIDE))
            for seed in (1, 2)
        )
        noise[photons] = np.std((a - b)[inside(96, 38)])
    assert noise[2e6] > 1.5 * noise[2e7] > 0


class NoisyRng:
    """Always the same shapes, photons of another seed."""

    def __init__(self, seed):
        self.shapes, self.photons = np.random.default_rng(0), np.random.default_rng(seed)

    def __getattr__(self, name):
        return getattr(self.photons if name in ("poisson", "standard_normal") else self.shapes, name)


def test_away_from_metal_nothing_is_added_but_noise():
    """Both scans are polychromatic: bone alone hardens them alike."""
    hu = water_disc(96, 44)
    hu[40:56, 20:30] = 1500
    out, metal = MetalArtifact("clips", "titanium", 2e7).insert(hu, np.random.default_rng(2), spacing=(1, 1))
    rows, columns = np.nonzero(metal)
    far = np.ones_like(metal)
    far[rows.min() - 12 : rows.max() + 13, columns.min() - 12 : columns.max() + 13] = False
    assert abs((out - hu)[far & inside(96, 42)].mean()) < 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_real_slice_stays_finite_and_in_range(kind):
    hu = real_slice()
    effect = MetalArtifact(kind, MATERIALS[kind][-1], PHOTONS[0])
    out, metal = effect.insert(hu, np.random.default_rng(0), spacing=REAL_SPACING)
    assert out.shape == hu.shape
    assert out.dtype == np.float32
    assert metal.dtype == bool
    assert metal.any()
    assert out.min() >= -1024
    assert out.max() <= 3071
    assert out[metal].mean() > 1500
    assert np.array_equal(out, effect.apply(hu, np.random.default_rng(0), spacing=REAL_SPACING))


def test_draws_fit_together():
    drawn = [MetalArtifact.draw(np.random.default_rng(seed)) for seed in range(80)]
    assert {(e.kind, e.material) for e in drawn} == {(k, m) for k, ms in MATERIALS.items() for m in ms}
    assert all(PHOTONS[0] <= e.photons <= PHOTONS[1] for e in drawn)
    fields = json.loads(json.dumps(drawn[0].params()))
    assert fields.pop("effect") == "MetalArtifact"
    assert MetalArtifact(**fields) == drawn[0]
    assert MetalArtifact.draw(np.random.default_rng(0), kind="clips", material="iron").material == "iron"
    assert MetalArtifact.draw(np.random.default_rng(0), kind="fillings").material == "amalgam"


def test_wrong_use_is_refused():
    with pytest.raises(ConfigError, match="kind"):
        MetalArtifact("crown", "iron", 1e7)
    with pytest.raises(ConfigError, match="kind"):
        MetalArtifact.draw(np.random.default_rng(0), kind="crown")
    with pytest.raises(ConfigError, match="made of"):
        MetalArtifact("fillings", "titanium", 1e7)
    with pytest.raises(ConfigError, match="out of range"):
        MetalArtifact("hip", "iron", 1e3)
    with pytest.raises(ConfigError, match="kernel"):
        MetalArtifact("hip", "iron", 1e7, "soft")
    air = np.full((64, 64), -1000, np.float32)
    with pytest.raises(ImageError, match="no body"):
        MetalArtifact("hip", "iron", 1e7).apply(air, np.random.default_rng(0), spacing=(1, 1))
    with pytest.raises(ImageError, match="not numbers"):
        MetalArtifact("hip", "iron", 1e7).apply(air * np.nan, np.random.default_rng(0), spacing=(1, 1))
