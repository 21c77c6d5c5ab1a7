"""Wrong pairs are refused with the number that was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mie.perspectives.transformation.samples import PairGate, Transformation
from mie.records import Pairing
from tests.conftest import crop, make_case


def pair_sample(image, pair):
    pairing = Pairing("mri_sequence", "T1-weighted MRI", "T2-weighted MRI")
    case = make_case(0, masks={}, image=image, pair=pair, pairing=pairing, modality="MRI", anatomy="brain")
    (sample,) = Transformation().samples(case, "test", 0)
    return sample


def test_a_sound_pair_passes() -> None:
    assert PairGate()(pair_sample(crop(1), 255 - crop(1))) is None


@pytest.mark.parametrize(
    ("pair", "gate", "says"),
    [
        (crop(1), "identical", "differ by at most 0.000 grey levels"),
        (np.full_like(crop(1), 7), "blank", "the target image shows nothing: standard deviation 0.00"),
        (np.roll(255 - crop(1), (6, -4), (0, 1)), "misaligned", "misaligned by 7."),
    ],
)
def test_wrong_pairs(pair, gate, says) -> None:
    rejection = PairGate()(pair_sample(crop(1), pair))
    assert rejection is not None
    assert rejection.gate == gate
    assert says in rejection.reason
    assert rejection.numbers


@pytest.mark.parametrize(("levels", "refused"), [(2, True), (3, False)])
def test_what_nobody_sees_is_no_task(levels, refused) -> None:
    # A head that fills a sixteenth of the image: the air around it does not make a difference smaller.
    image = np.zeros((160, 160, 3), np.uint8)
    image[60:100, 60:100] = np.maximum(crop(1)[60:100, 60:100], 20)
    other = image.copy()
    other[60:100, 60:100] -= np.uint8(levels)
    rejection = PairGate()(pair_sample(image, other))
    assert (rejection is not None) == refused
    if rejection is not None:
        assert rejection.gate == "identical"
        assert rejection.numbers["difference"] == pytest.approx(levels)


def test_a_hair_is_a_task_and_its_shadow_is_not() -> None:
    skin = crop(1, 512, 512)
    for levels, refused in ((60, False), (6, True)):
        hairy = skin.astype(int)
        hairy[100:160, 300:302] += levels * (1 - 2 * (skin[100:160, 300:302] > 128).astype(int))
        assert np.sqrt(np.mean((hairy - skin) ** 2)) < 2  # hardly anything over the whole image
        assert (PairGate()(pair_sample(skin, hairy.astype(np.uint8))) is not None) == refused


def test_the_limit_is_the_users() -> None:
    sample = pair_sample(crop(1), np.roll(255 - crop(1), (4, 0), (0, 1)))
    assert PairGate(3.0)(sample) is not None
    assert PairGate(5.0)(sample) is None


@pytest.mark.parametrize(
    ("error", "evidence", "refused"),
    [(3.1, 0.05, True), (3.1, 0.04, True), (3.1, 0.039, False), (2.9, 0.5, False), (9.0, 0.01, False)],
)
def test_a_shift_counts_where_there_is_evidence_for_it(error, evidence, refused) -> None:
    """Below 0.04 a measured shift is chance; above, three pixels are the limit."""
    sample = pair_sample(crop(1), 255 - crop(1))
    alignment = {"error": error, "shift": [error, 0.0], "evidence": evidence}
    found = PairGate()(replace(sample, params={**sample.params, "alignment": alignment}))
    assert (found is not None) == refused
    assert found is None or found.gate == "misaligned"
