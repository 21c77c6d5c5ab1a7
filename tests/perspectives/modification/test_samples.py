"""A case with lesions becomes pairs, and each pair four kinds of triplets."""

from dataclasses import replace

import numpy as np
import pytest

from mie.errors import ConfigError
from mie.perspectives import VolumeRecipe
from mie.perspectives.modification import TASKS, experts
from mie.perspectives.modification.counterfactual import Bounds
from mie.perspectives.modification.inpainters import NoExpertError
from mie.perspectives.modification.proof import background_gate
from mie.perspectives.modification.samples import Modification
from mie.records import Rejection, Sample
from mie.vocabulary import MODALITIES
from tests.perspectives.modification.lesions import DarkFinder, disc, lesion_case, tissue, with_lesions

TWO = {"hard exudates": disc(30, 30, 6), "retinal haemorrhage": disc(90, 90, 9)}


@pytest.fixture(autouse=True)
def detectors(monkeypatch):
    """`compact` is a double that finds what is dark; a test may put another one here."""
    made = {"dark": DarkFinder()}
    monkeypatch.setattr(experts, "make_detector", lambda spec, *, family: made["dark"])
    experts.watcher.cache_clear()
    yield made
    experts.watcher.cache_clear()


def recipe(**options):
    return Modification(**{"inpainter": "telea", "detector": "compact", "bounds": LOOSE, **options})


LOOSE = Bounds(1e9, (1e-9, 1e9), 1.0, 1e9, 1e9)


def made(case, split="train", seed=0, **options):
    outcomes = list(recipe(**options).samples(case, split, seed))
    return [o for o in outcomes if isinstance(o, Sample)], [o for o in outcomes if isinstance(o, Rejection)]


def test_four_kinds_of_one_pair():
    case = lesion_case()
    samples, rejections = made(case)
    assert rejections == []
    by_task = {s.task: s for s in samples}
    assert tuple(by_task) == TASKS
    removal, addition, inpainting, simulation = by_task.values()
    hole = removal.mask > 0
    assert np.array_equal(removal.input, case.image)
    assert np.array_equal(addition.input, removal.target_image)
    assert np.array_equal(addition.target_image, removal.input)
    assert np.array_equal(inpainting.target_image, removal.target_image)
    assert np.array_equal(simulation.target_image, removal.input)
    assert np.array_equal(inpainting.input, simulation.input)
    assert (inpainting.input[hole] == 255).all()
    for sample in samples:
        assert np.array_equal(sample.input[~hole], sample.target_image[~hole])
        assert sample.mask is not None
        assert set(np.unique(sample.mask)) == {0, 255}
        assert background_gate(sample) is None
        assert sample.perspective == sample.recipe == "modification"
        assert (sample.target, sample.colour, sample.turn) == ("retinal haemorrhage", None, None)
        for word in sample.params["named"]:
            assert word in sample.prompt
        assert sample.description
    assert len({s.group for s in samples}) == 1
    assert len({s.id for s in samples}) == len({s.seed for s in samples}) == 4
    assert (hole & case.masks["retinal haemorrhage"]).sum() == case.masks["retinal haemorrhage"].sum()


def test_params_tell_the_whole_story():
    (removal, *_), _ = made(lesion_case(spacing=(0.5, 0.5)), candidates=2)
    params = removal.params
    assert params["inpainter"] == "telea"
    assert params["synthetic"] == "tissue"
    assert params["family"] == "fundus"
    assert params["kept"] == 0
    assert len(params["candidates"]) == 1  # telea leaves nothing to chance
    assert {"texture", "seam", "detector", "seed"} <= params["candidates"][0].keys()
    assert params["lesion_seen"]["share"] == 1.0
    assert params["detector"]["trusted"]
    assert params["detector"]["quality"]["sensitivity"] == 0.9
    assert params["lesion_pixels"] < params["filled_pixels"]
    assert params["diameter_mm"] == pytest.approx(0.5 * 2 * np.sqrt(params["lesion_pixels"] / np.pi), abs=0.1)
    assert params["location"] in next(s for s in made(lesion_case())[0] if s.task == "addition").prompt


def test_of_several_inpainters_the_one_that_was_kept_is_named():
    (removal, *_), _ = made(lesion_case(), inpainter=("telea", "exemplar"), candidates=2)
    params = removal.params
    assert [c["inpainter"] for c in params["candidates"]] == ["telea", "exemplar"]
    assert params["inpainter"] == params["candidates"][params["kept"]]["inpainter"]


def test_only_the_kinds_that_were_asked_for():
    samples, _ = made(lesion_case(), kinds=("simulation", "removal"))
    assert [s.task for s in samples] == ["simulation", "removal"]


def test_the_same_case_and_seed_give_the_same_samples():
    case = lesion_case(number=3)
    first, again = (made(case, inpainter="exemplar", candidates=2)[0] for _ in range(2))
    for one, two in zip(first, again, strict=True):
        assert (one.id, one.prompt, one.params, one.seed) == (two.id, two.prompt, two.params, two.seed)
        assert np.array_equal(one.input, two.input)
        assert np.array_equal(one.target_image, two.target_image)
    assert {s.prompt for s in first} != {s.prompt for s in made(case, seed=1)[0]}


def test_the_same_picture_in_two_data_sets_has_one_counterpart():
    """So that all four of a doubled pair are seen as duplicates."""
    one, two = (made(lesion_case(source=name), inpainter="exemplar")[0] for name in ("a", "b"))
    assert np.array_equal(one[0].target_image, two[0].target_image)
    assert one[0].id != two[0].id


def test_training_images_are_scaled_before_they_are_filled_and_test_images_are_not():
    train, _ = made(lesion_case(), bins=(256,))
    test, _ = made(lesion_case(), split="test", bins=(256,))
    assert (train[0].input.shape[0], train[0].bin) == (256, 256)
    assert (test[0].input.shape[0], test[0].bin) == (128, None)
    for sample in (train[0], test[0]):
        outside = sample.mask == 0
        assert np.array_equal(sample.input[outside], sample.target_image[outside])


def test_grey_pictures_stay_grey():
    case = lesion_case(grey=True, modality="ultrasound", anatomy="breast")
    for sample in made(case, inpainter="exemplar")[0]:
        assert not np.ptp(sample.target_image, axis=2).any()
        assert not np.ptp(sample.input, axis=2).any()


def test_several_lesions_go_together_unless_more_pairs_are_wanted():
    case = lesion_case(TWO)
    (removal, *rest), _ = made(case)
    assert len(rest) == 3
    assert removal.target == "hard exudates, retinal haemorrhage"
    assert removal.mask[30, 30] == removal.mask[90, 90] == 255
    samples, _ = made(case, per_case=None)
    assert [s.target for s in samples if s.task == "removal"] == [
        "hard exudates, retinal haemorrhage",
        "hard exudates",
        "retinal haemorrhage",
    ]
    alone = samples[4]
    assert alone.mask[30, 30] == 255
    assert alone.mask[90, 90] == 0
    assert len({s.group for s in samples}) == 3
    assert len({s.id for s in samples}) == 12


@pytest.mark.parametrize(
    ("case", "gate"),
    [
        (lesion_case({}), "empty"),
        (lesion_case({"optic disc": disc(50, 50, 9)}), "empty"),
        (lesion_case({"retinal haemorrhage": disc(3, 60, 9)}), "border"),
        (lesion_case({"retinal haemorrhage": disc(64, 64, 50)}), "area"),
        (lesion_case({"retinal haemorrhage": disc(64, 64, 1)}), "area"),
        (lesion_case(modality="OCT"), "expert"),
        (lesion_case(modality="surgical photo"), "expert"),
    ],
)
def test_what_cannot_be_made_is_refused_with_a_reason(case, gate):
    samples, (rejection,) = made(case)
    assert samples == []
    assert rejection.gate == gate
    assert rejection.reason
    assert (rejection.source, rejection.where) == ("test", "case-0")


def test_the_nearest_family_only_where_the_user_allows_it():
    case = lesion_case(modality="surgical photo", anatomy="abdomen")
    _, (rejection,) = made(case)
    assert "allow_nearest" in rejection.reason
    samples, _ = made(case, allow_nearest=True)
    assert samples[0].params["family"] == "endoscopy"
    _, (rejection,) = made(lesion_case(modality="OCT"), allow_nearest=True)
    assert rejection.gate == "expert"


def test_an_inpainter_that_does_not_know_the_family_leaves_it_to_the_others():
    samples, _ = made(lesion_case(modality="microscopy"), inpainter=("compact", "exemplar"))
    assert {sample.params["inpainter"] for sample in samples} == {"exemplar"}
    with pytest.raises(NoExpertError, match="microscopy"):
        made(lesion_case(modality="microscopy"), inpainter="compact")


def test_missing_weights_say_what_to_do(monkeypatch):
    from mie.networks import shipped

    pytest.importorskip("torch", reason="the compact expert needs torch")
    monkeypatch.setattr(shipped, "SHIPPED", {})
    experts.expert.cache_clear()
    with pytest.raises(ConfigError, match="no weights") as error:
        made(lesion_case(), inpainter="compact")
    assert "mie train" in (error.value.fix or "")
    experts.expert.cache_clear()


def test_a_lesion_that_the_detector_cannot_see_proves_nothing_by_being_gone():
    case = lesion_case()
    pale = replace(case, image=tissue())
    samples, (rejection,) = made(pale)
    assert samples == []
    assert rejection.gate == "detector"
    assert rejection.numbers["lesion_seen"]["share"] == 0.0
    assert rejection.target == "retinal haemorrhage"


def test_a_mask_that_misses_part_of_the_lesion_is_caught_by_the_detector():
    """The unmarked rest bleeds into the fill: Telea draws from the hole's rim, which is still dark."""
    case = lesion_case({"retinal haemorrhage": disc(60, 60, 7)})
    larger = replace(case, image=with_lesions(tissue(), [disc(60, 60, 22)]))
    samples, (rejection,) = made(larger)
    assert samples == []
    assert rejection.gate == "detector"
    assert rejection.numbers["candidates"][0]["detector"]["share"] > 0.5


def test_without_a_detector_it_is_said(detectors):
    (removal, *_), _ = made(lesion_case(), detector=None)
    assert removal.params["detector"] == {
        "name": None,
        "trusted": False,
        "reason": "no detector was asked for",
        "quality": None,
    }
    _, (rejection,) = made(lesion_case(), detector=None, detector_required=True)
    assert rejection.gate == "detector"
    detectors["dark"] = DarkFinder(0.2)
    experts.watcher.cache_clear()
    (removal, *_), _ = made(lesion_case())
    assert not removal.params["detector"]["trusted"]
    assert "20%" in removal.params["detector"]["reason"]
    _, (rejection,) = made(lesion_case(), detector_required=True)
    assert rejection.gate == "detector"


def test_a_family_without_a_shipped_detector_is_not_checked_but_a_users_own_must_be_there(monkeypatch):
    def missing(spec, *, family):
        raise ConfigError("no weights in this installation")

    monkeypatch.setattr(experts, "make_detector", missing)
    (removal, *_), _ = made(lesion_case())
    assert "no weights" in removal.params["detector"]["reason"]
    with pytest.raises(ConfigError):
        made(lesion_case(), detector="compact:my/weights.safetensors")


def volume_cases(indices, masks=None):
    steps = ({"step": "orientation", "found": "RAS", "to": "RAS"},)
    return [
        lesion_case(
            masks,
            number=0,
            grey=True,
            case_id=f"brain.nrrd#axial-{index:04d}",
            modality="MRI",
            anatomy="brain",
            steps=(*steps, {"step": "slice", "plane": "axial", "index": index}),
        )
        for index in indices
    ]


def test_neighbouring_slices_are_filled_together():
    made_by = recipe(inpainter="exemplar")
    assert isinstance(made_by, VolumeRecipe)
    samples = [s for s in made_by.volume(volume_cases([4, 5, 6, 9]), "train", 0) if isinstance(s, Sample)]
    removals = {s.case_id[-4:]: s for s in samples if s.task == "removal"}
    assert {name: s.params["slices"] for name, s in removals.items()} == {
        "0004": 3,
        "0005": 3,
        "0006": 3,
        "0009": 1,
    }
    seeds = {name: s.params["candidates"][0]["seed"] for name, s in removals.items()}
    assert seeds["0004"] == seeds["0005"] == seeds["0006"]
    assert len({s.group for s in removals.values()}) == 4


def test_a_slice_that_is_refused_breaks_the_run():
    cases = volume_cases([4, 5, 6])
    cases[1] = replace(cases[1], masks={"retinal haemorrhage": disc(2, 60, 9)})
    outcomes = list(recipe().volume(cases, "train", 0))
    assert [o.gate for o in outcomes if isinstance(o, Rejection)] == ["border"]
    assert {s.params["slices"] for s in outcomes if isinstance(s, Sample)} == {1}


@pytest.mark.parametrize("modality", sorted(MODALITIES))
def test_every_modality_gives_samples_or_a_reason(modality):
    samples, rejections = made(lesion_case(modality=modality, grey=modality in ("CT", "MRI", "X-ray")))
    assert bool(samples) != bool(rejections)
