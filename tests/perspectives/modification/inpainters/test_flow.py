"""The flow expert: windows of any size, large holes coarse to fine, lesions by name, refused files."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the flow expert needs the extra `models`")

from mie.errors import ConfigError, ImageError, MieError  # noqa: E402
from mie.images.families import FAMILIES  # noqa: E402
from mie.images.overlay import is_grey  # noqa: E402
from mie.images.texture import compare, texture  # noqa: E402
from mie.networks import weights  # noqa: E402
from mie.networks.flow import FORMAT, FlowConfig, FlowNet  # noqa: E402
from mie.perspectives.modification.inpainters import flow, make_inpainter  # noqa: E402
from mie.perspectives.modification.inpainters.flow import FlowInpainter  # noqa: E402
from tests.conftest import shipped as sample  # noqa: E402

TINY = FlowConfig(("polyp", "glioma"), FAMILIES, (8, 8, 16), (1, 1, 1), (1, 1, 1), 16)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    net = FlowNet(TINY)
    for parameter in net.parameters():
        if not parameter.abs().sum():
            torch.nn.init.normal_(parameter, std=0.1)
    path = tmp_path_factory.mktemp("w") / "w.safetensors"
    extents = {"endoscopy": {"polyp": (0.1, 0.4), "glioma": (0.1, 0.2)}}
    weights.save(path, net.state_dict(), format=FORMAT, config=TINY.as_json(), meta={"extents": extents})
    return path


def ellipse(size, centre, axes):
    rows, columns = np.indices(size)
    return ((rows - centre[0]) / axes[0]) ** 2 + ((columns - centre[1]) / axes[1]) ** 2 <= 1


def picture(height=160, width=200):
    return np.ascontiguousarray(sample("retina.jpg")[400 : 400 + height, 400 : 400 + width])


@pytest.mark.parametrize("size", [(160, 200), (300, 260), (700, 40), (5, 7), (1, 40)])
def test_any_size_and_the_outside_is_untouched(path, size):
    image = picture(*size)
    hole = ellipse(size, (size[0] // 2, size[1] // 2), (max(1, size[0] // 3), max(1, size[1] // 3)))
    filled = FlowInpainter(path, "fundus").fill(image, hole, seed=3)
    assert filled.shape == image.shape
    assert filled.dtype == np.uint8
    assert (filled[~hole] == image[~hole]).all()
    assert (filled[hole] != image[hole]).any()


@pytest.mark.parametrize("axes", [(20, 30), (70, 60)], ids=["small", "coarse to fine"])
def test_what_is_under_the_hole_does_not_matter_and_the_seed_does(path, axes):
    image, hole = picture(), ellipse((160, 200), (80, 90), axes)
    inpainter = FlowInpainter(path, "fundus")
    first = inpainter.fill(image, hole, seed=1)
    other = image.copy()
    other[hole] = 255
    assert (inpainter.fill(other, hole, seed=1) == first).all()
    assert (inpainter.fill(image, hole, seed=2) != first).any()


@pytest.mark.parametrize("family", ["ct", "fundus"])
def test_grey_stays_grey(path, family):
    image, hole = picture(), ellipse((160, 200), (80, 90), (20, 30))
    grey = np.repeat(image[..., 1:2], 3, 2)
    assert is_grey(FlowInpainter(path, family).fill(grey, hole, seed=1))


def test_a_large_hole_is_drawn_small_then_at_its_own_scale(path, monkeypatch):
    sizes = []
    drawn = FlowInpainter._window

    def watched(self, window, *rest):
        sizes.append((window.scaled, rest[-1] is not None))
        return drawn(self, window, *rest)

    monkeypatch.setattr(FlowInpainter, "_window", watched)
    expert = FlowInpainter(path, "fundus")
    expert.fill(picture(), ellipse((160, 200), (80, 90), (20, 30)), seed=0)
    assert sizes == [((128, 128), False)]
    sizes.clear()
    expert.fill(picture(240, 240), ellipse((240, 240), (120, 120), (60, 60)), seed=0)
    assert sizes == [((128, 128), False), ((169, 169), True)], "24 pixels around a hole of 121"


def test_a_lesion_is_painted_into_its_region_and_a_rim(path):
    image, region = picture(), ellipse((160, 200), (80, 90), (20, 30))
    expert = FlowInpainter(path, "endoscopy")
    assert expert.targets == ("glioma", "polyp")
    assert expert.extent("polyp") == (0.1, 0.4)
    painted, hole = expert.paint(image, region, "polyp", seed=1)
    assert (hole >= region).all()
    assert hole.sum() > region.sum()
    assert (painted[~hole] == image[~hole]).all()
    others = [
        expert.paint(image, region, "glioma", seed=1)[0],
        expert.paint(image, region, "polyp", seed=1, contrast=0.5)[0],
        expert.fill(image, hole, seed=1),
    ]
    assert all((painted != other).any() for other in others)
    with pytest.raises(ConfigError, match="did you mean 'polyp'"):
        expert.paint(image, region, "polip", seed=1)
    with pytest.raises(ConfigError, match="lesion of the flow expert"):
        FlowInpainter(path, "fundus").paint(image, region, "polyp", seed=1)  # never seen in this family
    with pytest.raises(ConfigError, match="no such contrast"):
        expert.paint(image, region, "polyp", seed=1, contrast=2)


def test_what_cannot_be_filled_is_refused(path, tmp_path):
    with pytest.raises(ImageError, match="whole image"):
        FlowInpainter(path, "ct").fill(picture(), np.ones((160, 200), bool), seed=0)
    with pytest.raises(ConfigError, match=r"no option .steps."):
        make_inpainter("flow,steps=3", family="ct")
    with pytest.raises(MieError, match="no such weights file"):
        make_inpainter(f"flow:{tmp_path}/none.safetensors", family="ct")
    other = tmp_path / "other.safetensors"
    weights.save(other, {"a": torch.zeros(1)}, format="inpainter 1", config={})
    with pytest.raises(MieError, match="not a weights file of the flow"):
        make_inpainter(f"flow:{other}", family="ct")


def test_the_shipped_expert_draws_texture_as_strong_as_around_the_hole(monkeypatch):
    """A retina that it never saw: a smooth fill has under a third of the variance."""
    monkeypatch.setattr(flow, "STEPS", (4, 4))
    image, hole = picture(), ellipse((160, 200), (90, 110), (14, 18))
    expert = make_inpainter("flow", family="fundus")
    assert "hard exudates" in expert.targets
    assert "skin lesion" not in expert.targets
    ratio = compare(texture(expert.fill(image, hole, seed=0), hole), texture(image, hole))["variance_ratio"]
    assert 0.4 < ratio < 2.5
