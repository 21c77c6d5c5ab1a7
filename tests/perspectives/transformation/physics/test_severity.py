"""What every effect promises: ranges, drawing, parameters, bad pixels."""

import json

import numpy as np
import pytest

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.dermoscopy import SkinArtifacts
from mie.perspectives.transformation.physics.mri import BiasField, RicianNoise, Undersampling
from mie.perspectives.transformation.physics.mri_motion import Motion
from mie.perspectives.transformation.physics.resolution import LowResolution
from mie.perspectives.transformation.physics.speckle import Speckle

EFFECTS = (Motion, Undersampling, RicianNoise, BiasField, LowResolution, Speckle, SkinArtifacts)
MRI = (Motion, Undersampling, RicianNoise, BiasField)


@pytest.mark.parametrize("effect", EFFECTS)
def test_draws_lie_in_range_follow_the_seed_and_go_to_json_and_back(effect):
    drawn = [effect.draw(np.random.default_rng(seed)) for seed in range(30)]
    assert drawn == [effect.draw(np.random.default_rng(seed)) for seed in range(30)]
    assert len(set(drawn)) > 1
    for one in drawn:
        params = json.loads(json.dumps(one.params()))
        assert params.pop("effect") == effect.__name__
        assert effect(**params) == one


@pytest.mark.parametrize(
    ("effect", "fields", "says"),
    [
        (Motion, {"translation": 9, "rotation": 1}, "0.0 to 8.0"),
        (Motion, {"translation": float("nan"), "rotation": 1}, "nan"),
        (Motion, {"translation": 1, "rotation": -1}, "rotation"),
        (Motion, {"translation": 1, "rotation": 1, "moves": 2.5}, "whole number"),
        (Motion, {"translation": 1, "rotation": 1, "phase_axis": 2}, "phase_axis"),
        (Undersampling, {"fraction": 0.05}, "0.1 to 1.0"),
        (RicianNoise, {"percent": 31}, "0.0 to 30.0"),
        (BiasField, {"percent": 200}, "0.0 to 160.0"),
        (BiasField, {"percent": 20, "order": 0}, "1 to 4"),
        (Speckle, {"looks": 0, "axial": 1, "lateral": 1}, "1 to 32"),
        (Speckle, {"looks": 1, "axial": float("inf"), "lateral": 1}, "axial"),
        (Speckle, {"looks": 1, "axial": 1, "lateral": 1, "centre": "displayed"}, "did you mean 'display'"),
        (SkinArtifacts, {"hairs": 101}, "0 to 100"),
    ],
)
def test_out_of_range_says_the_range_and_the_value(effect, fields, says):
    with pytest.raises(ConfigError) as caught:
        effect(**fields)
    assert says in str(caught.value)


def test_a_wrong_name_gets_the_near_one():
    with pytest.raises(ConfigError) as caught:
        Motion.draw(np.random.default_rng(0), rotations=1)
    assert "did you mean 'rotation'?" in str(caught.value)


def test_fixing_one_field_leaves_the_others():
    free = Motion.draw(np.random.default_rng(5))
    fixed = Motion.draw(np.random.default_rng(5), rotation=0.0)
    assert fixed.rotation == 0
    assert (fixed.translation, fixed.moves, fixed.echoes) == (free.translation, free.moves, free.echoes)


@pytest.mark.parametrize("effect", MRI)
@pytest.mark.parametrize(
    "image",
    [
        np.zeros((8, 8, 3), np.float32),
        np.ones((1, 1), np.float32),
        np.full((8, 8), np.nan, np.float32),
        np.full((8, 8), np.inf, np.float32),
    ],
)
def test_mri_refuses_colour_single_pixels_and_what_is_no_number(effect, image):
    with pytest.raises(ImageError):
        effect.draw(np.random.default_rng(0)).apply(image, np.random.default_rng(0))
