"""Context preservation against scikit-image, in both readings."""

import numpy as np
import pytest
from skimage.metrics import structural_similarity

from mie.scoring.metrics import MetricError, background_ssim, context_as_released, context_preservation
from tests.conftest import crop, ellipse


@pytest.mark.parametrize("number", range(3))
def test_both_readings(number):
    image, region = crop(number, 60, 70), ellipse(number, 60, 70)
    output = image.copy()
    output[region] = 255 - output[region]
    output[:, :20] = np.clip(output[:, :20].astype(int) + 9, 0, 255)
    assert context_preservation(image, output, region) == background_ssim(image, output, region)
    soft = np.where(region, 200, 30).astype(np.uint8)
    kept = [
        (i.astype(np.float32) / 255 * (1 - soft[..., None].astype(np.float32) / 255) * 255).astype(np.uint8)
        for i in (image, output)
    ]
    assert context_as_released(image, output, soft) == pytest.approx(
        structural_similarity(*kept, channel_axis=2), abs=1e-10
    )


def test_the_zeroed_area_flatters():
    """A ruined background beside a large region: the released reading counts the zeros as perfect."""
    image = crop(1, 60, 60)
    region = np.zeros((60, 60), bool)
    region[:, :45] = True
    output = np.ascontiguousarray(image[::-1])
    released = context_as_released(image, output, region.astype(np.uint8) * 255)
    assert released > context_preservation(image, output, region) + 0.3


def test_a_mask_that_does_not_fit():
    with pytest.raises(MetricError, match="does not fit"):
        context_as_released(crop(0, 20, 20), crop(0, 20, 20), np.zeros((20, 21), np.uint8))
    with pytest.raises(MetricError, match="no 7x7 window"):
        context_preservation(crop(0, 20, 20), crop(0, 20, 20), np.ones((20, 20), bool))
