"""Filling, measuring, choosing: with classical inpainters and inpainters made for the test."""

from dataclasses import replace

import numpy as np
import pytest

from mie.perspectives.modification import samples
from mie.perspectives.modification.counterfactual import Bounds, Counterfactual, Slice, Watch, watch
from mie.perspectives.modification.detectors import Finding
from mie.perspectives.modification.inpainters import make_inpainter
from mie.perspectives.modification.lesions import body_of, lesions_of
from mie.perspectives.modification.samples import Modification
from tests.perspectives.modification.lesions import (
    BLEED,
    DarkFinder,
    disc,
    lesion_case,
    tissue,
    with_lesions,
)

ANYTHING = Bounds(1e9, (1e-9, 1e9), 1.0, 1e9, 1e9)
NOBODY = Watch(None, False, "no detector was asked for")


def a_slice(number=0, radius=9, level=5, at=(50, 60), *, grey=False):
    mask = disc(*at, radius)
    (lesion,) = lesions_of({BLEED.name: mask}, {BLEED.name: BLEED}, (0.1, 3))
    image = with_lesions(tissue(number, grey=grey), [mask], level)
    return Slice(image, lesion, body_of(image, "fundus"), mask)


def filler(*specs, candidates=3, bounds=ANYTHING, blend="poisson", seen_by=NOBODY):
    made = [make_inpainter(s, family="fundus") if isinstance(s, str) else s for s in specs or ("telea",)]
    return Counterfactual(made, blend, candidates, bounds, seen_by)


class Flat:
    """Fills with one grey level, which the seed chooses among a few."""

    name = "flat"

    def __init__(self, *levels):
        self.levels = levels
        self.images = []

    def fill(self, image, mask, *, seed):
        self.images.append(image.copy())
        level = self.levels[(len(self.images) - 1) % len(self.levels)]
        return np.where(mask[..., None], np.uint8(level), image)


@pytest.mark.parametrize("spec", ["telea", "navier-stokes", "exemplar"])
@pytest.mark.parametrize("blend", ["none", "feather", "poisson", "laplacian"])
@pytest.mark.parametrize("grey", [False, True])
def test_outside_the_hole_nothing_changes_and_grey_stays_grey(spec, blend, grey):
    at = a_slice(grey=grey)
    kept, made = filler(spec, candidates=1, blend=blend).fill([at], 0)
    image = made[kept][0].image
    outside = ~at.lesion.hole
    assert np.array_equal(image[outside], at.image[outside])
    assert (image[at.lesion.mask].mean(axis=1) > 20).mean() > 0.95  # the dark lesion is gone
    assert grey == (not np.ptp(image, axis=2).any())


def test_the_inpainter_never_sees_the_lesion():
    """The hole is white when it comes to the inpainter, and what was there does not change the fill."""
    inpainter = Flat(90)
    dark, bright = a_slice(level=5), a_slice(level=250)
    fills = [filler(inpainter, candidates=1).fill([at], 0) for at in (dark, bright)]
    assert all((image[dark.lesion.hole] == 255).all() for image in inpainter.images)
    assert np.array_equal(fills[0][1][0][0].image, fills[1][1][0][0].image)
    assert fills[0][1][0][0].seed == fills[1][1][0][0].seed


def test_the_same_seed_gives_the_same_bytes_and_another_another():
    at = a_slice(number=3)
    first, again, other = (filler("exemplar", candidates=2).fill([at], seed) for seed in (1, 1, 2))
    for one, two in zip(first[1], again[1], strict=True):
        assert one[0].params() == two[0].params()
        assert np.array_equal(one[0].image, two[0].image)
    assert not np.array_equal(first[1][0][0].image, other[1][0][0].image)


def test_an_inpainter_without_chance_is_asked_twice_only():
    _, made = filler("telea", candidates=8).fill([a_slice()], 0)
    assert len(made) == 1


def test_several_inpainters_take_turns_each_with_seeds_of_its_own():
    _, made = filler("telea", "exemplar", candidates=6).fill([a_slice()], 0)
    # The second telea is the first again, so it does not count; each exemplar is another.
    assert [c[0].inpainter for c in made] == ["telea", "exemplar", "exemplar", "exemplar"]
    assert [c[0].number for c in made] == [0, 1, 3, 5]
    assert len({c[0].seed for c in made}) == len({c[0].image.tobytes() for c in made}) == 4
    assert [c[0].params()["inpainter"] for c in made] == [c[0].inpainter for c in made]


def test_of_several_inpainters_the_one_that_passes_is_kept():
    at = a_slice()
    good, bad = Flat(int(at.image[~at.lesion.hole].mean())), Flat(0)
    good.name, bad.name = "good", "bad"
    seen_by = watch(DarkFinder(), min_sensitivity=0.5)
    for order in ((good, bad), (bad, good)):
        kept, made = filler(*order, candidates=2, blend="none", seen_by=seen_by).fill([at], 0)
        assert made[kept][0].inpainter == "good"
        assert [c[0].passed for c in made] == [inpainter is good for inpainter in order]


def test_the_candidate_nearest_to_its_surroundings_is_kept():
    at = a_slice(number=2)
    around = int(at.image[~at.lesion.hole].mean())
    kept, made = filler(Flat(250, around, 0), blend="none").fill([at], 0)
    assert kept == 1
    shifts = [made[k][0].numbers["texture"]["mean_shift"] for k in range(3)]
    assert min(shifts) == shifts[1]


@pytest.mark.parametrize(
    ("bounds", "gate"),
    [
        (Bounds(mean_shift=1e-6), "texture"),
        (Bounds(1e9, (0.999, 1.001), 1.0, 1e9, 1e9), "texture"),
        (Bounds(1e9, (1e-9, 1e9), 1e-9, 1e9, 1e9), "texture"),
        (Bounds(1e9, (1e-9, 1e9), 1.0, 1e-9, 1e9), "texture"),
        (Bounds(1e9, (1e-9, 1e9), 1.0, 1e9, -1.0), "seam"),
    ],
)
def test_each_bound_refuses(bounds, gate):
    kept, made = filler("telea", candidates=1, bounds=bounds).fill([a_slice()], 0)
    assert [found for found, _ in made[kept][0].failures] == [gate]
    assert made[kept][0].params()["failed"] == [gate]


def test_default_bounds_refuse_a_flat_patch_and_keep_texture_from_next_door():
    at = a_slice(number=4, radius=12)
    kept, made = filler(Flat(255), candidates=1, bounds=Bounds(), blend="none").fill([at], 0)
    assert not made[kept][0].passed
    kept, made = filler("exemplar", candidates=4, bounds=Bounds()).fill([at], 0)
    assert made[kept][0].passed, made[kept][0].failures


def test_a_trusted_detector_refuses_what_it_still_sees():
    at = a_slice()
    for level, gates in ((0, ["detector"]), (90, [])):
        kept, made = filler(
            Flat(level), candidates=1, blend="none", seen_by=watch(DarkFinder(), min_sensitivity=0.5)
        ).fill([at], 0)
        assert [gate for gate, _ in made[kept][0].failures] == gates
        assert (made[kept][0].numbers["detector"]["share"] > 0.5) == bool(gates)


class PartFinder(DarkFinder):
    """Finds a share of a lesion wherever it looks."""

    def __init__(self, lesion, share):
        super().__init__()
        rows, columns = np.nonzero(lesion)
        count = round(share * len(rows))
        self.mask = np.zeros_like(lesion)
        self.mask[rows[:count], columns[:count]] = True

    def find(self, image):
        return Finding(self.mask, 1.0)


@pytest.mark.parametrize(("share", "gates"), [(0.08, []), (0.11, ["detector"]), (0.19, ["detector"])])
def test_a_tenth_of_the_lesion_found_again_is_too_much(share, gates):
    at = a_slice()
    seen_by = watch(PartFinder(at.lesion.mask, share), min_sensitivity=0.5)
    kept, made = filler(Flat(90), candidates=1, blend="none", seen_by=seen_by).fill([at], 0)
    assert made[kept][0].numbers["detector"]["share"] == pytest.approx(share, abs=0.005)
    assert [gate for gate, _ in made[kept][0].failures] == gates


@pytest.mark.parametrize(("share", "enough"), [(0.08, False), (0.11, True), (0.28, True)])
def test_a_tenth_of_the_lesion_must_be_found_before(share, enough, monkeypatch):
    case = lesion_case()
    finder = PartFinder(case.masks["retinal haemorrhage"], share)
    monkeypatch.setattr(samples, "watcher", lambda *_: watch(finder, min_sensitivity=0.5))
    made = Modification(inpainter="telea", candidates=1, bounds=ANYTHING, kinds=("removal",))
    (outcome,) = made.samples(case, "test", 0)
    before = f"the detector finds {share:.0%} of the lesion before it is removed"
    assert outcome.reason.startswith("the detector still finds" if enough else before)


class GreyFinder(DarkFinder):
    """Finds what is grey, and misses what is black."""

    name = "grey"

    def find(self, image):
        return Finding((image.max(axis=2) > 80) & (image.max(axis=2) < 100), 1.0)


@pytest.mark.parametrize(
    ("level", "second", "reasons"),
    [
        (90, 0.9, ["the detector grey still finds 100%"]),
        (90, 0.3, []),  # not trusted: not asked
        (0, 0.9, ["the detector still finds 100%"]),
        (150, 0.9, []),
    ],
)
def test_none_of_the_trusted_detectors_may_find_the_lesion_after_removal(level, second, reasons):
    first, other = (watch(f, min_sensitivity=0.5) for f in (DarkFinder(), GreyFinder(second)))
    seen_by = replace(first, others=(other,)).of([BLEED.name])
    at = replace(a_slice(), lesion=replace(a_slice().lesion, mask=a_slice().lesion.hole))
    kept, made = filler(Flat(level), candidates=1, blend="none", seen_by=seen_by).fill([at], 0)
    found = made[kept][0]
    assert [(gate, reason.partition(" of ")[0]) for gate, reason in found.failures] == [
        ("detector", reason) for reason in reasons
    ]
    left = [one["share"] for one in found.numbers.get("other_detectors", [])]
    assert left == ([] if second < 0.5 else [float(level == 90)])


@pytest.mark.parametrize("sensitivity", [0.3, None])
def test_a_poor_or_unmeasured_detector_is_a_number_and_no_gate(sensitivity):
    seen_by = watch(DarkFinder(sensitivity), min_sensitivity=0.5)
    assert not seen_by.trusted
    assert seen_by.reason
    kept, made = filler(Flat(0), candidates=1, blend="none", seen_by=seen_by).fill([a_slice()], 0)
    assert made[kept][0].passed
    assert made[kept][0].numbers["detector"]["share"] > 0.5


def test_a_detector_is_trusted_by_the_name_of_the_lesion_where_that_was_measured():
    """Good as a whole, it may miss one kind; what too few patients had counts as unknown."""
    finder = DarkFinder(0.9)
    by_name = {
        "glioma": {"sensitivity": 0.8, "patients": 7, "lesions": 9, "images": 8},
        "stroke": {"sensitivity": 0.4, "patients": 9, "lesions": 20, "images": 9},
        "cyst": {"sensitivity": 1.0, "patients": 4, "lesions": 4, "images": 4},
    }
    whole = finder.quality()
    finder.quality = lambda: {**whole, "targets": by_name}
    seen_by = watch(finder, min_sensitivity=0.5)
    assert seen_by.trusted
    assert seen_by.of(["glioma"]).trusted
    assert seen_by.of(["glioma"]).params()["trusted"] is True
    both = seen_by.of(["glioma", "stroke"])
    assert not both.trusted
    assert both.reason == "it finds 40% of stroke of held-out patients, at least 50%"
    for name, patients in (("cyst", 4), ("never measured", 0)):
        doubted = seen_by.of([name])
        assert not doubted.trusted
        assert f"{name} was measured on {patients} patients, at least 5" in doubted.reason
    by_name |= {
        "breast lesion": {"sensitivity": 0.9, "patients": 70},
        "benign breast lesion": {"patients": 2},
    }
    assert seen_by.of(["benign breast lesion"]).trusted, "few had one, but it is a breast lesion"
    assert not seen_by.of(["benign liver mass"]).trusted
    poor = DarkFinder(0.3)
    poor.quality = lambda: {**whole, "sensitivity": 0.3, "targets": by_name}
    assert watch(poor, min_sensitivity=0.5).of(["glioma"]).trusted, "good for one kind is enough for it"
    poor.quality = lambda: {**whole, "patients": 3}
    assert watch(poor, min_sensitivity=0.5).reason == "its quality was measured on 3 patients, at least 5"
    for one in (poor, finder):
        assert watch(one, min_sensitivity=0).of(["cyst"]).trusted, "who asks for nothing trusts it anyway"
    without = watch(DarkFinder(0.9), min_sensitivity=0.5)
    assert without.of(["glioma"]) == without, "as a whole where nothing was measured by name"


def test_who_asks_for_no_sensitivity_trusts_a_model_of_their_own():
    assert watch(DarkFinder(None), min_sensitivity=0).trusted
    kept, made = filler(
        Flat(0), candidates=1, blend="none", seen_by=watch(DarkFinder(None), min_sensitivity=0)
    ).fill([a_slice()], 0)
    assert [gate for gate, _ in made[kept][0].failures] == ["detector"]


def test_a_tiny_hole_has_no_texture_and_says_so():
    at = a_slice(radius=1)
    kept, made = filler("telea", candidates=1, bounds=Bounds()).fill([at], 0)
    assert made[kept][0].numbers["texture"] is None


def test_an_opinion_is_asked_best_first_until_one_is_good():
    at = a_slice(number=2)
    around = int(at.image[~at.lesion.hole].mean())
    asked = []

    def opinion(slice_, candidate):
        asked.append(candidate.number)
        return None if candidate.number == 2 else ("judge", "no")

    kept, made = filler(Flat(around + 60, around, around + 20), blend="none").fill([at], 0, opinion)
    assert asked == [1, 2]
    assert kept == 2
    assert made[2][0].passed
    kept, made = filler(Flat(around + 60, around, around + 20), blend="none").fill(
        [at], 0, lambda *_: ("judge", "never")
    )
    assert kept == 1
    assert not made[kept][0].passed


class Waver:
    """Draws another brightness for each slice: what a volume must not show."""

    name = "waver"

    def fill(self, image, mask, *, seed):
        level = 60 + (int(image[~mask].sum()) + seed) % 80
        return np.where(mask[..., None], np.uint8(level), image)


def test_neighbouring_slices_do_not_flicker():
    """Filled together, the fill changes less from slice to slice than filled one by one."""
    slices = []
    for k in range(5):
        at = a_slice(number=6, radius=14)
        noise = np.random.default_rng(k).integers(-2, 3, at.image.shape)
        image = np.clip(at.image.astype(int) + noise, 0, 255).astype(np.uint8)
        slices.append(Slice(image, at.lesion, at.body, at.unhealthy))
    maker = filler(Waver(), candidates=1, blend="none")
    kept, made = maker.fill(slices, 0)
    together = [candidate.image for candidate in made[kept]]
    alone = [maker.fill([at], 0)[1][0][0].image for at in slices]
    hole = slices[0].lesion.hole

    def flicker(images):
        means = [image[hole].mean() for image in images]
        return float(np.abs(np.diff(means)).mean())

    assert flicker(alone) > 5
    assert flicker(together) < 0.6 * flicker(alone)
    for at, image in zip(slices, together, strict=True):
        assert np.array_equal(image[~hole], at.image[~hole])
    assert len({candidate.seed for candidate in made[kept]}) == 1
