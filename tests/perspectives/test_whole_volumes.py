"""One effect, one lesion through a whole volume: what is shared between slices, and what is not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from mie.images.slice_consistency import fill_flicker
from mie.perspectives.modification.proof import prove
from mie.perspectives.modification.samples import Modification
from mie.perspectives.transformation.physics.mri import BiasField, RicianNoise, signal_level
from mie.perspectives.transformation.physics.mri_motion import Motion
from mie.perspectives.transformation.samples import Transformation
from mie.records import Case, Sample, Target

COUNT, SIDE = 6, 64


def brain(at: int) -> np.ndarray:
    """A slice of something like a head, `(H, W)` float32, that changes slowly from slice to slice."""
    rows, columns = np.indices((SIDE, SIDE))
    inside = ((rows - 32) / (24 - at % 3)) ** 2 + ((columns - 31) / 20) ** 2 < 1
    grain = ndimage.gaussian_filter(np.random.default_rng(5).normal(0, 60, (SIDE, SIDE)), 1.2)
    return np.where(inside, 110 + grain + 3 * at, 0).clip(0, 255).astype(np.float32)


def cases(modality: str, *, lesion: bool = False) -> list[Case]:
    found = []
    for at in range(COUNT):
        image = brain(at).astype(np.uint8)
        masks = {}
        if lesion and 1 <= at <= 4:
            mask = np.zeros((SIDE, SIDE), bool)
            mask[28:36, 26:34] = True
            image = np.where(mask, 240, image).astype(np.uint8)
            masks = {"MS lesions": mask}
        values = (
            None if modality != "CT" else np.where(brain(at) > 0, brain(at) * 0.4, -1000).astype(np.float32)
        )
        affine = np.diag([-1.0, -1.0, 3.0, 1.0])
        affine[2, 3] = 3.0 * at
        cut = {"step": "slice", "plane": "axial", "index": at, "affine": affine.tolist()}
        found.append(
            Case(
                source="made",
                case_id=f"head.nii.gz#axial-{at:04d}",
                image=np.repeat(image[..., None], 3, axis=2),
                modality=modality,
                anatomy="brain",
                masks=masks,
                targets={"MS lesions": Target("MS lesions", "lesion", True)},
                values=values,
                units=None if values is None else "HU",
                spacing=(1.0, 1.0),
                steps=(cut,),
            )
        )
    return found


def test_one_bias_field_in_three_dimensions() -> None:
    stack = np.stack([brain(at) for at in range(COUNT)]) + 1
    effect = BiasField(percent=80, order=2)
    field = effect.apply_volume(stack, np.random.default_rng(1)) / stack
    head = stack > 0.1 * signal_level(stack)
    low, high = field[head].min(), field[head].max()
    assert high / low == pytest.approx(1.4 / 0.6, rel=1e-3)  # over the volume, not in each slice
    # As smooth from slice to slice as a half wave over six slices can be, and not the same in all.
    steps = np.abs(np.diff(np.log(field), axis=0)).max()
    assert 0.01 < steps < 0.5
    # One slice of the field is a slice of the same surface: no second draw.
    again = effect.apply_volume(stack, np.random.default_rng(1)) / stack
    np.testing.assert_array_equal(field, again)


def test_noise_has_one_sigma_and_is_each_slices_own() -> None:
    stack = np.stack([np.full((SIDE, SIDE), level, np.float32) for level in (50, 200, 200)])
    noisy = RicianNoise(percent=5).apply_volume(stack, np.random.default_rng(2))
    errors = noisy - stack
    assert errors[1].std() == pytest.approx(10, rel=0.1)  # 5 per cent of 200, also in the dark slice
    assert errors[0].std() == pytest.approx(10, rel=0.1)
    assert abs(np.corrcoef(errors[1].ravel(), errors[2].ravel())[0, 1]) < 0.1


def test_motion_of_one_slice_is_as_ever_and_a_volume_shares_its_history() -> None:
    effect = Motion(translation=3, rotation=3, moves=5)
    one = effect.apply(brain(0), np.random.default_rng(3))
    same = effect.apply_volume(np.stack([brain(0)] * 2), np.random.default_rng(3))
    np.testing.assert_allclose(same[0], one, atol=1e-3)
    np.testing.assert_array_equal(same[0], same[1])


@pytest.mark.parametrize(
    ("modality", "targets"), [("MRI", ("mri_bias_field",)), ("CT", ("low_dose_ct_soft",))]
)
def test_transformation_of_a_volume(modality: str, targets: tuple[str, ...]) -> None:
    recipe = Transformation(targets=targets)
    made = [s for s in recipe.whole_volume(cases(modality), "test", 4) if isinstance(s, Sample)]
    assert len(made) == COUNT
    assert len({(s.prompt, s.seed, s.params["volume"]["id"]) for s in made}) == 1
    drawn = [{k: v for k, v in s.params.items() if k in ("photons", "percent", "order")} for s in made]
    assert all(one == drawn[0] for one in drawn)
    windows = {str([step for step in s.params["image_steps"] if step["step"] == "window"]) for s in made}
    assert len(windows) == 1
    errors = np.stack([s.input[..., 0].astype(int) - s.target_image[..., 0] for s in made])
    shared = np.corrcoef(errors[2].ravel(), errors[3].ravel())[0, 1]
    assert shared > 0.8 if modality == "MRI" else abs(shared) < 0.5


@pytest.fixture(scope="module")
def removed() -> list[Sample]:
    recipe = Modification(inpainter="exemplar", detector=None, candidates=1, kinds=("removal", "addition"))
    found = list(recipe.whole_volume(cases("MRI", lesion=True), "test", 4))
    assert all(isinstance(s, Sample) for s in found), found
    return [s for s in found if isinstance(s, Sample)]


def test_a_lesion_goes_through_all_its_slices(removed: list[Sample]) -> None:
    for task in ("removal", "addition"):
        slices = [s for s in removed if s.task == task]
        assert [s.case_id[-4:] for s in slices] == ["0001", "0002", "0003", "0004"]
        assert len({(s.prompt, s.seed, s.params["volume"]["id"]) for s in slices}) == 1
        assert all(prove(s) == [] for s in slices)
    healthy = [s.target_image[30:34, 28:32].mean() for s in removed if s.task == "removal"]
    assert max(healthy) < 200  # the lesion had 240
    assert max(removed[0].params["flicker"]) <= 1.3


def test_a_lesion_in_one_slice_is_no_volume() -> None:
    slices = cases("MRI", lesion=True)
    alone = [replace(case, masks=case.masks if at == 2 else {}) for at, case in enumerate(slices)]
    (rejection,) = Modification(detector=None, candidates=1).whole_volume(alone, "test", 4)
    assert "one slice only" in rejection.reason


def test_flicker_is_measured_against_the_surroundings() -> None:
    original = np.stack([brain(at) for at in range(4)])
    holes = np.zeros(original.shape, bool)
    holes[:, 28:36, 26:34] = True
    steady = fill_flicker(original, original, holes)
    filled = original.copy()
    filled[1, 28:36, 26:34] += 60
    jumping = fill_flicker(filled, original, holes)
    assert len(steady) == len(jumping) == 3
    assert max(steady) < 1.3 < jumping[0]
    assert jumping[2] == steady[2]
