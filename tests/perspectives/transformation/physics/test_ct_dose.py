import json

import numpy as np
import pytest

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.ct_dose import PHOTONS, LowDose, measure
from tests.perspectives.transformation.physics.ct_slices import REAL_SPACING, inside, real_slice, water_disc


def noise_of(effect, disc, spacing, repeats=3):
    """Standard deviation of what the effect adds in the inner half of a disc, in HU."""
    middle = inside(len(disc), len(disc) // 5)
    added = [
        effect.apply(disc, np.random.default_rng(seed), spacing=spacing) - disc for seed in range(repeats)
    ]
    return float(np.std([a[middle] for a in added]))


def slope(kernel):
    disc = water_disc()
    doses = np.geomspace(*PHOTONS, 5)
    deviations = [noise_of(LowDose(dose, kernel, electronic=0), disc, (1.5, 1.5)) for dose in doses]
    return np.polyfit(np.log(doses), 2 * np.log(deviations), 1)[0]


@pytest.mark.parametrize("kernel", ["ramp", "shepp-logan", "hann"])
def test_noise_variance_falls_as_one_over_dose(kernel):
    assert slope(kernel) == pytest.approx(-1, abs=0.1)


def test_noise_has_the_size_that_theory_gives_it():
    """Ramp, uniform disc, centre: variance = pi^2 / (12 a^2 V N) (Kak and Slaney, 5.2), before interpolation
    between bins, whose mean square weight of 2/3 at most lowers it."""
    disc, side = water_disc(), 1.5
    views = int(np.ceil(np.pi / 2 * 96))
    reached = 1e5 * np.exp(-0.01929 * 2 * 40 * side)
    theory = np.pi / np.sqrt(12 * side**2 * views * reached) / 0.01929 * 1000
    assert 0.6 * theory < noise_of(LowDose(1e5, "ramp", 0), disc, (side, side)) < theory


def test_sharp_kernels_are_noisier_and_finer():
    disc = water_disc()
    deviation = {k: noise_of(LowDose(1e5, k), disc, (1.5, 1.5)) for k in ("hann", "shepp-logan", "ramp")}
    assert deviation["hann"] < deviation["shepp-logan"] < deviation["ramp"]
    grain = {}
    for kernel in deviation:
        added = LowDose(1e5, kernel).apply(disc, np.random.default_rng(0), spacing=(1.5, 1.5)) - disc
        core = added[35:61, 35:61]
        grain[kernel] = float(np.mean(core[:, 1:] * core[:, :-1]) / np.mean(core**2))
    assert grain["hann"] > grain["shepp-logan"] > grain["ramp"]


def test_thick_bodies_are_noisier_and_the_pixels_size_counts():
    disc = water_disc()
    effect = LowDose(1e5, "hann", 0)
    assert noise_of(effect, disc, (4, 4)) > 2 * noise_of(effect, disc, (2, 2))


def test_noise_is_unbiased_where_photons_abound():
    disc = water_disc()
    middle = inside(len(disc), 20)
    added = LowDose(3e5, "hann", 0).apply(disc, np.random.default_rng(0), spacing=(1, 1)) - disc
    assert abs(added[middle].mean()) < 1


def test_electronic_noise_adds_up():
    disc = water_disc()
    quiet = noise_of(LowDose(3e4, "hann", 0), disc, (3, 3))
    assert noise_of(LowDose(3e4, "hann", 30), disc, (3, 3)) > 1.2 * quiet


def test_starved_rays_stay_finite():
    metre_wide = np.full((64, 64), 3000, np.float32)
    out = LowDose(3e4, "ramp", 30).apply(metre_wide, np.random.default_rng(0), spacing=(20, 20))
    assert np.isfinite(out).all()
    assert np.isfinite(measure(np.zeros((3, 3)), 3e4, 30, np.random.default_rng(0))).all()


def test_a_real_slice_keeps_its_form_and_the_same_seed_gives_the_same_pixels():
    hu = real_slice()
    before = hu.copy()
    first = LowDose(1e5).apply(hu, np.random.default_rng(4), spacing=REAL_SPACING)
    assert first.shape == hu.shape
    assert first.dtype == np.float32
    assert np.array_equal(hu, before)
    assert np.array_equal(first, LowDose(1e5).apply(hu, np.random.default_rng(4), spacing=REAL_SPACING))
    assert not np.array_equal(first, LowDose(1e5).apply(hu, np.random.default_rng(5), spacing=REAL_SPACING))
    assert 1 < np.std(first - hu) < 60
    # No blur: what was added knows nothing of the picture's edges.
    assert abs(np.corrcoef((first - hu).ravel(), hu.ravel())[0, 1]) < 0.1


def test_draws_lie_in_the_range_and_keep_what_is_fixed():
    drawn = [LowDose.draw(np.random.default_rng(seed), kernel="ramp") for seed in range(200)]
    photons = [effect.photons for effect in drawn]
    assert {effect.kernel for effect in drawn} == {"ramp"}
    assert PHOTONS[0] <= min(photons) < 3.5e4
    assert 2.6e5 < max(photons) <= PHOTONS[1]
    assert json.loads(json.dumps(drawn[0].params())) == drawn[0].params()
    fields = {k: v for k, v in drawn[0].params().items() if k != "effect"}
    assert LowDose(**fields) == drawn[0]
    assert {LowDose.draw(np.random.default_rng(s)).kernel for s in range(30)} == {
        "ramp",
        "shepp-logan",
        "hann",
    }


@pytest.mark.parametrize(
    ("fields", "range_"),
    [
        ({"photons": 1e3}, "30000.0 to 300000.0"),
        ({"photons": float("nan")}, "30000.0 to 300000.0"),
        ({"photons": 1e5, "electronic": -1}, "0.0 to 30.0"),
        ({"photons": 1e5, "kernel": "bone"}, "ramp, shepp-logan, hann"),
    ],
)
def test_severity_out_of_range_is_refused(fields, range_):
    with pytest.raises(ConfigError) as refused:
        LowDose(**fields)
    assert refused.value.expected == range_
    assert refused.value.found is not None


def test_a_windowed_picture_is_refused():
    with pytest.raises(ImageError, match="Hounsfield"):
        LowDose(1e5).apply(np.zeros((64, 64), np.uint8), np.random.default_rng(0), spacing=(1, 1))
