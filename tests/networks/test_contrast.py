"""Local contrast against SciPy's windows, and what it is for: the window of a picture matters little."""

import numpy as np
import pytest
from scipy.ndimage import uniform_filter

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")

from mie.networks.compact_layers import local_contrast  # noqa: E402
from tests.conftest import crop  # noqa: E402


def picture(number=0):
    return torch.from_numpy(crop(number, 160, 192) / 255).permute(2, 0, 1)[None].float()


def test_as_scipy_has_it():
    image = picture()
    grey = image[0].mean(0).numpy().astype(np.float64)

    def around(values):
        """Of what lies in the image only."""
        options = {"size": 31, "mode": "constant"}
        return uniform_filter(values, **options) / uniform_filter(np.ones_like(values), **options)

    away = grey - around(grey)
    wanted = np.clip(away / np.sqrt(around(away**2) + 0.01**2), -3, 3) / 3
    assert np.abs(local_contrast(image)[0, 0].numpy() - wanted).max() < 1e-4


def test_a_faint_lesion_stands_out_and_the_window_does_not_matter():
    draw = torch.Generator().manual_seed(0)
    image = 0.14 + 0.004 * torch.randn(1, 1, 96, 96, generator=draw).expand(1, 3, 96, 96)
    lesion = torch.zeros(1, 1, 96, 96, dtype=torch.bool)
    lesion[..., 40:52, 40:52] = True
    image = image + 0.02 * lesion  # five grey levels
    found = local_contrast(image)
    assert found.shape == (1, 1, 96, 96)
    assert found[lesion].mean() - found[~lesion].mean() > 10 * (image[:, :1][lesion].mean() - 0.14)
    darker, plain = local_contrast(picture() * 0.5 + 0.2), local_contrast(picture())
    assert np.corrcoef(darker.flatten(), plain.flatten())[0, 1] > 0.97


def test_flat_images_have_none():
    assert (local_contrast(torch.full((2, 3, 64, 64), 0.7)).abs() < 1e-4).all()
    half = local_contrast(picture().bfloat16())
    assert half.dtype == torch.float32
