"""A lesion painted into an image without one: its place, its gates, and four triplets whose H is real."""

import json
from dataclasses import dataclass, replace

import cv2
import numpy as np
import pytest

from mie.errors import ConfigError
from mie.perspectives.modification import (
    TASKS,
    ModificationConfig,
    counterfactual_pairs,
    experts,
    health,
    pair_facts,
    samples,
)
from mie.perspectives.modification.counterfactual import Bounds
from mie.perspectives.modification.proof import prove
from mie.perspectives.modification.samples import Modification
from mie.records import Rejection, Sample, Target
from tests.perspectives.modification.lesions import DarkFinder, disc, lesion_case, tissue

LOOSE = Bounds(1e9, (1e-9, 1e9), 1.0, 1e9, 1e9)
RULE = {"source": "s", "lesion": "polyps", "inside": None}


@dataclass
class DarkPainter:
    """Darkens the region; a stand-in for the network."""

    name: str = "dark"
    weights: str = "0" * 64
    targets: tuple[str, ...] = ("polyps",)
    level: int | None = 5  # None: hardly any change

    def extent(self, target):
        return 0.1, 0.25

    def paint(self, image, region, target, *, seed, contrast=None):
        hole = cv2.dilate(region.astype(np.uint8), np.ones((5, 5), np.uint8)).astype(bool)
        painted = image.copy()
        painted[region] = image[region] // 2 * 2 if self.level is None else self.level + seed % 3
        return painted, hole


@pytest.fixture(autouse=True)
def doubles(monkeypatch):
    made = {"painter": DarkPainter(), "detector": DarkFinder()}
    monkeypatch.setattr(samples, "painter_of", lambda spec, family: made["painter"])
    monkeypatch.setattr(experts, "make_detector", lambda spec, *, family: made["detector"])
    experts.watcher.cache_clear()
    yield made
    experts.watcher.cache_clear()


def healthy_case(**changes):
    """The tissue of a lesion case with no lesion in it, and an organ that is marked."""
    body = {
        "source": "s", "image": tissue(), "masks": {"organ": disc(60, 70, 40)},
        "targets": {"organ": Target("organ", "anatomy")},
    }  # fmt: skip
    return replace(lesion_case(), **{**body, **changes})


def made(case=None, seed=0, rules=(RULE,), **options):
    recipe = Modification(
        **{"inpainter": "telea", "detector": "compact", "bounds": LOOSE, "health": rules, **options}
    )
    outcomes = list(recipe.samples(case or healthy_case(), "train", seed))
    return [o for o in outcomes if isinstance(o, Sample)], [o for o in outcomes if isinstance(o, Rejection)]


def test_four_triplets_with_a_real_healthy_image():
    case = healthy_case()
    found, rejections = made(case)
    assert rejections == []
    by_task = {s.task: s for s in found}
    assert tuple(by_task) == TASKS
    removal, addition, inpainting, simulation = by_task.values()
    hole = addition.mask > 0
    assert np.array_equal(addition.input, case.image), "what was healthy is the data set's own image"
    assert np.array_equal(addition.target_image, removal.input)
    assert np.array_equal(removal.target_image, case.image)
    assert np.array_equal(inpainting.target_image, case.image)
    assert np.array_equal(simulation.target_image, addition.target_image)
    assert (inpainting.input[hole] == 255).all()
    for sample in found:
        assert np.array_equal(sample.input[~hole], sample.target_image[~hole])
        assert sample.params["from_health"] is True
        assert sample.params["synthetic"] == "lesion"
        assert sample.target == "polyp", "one of them is painted"
        assert sample.params["painted"] == "polyps"
        assert prove(sample) == []
    assert len({s.group for s in found}) == 1


def test_places_and_seeds_follow_from_the_content_and_the_build():
    first, again, other = made()[0], made()[0], made(seed=1)[0]
    assert np.array_equal(first[0].input, again[0].input)
    assert first[0].params == again[0].params
    assert not np.array_equal(first[0].mask, other[0].mask)


def test_inside_the_organ_where_one_is_named():
    organ = healthy_case().masks["organ"]
    for seed in range(4):
        found, _ = made(seed=seed, rules=({**RULE, "inside": "organ"},))
        region = found[0].mask > 0
        assert (region <= organ).all()
    _, (rejection,) = made(rules=({**RULE, "inside": "liver"},))
    assert (rejection.gate, rejection.target) == ("place", "polyp")
    assert "marked are: organ" in rejection.reason
    tiny = healthy_case(masks={"organ": disc(60, 70, 5)})
    _, (rejection,) = made(tiny, rules=({**RULE, "inside": "organ"},))
    assert "large enough" in rejection.reason


def test_images_with_a_lesion_and_other_data_sets_are_left_as_they_were():
    with_lesion = replace(lesion_case(), source="s")
    found, _ = made(with_lesion)
    assert found
    assert all("from_health" not in s.params for s in found)
    found, (rejection,) = made(healthy_case(source="elsewhere"))
    assert found == []
    assert rejection.gate == "empty"


def test_gates(doubles):
    doubles["painter"].level = None
    _, (faint,) = made()
    assert faint.gate == "faint"
    assert faint.numbers["from_health"]
    doubles["painter"].level = 60  # to be seen, but not dark enough for the detector
    _, (unseen,) = made()
    assert (unseen.gate, "of the painted lesion" in unseen.reason) == ("detector", True)
    assert made(detector=None)[1] == [], "without a detector that is trusted nothing has to be found"
    doubles["painter"].level = 5
    _, (seam,) = made(bounds=Bounds(1e9, (1e-9, 1e9), 1.0, 1e9, -0.99))
    assert seam.gate == "seam"
    _, (texture,) = made(bounds=Bounds(1e9, (1e6, 1e9), 1.0, 1e9, 1e9))
    assert texture.gate == "texture"
    _, (required,) = made(detector=None, detector_required=True)
    assert required.gate == "detector"


def test_a_detector_that_sees_a_lesion_beforehand_refuses_the_image(doubles):
    doubles["painter"].level = 200
    black = healthy_case(image=np.full_like(tissue(), 8))
    _, (rejection,) = made(black)
    assert (rejection.gate, "before" in rejection.reason) == ("detector", True)


def test_of_several_detectors_the_first_alone_checks_a_painted_lesion():
    (sample, *_), _ = made(detector=("compact", "region"))
    assert sample.params["detector"]["name"] == "dark"
    assert "others" not in sample.params["detector"]
    found, _ = made(replace(lesion_case(), source="s"), detector=("compact", "region"))
    assert found[0].params["detector"]["others"] == ["dark"]
    assert "other_detectors" in found[0].params["candidates"][0]


def test_the_card_names_further_detectors():
    found, _ = made(replace(lesion_case(), source="s"), detector=("compact", "region"))
    rows = [{"group": s.group, "modality": s.modality, "params": json.dumps(dict(s.params))} for s in found]
    facts = pair_facts(rows, [], {})
    (modality,) = facts
    assert facts[modality]["also_asked"] == {"dark": 1}
    said = f"must find nothing after removal either: {modality} dark (1 of 1 pairs)."
    assert said in counterfactual_pairs(facts)
    found, _ = made(replace(lesion_case(), source="s"))
    rows = [{"group": s.group, "modality": s.modality, "params": json.dumps(dict(s.params))} for s in found]
    facts = pair_facts(rows, [], {})
    assert "also_asked" not in facts[modality]
    assert "Further" not in counterfactual_pairs(facts)


def test_a_lesion_is_left_where_any_detector_finds_it():
    def left(*shares):
        others = [{"name": "region", "share": share, "score": 0.5} for share in shares[1:]]
        tried = {"detector": {"share": shares[0], "score": 0.5}, "other_detectors": others, "seam": None}
        params = {"inpainter": "flow", "kept": 0, "candidates": [tried]}
        rows = [{"group": "pair", "modality": "CT", "params": json.dumps(params)}]
        return pair_facts(rows, [], {})["CT"]["lesion_left"]["yes"]

    assert (left(0.0), left(0.2), left(0.0, 0.0), left(0.0, 0.2), left(0.2, 0.0)) == (0, 1, 0, 1, 1)


def test_verify_finds_a_painted_lesion_that_is_not_marked_or_did_not_pass():
    (sample, *_), _ = made()

    def problems(**changes):
        return [reason for _, reason in prove(replace(sample, params={**sample.params, **changes}))]

    assert problems(synthetic=None) == ["a painted lesion is not marked as synthetic"]
    kept = sample.params["kept"]
    tried = [dict(one) for one in sample.params["candidates"]]
    tried[kept]["failed"] = ["seam"]
    assert problems(candidates=tried) == ["the kept lesion did not pass: seam"]
    assert "does not say which" in problems(kept=99)[0]
    not_painted = problems(from_health=None, synthetic=None)
    assert not_painted == ["the drawn tissue is not marked as synthetic, but None"]
    assert problems(from_health=None) == ["the drawn tissue is not marked as synthetic, but 'lesion'"]
    assert problems(lesion_seen={"share": 0.0}) == ["a trusted detector does not find the painted lesion"]


def test_facts_and_card_count_them():
    found, _ = made()
    rows = [{"group": s.group, "modality": s.modality, "params": json.dumps(dict(s.params))} for s in found]
    facts = pair_facts(rows, [], {})
    (of,) = facts.values()
    assert of["from_health"] == of["pairs"] == 1
    assert of["lesion_left"] == {"yes": 0, "of": 0}, "nothing was removed"
    assert of["lesion_found"]["yes"] == 1
    card = counterfactual_pairs(facts)
    assert "`synthetic: tissue`" in card
    assert "`synthetic: lesion`): fundus 1." in card


def test_a_recipe_without_painted_lesions_is_written_as_ever():
    body = ModificationConfig().model_dump(mode="json")
    assert not {"health", "painter", "wordings"} & body.keys()
    full = ModificationConfig(health=[RULE]).model_dump(mode="json")
    assert full["health"] == [RULE]
    assert full["painter"] == "flow"
    assert ModificationConfig(**full) == ModificationConfig(health=[RULE])
    assert ModificationConfig(wordings="wide").model_dump()["wordings"] == "wide"


def test_what_cannot_paint_is_refused():
    health.painter_of.cache_clear()
    with pytest.raises(ConfigError, match="cannot paint"):
        health.painter_of("telea", "fundus")
    with pytest.raises(ConfigError, match="polyp"):
        health.check_lesion(DarkPainter(), "polips")
