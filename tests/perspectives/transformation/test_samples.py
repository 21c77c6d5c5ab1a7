"""Transformation: seventeen targets from pairs and by physics, each sample rebuilt from what it says."""

from __future__ import annotations

import re

import cv2
import numpy as np
import pytest

from mie.errors import ConfigError
from mie.images.windows import FULL_RANGE, WINDOWS, through_ct_window
from mie.perspectives.transformation import PERSPECTIVE
from mie.perspectives.transformation.phrasings import DESCRIPTIONS, NAMED, PHRASINGS, places, with_article
from mie.perspectives.transformation.samples import Transformation
from mie.perspectives.transformation.simulation import simulate
from mie.perspectives.transformation.targets import TARGETS, check_pairing, find_target
from mie.records import Pairing, Rejection, Sample
from mie.vocabulary import BINS, MODALITIES
from tests.conftest import crop, grainy, make_case
from tests.perspectives.transformation.physics.slices import zero_filled

SIMULATED = [key for key, target in TARGETS.items() if target.effect is not None]


def body(size: int = 96) -> np.ndarray:
    """Hounsfield units of a patient: air, fat, soft tissue, lungs, spine."""
    hu = np.full((size, size), -1000, np.float32)
    for centre, axes, value in (
        ((0.5, 0.5), (0.42, 0.32), -100),
        ((0.5, 0.5), (0.38, 0.28), 40),
        ((0.35, 0.48), (0.1, 0.15), -850),
        ((0.65, 0.48), (0.1, 0.15), -850),
        ((0.5, 0.7), (0.05, 0.06), 700),
    ):
        at, radii = (tuple(round(c * size) for c in pair) for pair in (centre, axes))
        cv2.ellipse(hu, at, radii, 0, 0, 360, value, -1)
    return hu


def grey(number: int = 0, size: int = 128) -> np.ndarray:
    return np.repeat(crop(number, size, size)[..., 1:2], 3, axis=2)


def clean_case(modality: str, **changes):
    if modality == "CT":
        hu = body()
        image = np.repeat(through_ct_window(hu, 50, 400)[..., None], 3, axis=2)
        changes = {"image": image, "values": hu, "units": "HU", "spacing": (3.5, 3.5), **changes}
    elif modality != "dermoscopy":
        changes = {"image": grey(1), **changes}
    anatomy = {"CT": "abdomen", "MRI": "brain", "OCT": "retina"}.get(modality, "skin")
    return make_case(0, masks={}, **{"modality": modality, "anatomy": anatomy, **changes})


def made(case, split="test", seed=1, **options) -> list[Sample | Rejection]:
    return list(Transformation(**options).samples(case, split, seed))


class TestTable:
    def test_seventeen_targets_in_four_families(self) -> None:
        assert len(TARGETS) == len({t.name for t in TARGETS.values()}) == 17
        assert {t.task for t in TARGETS.values()} == set(PERSPECTIVE.tasks)
        assert [sum(t.task == task for t in TARGETS.values()) for task in PERSPECTIVE.tasks] == [
            5,
            6,
            3,
            3,
        ]
        assert all(set(t.modalities) <= set(MODALITIES) for t in TARGETS.values())

    @pytest.mark.parametrize("key", TARGETS)
    def test_phrasings(self, key) -> None:
        phrasings = PHRASINGS[key]
        assert len(phrasings) == len(set(phrasings)) >= 10
        for text in (*phrasings, DESCRIPTIONS[key]):
            assert text[0].isupper() or text[0] == "{"
            assert text[-1] in ".?"
        for name in NAMED.get(key, ()):
            assert all(name in places(t) or f"a_{name}" in places(t) for t in phrasings), name

    def test_every_kernel_phrasing_says_the_kernel(self) -> None:
        for kernel in ("soft", "sharp"):
            assert all(kernel in text for text in PHRASINGS[f"low_dose_ct_{kernel}"])

    def test_near_names(self) -> None:
        with pytest.raises(ConfigError) as error:
            find_target("mri_moton")
        assert error.value.fix == "did you mean 'mri_motion'?"
        with pytest.raises(ConfigError, match="names its two sides"):
            check_pairing(Pairing("ct_mri"), "here")

    def test_articles(self) -> None:
        words = ("MRI", "CT", "FLAIR MRI", "abdomen", "lung", "T2-weighted MRI", "arterial phase")
        said = [with_article(w).split()[0] for w in words]
        assert said == ["an", "a", "a", "an", "a", "a", "an"]


class TestSimulated:
    @pytest.mark.parametrize("key", SIMULATED)
    def test_each_target(self, key) -> None:
        target = TARGETS[key]
        case = clean_case(target.modalities[0])
        found = made(case, "train", targets=(key,))
        assert len(found) == len(target.variants)
        for sample in found:
            assert isinstance(sample, Sample)
            assert (sample.perspective, sample.task, sample.target) == (
                "transformation",
                target.task,
                target.name,
            )
            assert sample.mask is None
            assert sample.colour is None
            assert sample.input.shape == sample.target_image.shape == (128, 128, 3)
            assert sample.bin == 128
            assert (sample.input != sample.target_image).any()
            assert "{" not in sample.prompt
            assert "{" not in sample.description
            assert sample.params["made"] == "simulation"
            assert sample.params["effect"] == target.simulator().__name__
        again = made(case, "train", targets=(key,))
        assert [s.id for s in again] == [s.id for s in found]
        assert all(np.array_equal(a.input, b.input) for a, b in zip(found, again, strict=True))
        other = made(case, "train", seed=2, targets=(key,))
        if key != "super_resolution":  # nothing random there
            assert (other[0].input != found[0].input).any()

    def test_the_clean_side_is_the_image_itself(self) -> None:
        case = clean_case("MRI")
        (sample,) = made(case, targets=("mri_motion",))
        high = sample.params["image_steps"][-1]["high"] if sample.params["image_steps"] else 255
        assert np.abs(sample.target_image * (high / 255) - case.image).max() <= 1

    def test_severity_is_kept_and_named(self) -> None:
        (sample,) = made(
            clean_case("CT"), targets=("ct_sparse_view",), severity={"ct_sparse_view": {"views": 60}}
        )
        assert sample.params["views"] == 60
        if "views" in places(sample.prompt_template):
            assert "60" in sample.prompt

    def test_super_resolution_by_two_and_by_four_names_its_factor(self) -> None:
        found = made(clean_case("MRI"), targets=("super_resolution",))
        assert [s.params["factor"] for s in found] == [2, 4]
        assert all(str(s.params["factor"]) in s.prompt for s in found)

    def test_spacing_follows_the_stored_size(self) -> None:
        (train,) = made(clean_case("CT"), "train", targets=("low_dose_ct_soft",))
        (test,) = made(clean_case("CT"), "test", targets=("low_dose_ct_soft",))
        assert test.params["pixel_mm"] == pytest.approx(3.5)
        assert train.params["pixel_mm"] == pytest.approx(3.5 * 96 / 128)

    def test_per_case_draws_among_what_fits(self) -> None:
        case = clean_case("MRI")
        assert len(made(case)) == 6
        drawn = {tuple(s.params["key"] for s in made(case, seed=n, per_case=2)) for n in range(12)}
        assert all(len(keys) == 2 for keys in drawn)
        assert len(drawn) > 3

    def test_eight_bit_ct_is_simulated_as_assumed_and_never_windowed(self) -> None:
        case = clean_case("CT", values=None, units=None, spacing=None, hu_range=(-1000, 400))
        found = made(case, targets=("low_dose_ct_sharp", "ct_window"))
        rejection, sample = sorted(found, key=lambda x: isinstance(x, Sample))
        assert rejection.gate == "units"
        assert "no Hounsfield units" in rejection.reason
        assert sample.params["assumed"] == {"hu_range": [-1000, 400], "field_of_view_mm": 360.0}

    def test_black_of_a_window_for_soft_tissue_is_air_to_the_physics(self) -> None:
        """Its noise is that of the patient in Hounsfield units, not of one in a block of fat."""
        low, high = -160.0, 240.0
        patient = body()
        shown = np.clip(np.round((patient - low) * (255 / (high - low))), 0, 255)
        picture = np.repeat(shown.astype(np.uint8)[..., None], 3, axis=2)
        case = clean_case("CT", image=picture, values=None, units=None, spacing=None, hu_range=(low, high))
        target = TARGETS["low_dose_ct_soft"]
        made = simulate(target, target.fixed, case, (96, 96), np.random.default_rng(5))
        assert np.array_equal(made.target_image, picture)
        rng = np.random.default_rng(5)
        effect = target.simulator().draw(rng, **target.fixed)
        tissue = (low + shown.astype(np.float32) * ((high - low) / 255)).astype(np.float32)
        known = np.where(shown == 0, np.float32(-1024), tissue)
        noisy = effect.apply(known, rng, spacing=(3.75, 3.75))
        inside = (shown > 0) & (shown < 255)
        expected = np.clip((noisy - low) * (255 / (high - low)), 0, 255)
        assert np.abs(made.input[..., 0] - expected)[inside].max() < 1.5
        assert made.input[..., 0][shown == 0].max() == 0, "the noise of air is not seen"
        block = effect.apply(tissue, np.random.default_rng(5), spacing=(3.75, 3.75))
        assert np.std((block - tissue)[inside]) > 2 * np.std((noisy - tissue)[inside])


class TestBadInput:
    def test_ct_without_rescale(self) -> None:
        found = made(clean_case("CT", values=None, units=None))
        keys = ("low_dose_ct_soft", "low_dose_ct_sharp", "ct_metal", "ct_sparse_view", "ct_window")
        assert {r.target for r in found} == {TARGETS[key].name for key in keys} | {None}
        assert {r.gate for r in found} == {"units", "empty"}

    def test_colour_given_to_grey_physics(self) -> None:
        for case in (
            clean_case("MRI", image=crop(0)),
            clean_case("CT", image=crop(0), units=None, hu_range=(-1000, 400)),
        ):
            found = made(case, targets=("mri_noise", "ct_sparse_view"))
            (rejection,) = found
            assert rejection.gate == "image"
            assert "colour" in rejection.reason

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("key", ["ct_window", "low_dose_ct_soft", "ct_metal"])
    def test_values_that_are_no_numbers(self, key, value) -> None:
        hu = body()
        hu[40, 40] = value
        found = made(clean_case("CT", values=hu), targets=(key,))
        assert {r.gate for r in found} == {"image"}
        assert all("not numbers" in r.reason for r in found)

    def test_modality_without_a_target_says_so(self) -> None:
        (rejection,) = made(make_case(0))
        assert rejection.gate == "empty"
        assert "fundus" in rejection.reason


class TestWindow:
    def test_exact_to_the_formula_and_named(self) -> None:
        case = clean_case("CT")
        found = made(case, targets=("ct_window",))
        assert {s.params["named"][0] for s in found} == {"lung", "mediastinum", "bone", "abdomen", "liver"}
        for sample in found:
            name, level, width = sample.params["named"]
            window = WINDOWS[name]
            assert (float(level), float(width)) == (window.level, window.width)
            assert all(re.search(rf"(?<!\d){re.escape(w)}\b", sample.prompt) for w in (level, width))
            assert np.array_equal(
                sample.target_image[..., 0], through_ct_window(case.values, window.level, window.width)
            )
            source = sample.params["from"]
            assert np.array_equal(
                sample.input[..., 0], through_ct_window(case.values, source["centre"], source["width"])
            )
            assert source["width"] >= 1.5 * window.width

    def test_every_window_has_a_wider_one_that_shows_it(self) -> None:
        case = clean_case("CT", anatomy="brain")
        assert {s.params["named"][0] for s in made(case, targets=("ct_window",))} == {
            "bone",
            "brain",
            "stroke",
        }
        for name in WINDOWS:
            (sample,) = made(case, targets=("ct_window",), windows=(name,))
            assert sample.params["from"]["width"] <= FULL_RANGE.width


class TestPairs:
    def pairing(self, **changes):
        return Pairing(
            **{"target": "ct_mri", "image": "CT", "pair": "MRI", "modality": "MRI", "both": True, **changes}
        )

    def test_both_directions(self) -> None:
        first, second = grey(1), 255 - grey(1)
        case = clean_case(
            "CT", image=first, pair=second, pairing=self.pairing(), anatomy="brain", values=None
        )
        there, back = made(case)
        assert (there.modality, back.modality) == ("CT", "MRI")
        assert np.array_equal(there.input, first)
        assert np.array_equal(there.target_image, second)
        assert np.array_equal(back.input, second)
        assert np.array_equal(back.target_image, first)
        assert there.params["named"] == ["MRI"]
        assert back.params["named"] == ["CT"]
        assert "MRI" in there.prompt
        assert "CT" in back.prompt
        assert there.id != back.id
        assert there.params["alignment"]["error"] < 0.5

    def test_forward_only_and_generic_words(self) -> None:
        case = clean_case(
            "dermoscopy", image=crop(1), pair=crop(2), pairing=Pairing("dermoscopy_artifacts", "ruler marks")
        )
        (sample,) = made(case)
        assert "ruler marks" in sample.prompt

    def test_registration_lowers_the_error(self) -> None:
        first = grey(1)
        pair = np.roll(255 - first, (6, -4), (0, 1))
        case = clean_case("MRI", image=first, pair=pair, pairing=self.pairing(both=False))
        (plain,) = made(case)
        (moved,) = made(case, registering=True)
        assert plain.params["alignment"]["error"] > 5
        assert moved.params["before"] == plain.params["alignment"]
        assert moved.params["alignment"]["error"] < 1.5

    def test_what_is_not_asked_for_or_not_said(self) -> None:
        case = clean_case("MRI", pair=grey(2), pairing=self.pairing())
        (rejection,) = made(case, targets=("mri_noise",))
        assert "does not ask for ct_mri" in rejection.reason
        (rejection,) = made(clean_case("MRI", pair=grey(2)))
        assert "pairing" in rejection.reason


class TestWhatFits:
    @pytest.mark.parametrize(
        ("anatomy", "kinds"),
        [("chest", {"clips", "screws"}), ("pelvis", {"hip", "screws"}), ("head", {"fillings", "clips"})],
    )
    def test_metal_is_of_the_kind_that_is_found_there(self, anatomy, kinds) -> None:
        found = set()
        for n in range(24):
            case = clean_case("CT", anatomy=anatomy, case_id=str(n))
            found |= {s.params["kind"] for s in made(case, targets=("ct_metal",)) if isinstance(s, Sample)}
        assert found <= kinds
        assert len(found) == 2

    def test_a_few_coloured_marks_do_not_make_an_ultrasound_image_coloured(self) -> None:
        image = grey(1).copy()
        image[:4, :40] = (255, 200, 0)  # the scanner's menu
        (sample,) = made(clean_case("ultrasound", image=image), targets=("ultrasound_speckle",))
        assert isinstance(sample, Sample)
        assert (np.ptp(sample.target_image, axis=2) == 0).all()
        assert np.array_equal(sample.target_image[8:], image[8:])

    def test_a_coloured_image_is_refused_with_its_share(self) -> None:
        (rejection,) = made(clean_case("ultrasound", image=crop(0)), targets=("ultrasound_speckle",))
        assert isinstance(rejection, Rejection)
        assert re.search(r"at most 2%.*found \d+\.\d%", rejection.reason)


class TestAcquiredSize:
    def test_an_enlarged_mri_is_degraded_at_the_size_it_was_acquired_at(self) -> None:
        slice_ = grainy(crop(1, 160, 128)[..., 1], 0)
        stored = np.repeat(zero_filled(slice_, 640, 512)[..., None], 3, axis=2)
        samples = made(clean_case("MRI", image=stored, spacing=(0.5, 0.4)), bins=BINS)
        assert {s.params["key"] for s in samples} >= {"super_resolution", "mri_noise", "mri_motion"}
        for sample in samples:
            height, width = sample.input.shape[:2]
            assert sample.input.shape == sample.target_image.shape
            assert 160 <= height <= 170
            assert abs(height / width - 640 / 512) < 0.02
            assert sample.params["original_size"] == [640, 512]
            step = next(s for s in sample.params["image_steps"] if s["step"] == "acquired size")
            assert (step["height"], step["width"]) == (height, width)
            np.testing.assert_allclose(sample.params["spacing"], (0.5 * 640 / height, 0.4 * 512 / width))
        halved = next(s for s in samples if s.params.get("factor") == 2)
        whole = next(s for s in made(clean_case("MRI", image=grey(1))) if s.params.get("factor") == 2)
        assert whole.params["original_size"] == list(whole.input.shape[:2])
        # Detail was lost, which of the stored image would not have been.
        assert np.abs(halved.input.astype(int) - halved.target_image).mean() > 1
        spectrum = np.abs(np.fft.fftshift(np.fft.fft2(halved.target_image[..., 0].astype(float)))) ** 2
        rim = spectrum[: len(spectrum) // 8].sum()
        assert rim > 0.5 * halved.input[..., 0].size  # the target fills its own k-space

    def test_training_and_other_modalities(self) -> None:
        slice_ = grainy(crop(1, 128, 128)[..., 1], 0)
        stored = np.repeat(zero_filled(slice_, 512, 512)[..., None], 3, axis=2)
        trained = made(clean_case("MRI", image=stored), split="train")
        assert {s.bin for s in trained} == {128}
        assert all(max(s.input.shape[:2]) == s.bin for s in trained)
        speckled = made(clean_case("ultrasound", image=stored))
        assert all(s.input.shape[:2] == (512, 512) for s in speckled if isinstance(s, Sample))
