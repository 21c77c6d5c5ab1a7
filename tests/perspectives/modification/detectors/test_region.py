"""The region detector: its figures by hand, several detectors in a recipe, and the file that ships."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="detectors need the extra `models`")

from mie.core.hashing import stable_hash
from mie.errors import ConfigError
from mie.images.families import FAMILIES
from mie.perspectives.modification import ModificationConfig, _quality
from mie.perspectives.modification.counterfactual import FEWEST, watch
from mie.perspectives.modification.detectors import Finding, Inspector, found_within, make_detector
from mie.perspectives.modification.detectors.region import FALSE_ALARMS, Looked, region_quality
from mie.perspectives.modification.experts import learnt_weights, watcher
from tests.perspectives.modification.lesions import DarkFinder, disc


def looked(number, lesion, healthy, target="glioma", family="mri"):
    return Looked(family, target, f"patient {number}", f"image {number}", lesion, tuple(healthy))


def test_sensitivity_is_measured_at_the_threshold_of_the_other_half():
    halves = {k: [n for n in range(400) if stable_hash("half", f"patient {n}") % 2 == k][:10] for k in (0, 1)}
    # Healthy places of one half score up to .2, of the other up to .6; lesions lie in between.
    some = [looked(n, 0.4, (0.02 * at + 0.001, 0.1)) for at, n in enumerate(halves[0])]
    some += [looked(n, 0.4, (0.06 * at + 0.001, 0.5)) for at, n in enumerate(halves[1])]
    found = region_quality(some)["mri"]
    # The first half is measured at the second's threshold, which is above .4: nothing is found.
    assert found["sensitivity"] == 0.5
    assert (found["lesions"], found["patients"], found["places"]) == (20, 20, 40)
    assert found["targets"]["glioma"]["sensitivity"] == 0.5


@given(st.lists(st.floats(0, 1, width=32), min_size=20, max_size=60), st.integers(0, 3))
def test_at_its_threshold_at_most_one_healthy_place_in_ten_is_a_false_alarm(values, seed):
    some = [looked(n + 100 * seed, 0.5, (v, v, v)) for n, v in enumerate(values)]
    found = region_quality(some)
    if found:
        healthy = np.repeat(values, 3)
        above = (healthy >= found["mri"]["threshold"]).mean()
        ties = (healthy == found["mri"]["threshold"]).mean()
        assert above <= FALSE_ALARMS + ties + 1e-9


def test_few_healthy_places_give_no_figures():
    assert region_quality([looked(n, 0.9, (0.1,)) for n in range(12)]) == {}


class Sure:
    """An inspector that sees a lesion wherever it is asked to look."""

    name, weights = "sure", "1" * 64

    def __init__(self, targets):
        self.targets = targets

    def within(self, image, region):
        return Finding(region.copy(), 1.0)

    def quality(self):
        return {"sensitivity": 0.9, "patients": 50, "targets": self.targets}


def test_both_kinds_of_detector_answer_for_a_region():
    dark = disc(50, 60, 9)
    image = np.where(dark[..., None], np.uint8(0), np.full((*dark.shape, 3), 90, np.uint8))
    region = np.zeros_like(dark)
    region[:55] = True
    assert isinstance(Sure({}), Inspector)
    assert not isinstance(DarkFinder(), Inspector)
    assert (found_within(DarkFinder(), image, region).mask == (dark & region)).all()
    assert (found_within(Sure({}), image, region).mask == region).all()


def test_the_detectors_that_are_trusted_for_the_name_are_asked():
    known = {
        "polyp": {"sensitivity": 0.9, "patients": FEWEST},
        "glioma": {"sensitivity": 0.2, "patients": 40},
    }
    first = watch(Sure(known), min_sensitivity=0.5)
    second = watch(Sure({"glioma": {"sensitivity": 0.8, "patients": FEWEST}}), min_sensitivity=0.5)
    both = replace(first, others=(second,))
    assert both.of(["polyp"]).quality == first.quality
    assert both.of(["polyp"]).trusted
    assert both.of(["polyp"]).others == (), "the second does not know it"
    assert both.of(["glioma"]).quality == second.quality
    assert both.of(["glioma"]).trusted
    assert both.of(["glioma"]).others == (), "the first misses it"
    neither = both.of(["caries"])
    assert not neither.trusted
    assert neither.others == ()
    assert neither.quality == first.quality, "whoever is not trusted still says a number: the first"
    third = watch(Sure({"polyp": {"sensitivity": 0.7, "patients": 9}}), min_sensitivity=0.5)
    asked = replace(first, others=(second, third)).of(["polyp"])
    assert [asked.quality, *(one.quality for one in asked.others)] == [first.quality, third.quality]
    assert asked.params()["others"] == ["sure"]
    assert "others" not in asked.alone().params()
    assert not both.of(["polyp", "glioma"]).trusted, "all of the lesions that go must be known to one"


def test_a_recipe_names_one_detector_or_several():
    one, two = ModificationConfig(), ModificationConfig(detector=("compact", "region"))
    assert one.detectors == ("compact",)
    assert one.model_dump()["detector"] == "compact", "the file of a recipe of before stays as it was"
    assert two.detectors == ("compact", "region")
    assert ModificationConfig(detector=None).detectors == ()
    with pytest.raises(ConfigError, match="detector"):
        ModificationConfig(detector=("compact", "regions"))


def test_the_shipped_file_knows_all_families_with_lesions_and_says_how_well():
    for family in FAMILIES:
        if family == "microscopy":  # too few patients
            with pytest.raises(ConfigError, match="does not know microscopy"):
                make_detector("region", family=family)
            continue
        detector = make_detector("region", family=family)
        quality = detector.quality()
        assert 0 < detector.threshold < 1
        assert quality["sensitivity"] > 0.75
        assert quality["false_alarms"] < 0.15
        assert quality["patients"] >= FEWEST
    found = watcher(("compact", "region"), "ct", 0.5)
    assert not found.trusted
    assert found.of(["kidney tumour"]).detector.name == "region"
    assert not found.of(["bone metastases"]).trusted, "measured on one patient"
    digests = learnt_weights(ModificationConfig(detector=("compact", "region")), ["CT"])["ct"]
    assert digests["detector region"] == found.of(["kidney tumour"]).detector.weights
    assert digests["detector"] != digests["detector region"]


def test_a_lesion_drawn_into_flat_tissue_is_found_and_the_tissue_is_not():
    rng = np.random.default_rng(3)
    grain = rng.normal(0, 6, (200, 200, 1))
    healthy = np.clip(170 + grain, 0, 255).astype(np.uint8).repeat(3, 2)
    y, x = np.mgrid[:200, :200]
    mask = (y - 100) ** 2 + (x - 90) ** 2 < 24**2
    ill = np.where(mask[..., None], (healthy * (0.45, 0.3, 0.25)).astype(np.uint8), healthy)
    skin = np.clip(healthy * (1.1, 0.85, 0.75), 0, 255).astype(np.uint8)
    mole = np.where(mask[..., None], ill, skin)
    detector = make_detector("region", family="dermoscopy")
    assert detector.within(mole, mask).mask[mask].all()
    assert detector.within(mole, mask).score > 10 * detector.within(skin, mask).score


def test_the_card_says_what_the_figures_are_of():
    figures = {"sensitivity": 0.91, "false_alarms": 0.107, "patients": 117, "images": 258, "lesions": 486}
    figures["places"] = 1084
    (row,) = _quality({"CT": {"detectors": {"region": figures}}})
    measured = "117 patients, 258 images with lesions, 486 lesions, 1,084 healthy places"
    assert row == ("CT", "region", "0.91", "11% of healthy places", measured)
