"""The compact experts: windows around holes, noise that stays in its place, and files that are refused."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the compact experts need the extra `models`")

from mie.errors import ConfigError, ImageError, MieError  # noqa: E402
from mie.images.families import FAMILIES  # noqa: E402
from mie.images.texture import compare, texture  # noqa: E402
from mie.networks import shipped, weights  # noqa: E402
from mie.networks.fill import FillConfig, FillNet, gaussian_blur, pull_push  # noqa: E402
from mie.perspectives.modification.inpainters.compact import FORMAT, CompactInpainter, open_compact  # noqa: E402
from tests.conftest import shipped as sample  # noqa: E402

TINY = FillConfig((8, 8, 8, 8), (1, 2))


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    torch.manual_seed(0)
    net = FillNet(TINY)
    torch.nn.init.normal_(net.mean.weight, std=0.05)
    torch.nn.init.normal_(net.grain[2].weight, std=0.1)
    path = tmp_path_factory.mktemp("w") / "w.safetensors"
    weights.save(path, net.state_dict(), format=FORMAT, config=TINY.as_json())
    return path


def ellipse(size, centre, axes):
    rows, columns = np.indices(size)
    return ((rows - centre[0]) / axes[0]) ** 2 + ((columns - centre[1]) / axes[1]) ** 2 <= 1


def picture(height=160, width=200):
    return np.ascontiguousarray(sample("retina.jpg")[400 : 400 + height, 400 : 400 + width])


@pytest.mark.parametrize("size", [(160, 200), (300, 260), (700, 40), (33, 600)])
def test_any_size_and_the_outside_is_untouched(expert, size):
    image = picture(*size)
    hole = ellipse(size, (size[0] // 2, size[1] // 2), (size[0] // 5, size[1] // 5))
    filled = CompactInpainter(expert, "fundus").fill(image, hole, seed=3)
    assert filled.shape == image.shape
    assert filled.dtype == np.uint8
    assert (filled[~hole] == image[~hole]).all()
    assert (filled[hole] != image[hole]).any()


def test_what_is_under_the_hole_does_not_matter_and_the_seed_does(expert):
    image, hole = picture(), ellipse((160, 200), (80, 90), (20, 30))
    inpainter = CompactInpainter(expert, "fundus")
    first = inpainter.fill(image, hole, seed=1)
    other = image.copy()
    other[hole] = 255
    assert (inpainter.fill(other, hole, seed=1) == first).all()
    assert (inpainter.fill(image, hole, seed=2) != first).any()


@pytest.mark.parametrize(
    ("size", "axes"), [((160, 200), (70, 60)), ((256, 200), (120, 90)), ((512, 300), (200, 140))]
)
def test_a_window_beyond_the_image_does_not_mirror_what_is_under_the_hole(expert, size, axes):
    image, hole = picture(*size), ellipse(size, (size[0] // 2, size[1] // 2), axes)
    inpainter = CompactInpainter(expert, "dermoscopy")
    fills = [inpainter.fill(np.where(hole[..., None], np.uint8(v), image), hole, seed=1) for v in (0, 255)]
    assert (fills[0] == fills[1]).all()


def test_the_black_around_a_view_is_not_continued_into_the_hole(expert):
    image = picture(200, 200)
    image[:, 130:] = 3
    other = image.copy()
    other[:, 130:] = 20
    hole = ellipse((200, 200), (100, 90), (30, 38))
    inpainter = CompactInpainter(expert, "endoscopy")
    assert (inpainter.fill(image, hole, seed=1)[hole] == inpainter.fill(other, hole, seed=1)[hole]).all()
    inpainter = CompactInpainter(expert, "dermoscopy")
    assert (inpainter.fill(image, hole, seed=1)[hole] != inpainter.fill(other, hole, seed=1)[hole]).any()


@pytest.fixture
def smooth_expert(tmp_path):
    """Its mean is smooth and the same for every seed: what seeds change is grain."""
    torch.manual_seed(0)
    path = tmp_path / "w.safetensors"
    weights.save(path, FillNet(TINY).state_dict(), format=FORMAT, config=TINY.as_json())
    return path


@pytest.mark.parametrize("radius", [25, 100])
def test_grain_is_as_strong_as_around_the_hole(smooth_expert, radius):
    noise = np.random.default_rng(0).normal(0, 1, (400, 400, 1))
    hole = ellipse((400, 400), (200, 200), (radius, radius))
    for strength in (3.0, 9.0):
        image = np.repeat((120 + strength * noise).round().astype(np.uint8), 3, axis=2)
        filled = CompactInpainter(smooth_expert, "dermoscopy").fill(image, hole, seed=1)
        assert 0.6 < compare(texture(filled, hole), texture(image, hole))["variance_ratio"] < 1.3


def test_in_ct_and_mri_an_edge_runs_on_through_the_hole(smooth_expert):
    """A mean blurs it over the hole's width."""
    image = np.repeat(np.random.default_rng(0).normal(60, 2, (160, 160, 1)), 3, axis=2)
    image[:, 80:] += 120
    image = image.round().astype(np.uint8)
    hole = ellipse((160, 160), (80, 80), (30, 30))
    error = {}
    for family in ("ct", "mri", "xray"):
        filled = CompactInpainter(smooth_expert, family).fill(image, hole, seed=1)
        assert (filled == filled[..., :1]).all()
        assert (filled[~hole] == image[~hole]).all()
        error[family] = np.mean((filled[hole].astype(float) - image[hole]) ** 2)
    assert max(error["ct"], error["mri"]) < 0.5 * error["xray"]


def test_where_nothing_can_be_copied_the_network_draws(smooth_expert):
    image, hole = picture(96, 96), np.ones((96, 96), bool)
    hole[:2] = False  # a rim too thin for any tile
    inpainter = CompactInpainter(smooth_expert, "fundus")
    fills = [inpainter.fill(image, hole, seed=seed) for seed in (1, 2)]
    assert (fills[0] != fills[1]).any()
    assert (fills[0][~hole] == image[~hole]).all()


def test_what_is_under_another_hole_is_not_copied_either(expert):
    image = np.repeat(np.random.default_rng(0).normal(120, 5, (300, 300, 1)).astype(np.uint8), 3, axis=2)
    one, other = (ellipse((300, 300), (150, at), (25, 30)) for at in (70, 230))
    loud = image.copy()
    loud[other] = np.random.default_rng(1).integers(0, 256, (int(other.sum()), 1))
    inpainter = CompactInpainter(expert, "ct")
    fills = [inpainter.fill(picture, one | other, seed=1) for picture in (image, loud)]
    assert (fills[0] == fills[1]).all()


def test_a_grey_family_stays_grey(expert):
    image = np.repeat(picture()[..., :1], 3, axis=2)
    filled = CompactInpainter(expert, "mri").fill(image, ellipse((160, 200), (80, 90), (20, 30)), seed=1)
    assert (filled[..., 0] == filled[..., 1]).all()
    assert (filled[..., 1] == filled[..., 2]).all()


def test_far_holes_are_filled_in_windows_of_their_own_and_a_huge_one_too(expert):
    image = picture(400, 900)
    hole = ellipse((400, 900), (60, 60), (20, 30)) | ellipse((400, 900), (300, 800), (40, 30))
    huge = ellipse((400, 900), (200, 450), (190, 430))
    inpainter = CompactInpainter(expert, "fundus")
    for mask in (hole, huge):
        filled = inpainter.fill(image, mask, seed=1)
        assert (filled[~mask] == image[~mask]).all()
        black = np.where(mask[..., None], 0, image).astype(np.uint8)
        assert (inpainter.fill(black, mask, seed=1) == filled).all()


def test_no_hole_is_no_change_and_all_hole_is_refused(expert):
    image = picture()
    inpainter = CompactInpainter(expert, "fundus")
    assert (inpainter.fill(image, np.zeros((160, 200), bool), seed=0) == image).all()
    with pytest.raises(ImageError, match="whole image"):
        inpainter.fill(image, np.ones((160, 200), bool), seed=0)


def test_grain_has_no_slow_part_and_noise_stays_where_it_is():
    torch.manual_seed(1)
    net = FillNet(TINY)
    image, hole = torch.rand(1, 3, 96, 96), torch.zeros(1, 1, 96, 96)
    hole[..., 30:60, 30:60] = 1
    _, detail = net(image, hole, torch.randn(1, 1, 96, 96))
    assert gaussian_blur(detail, 8.0).abs().max() < 0.1 * detail.abs().max()


def test_continued_keeps_what_is_known_and_goes_on_with_it():
    ramp = torch.linspace(0, 1, 64).expand(1, 3, 64, 64).clone()
    known = torch.ones(1, 1, 64, 64)
    known[..., 20:40, 24:44] = 0
    spoilt = torch.where(known > 0, ramp, torch.full_like(ramp, 9.0))
    done = pull_push(spoilt, known)
    assert torch.equal(done[..., :20, :], ramp[..., :20, :])
    # Far closer to the ramp than the mean of what is around the hole is.
    hole = (known < 1).expand_as(ramp)
    assert (done - ramp)[hole].abs().mean() < 0.4 * (ramp[hole] - 0.5).abs().mean()


def test_missing_weights_say_how_to_train_them(monkeypatch, tmp_path):
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=r"mie train examples/inpainters/ct.yaml"):
        open_compact(None, {}, "ct")
    with pytest.raises(ConfigError, match="no options"):
        open_compact(None, {"x": "1"}, "ct")
    with pytest.raises(ConfigError, match="no such weights file"):
        open_compact(str(tmp_path / "none"), {}, "ct")


def test_the_weights_of_something_else_are_refused(expert, tmp_path):
    found = weights.load(expert, format=FORMAT)
    path = tmp_path / "w.safetensors"
    weights.save(path, found.state, format="detector 1", config=found.config)
    with pytest.raises(MieError, match="not a weights file"):
        open_compact(str(path), {}, "ct")
    weights.save(path, found.state, format=FORMAT, config=FillConfig().as_json())
    with pytest.raises(MieError, match="another architecture"):
        open_compact(str(path), {}, "ct")


def test_an_expert_for_other_images_is_refused(expert, tmp_path):
    found = weights.load(expert, format=FORMAT)
    path = tmp_path / "w.safetensors"
    weights.save(path, found.state, format=FORMAT, config=found.config, meta={"family": "ct"})
    assert open_compact(str(path), {}, "ct").name == "compact"
    with pytest.raises(ConfigError, match=r"for other images[\s\S]*mri[\s\S]*ct"):
        open_compact(str(path), {}, "mri")


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "microscopy"])
def test_the_shipped_experts_fill_better_than_grey(family):
    """A hole in a smooth ramp: an expert goes on with what is around it."""
    inpainter = open_compact(None, {}, family)
    ramp = np.repeat(np.tile(np.linspace(60, 180, 128, dtype=np.uint8), (128, 1))[..., None], 3, axis=2)
    hole = ellipse((128, 128), (64, 64), (14, 14))
    white = ramp.copy()
    white[hole] = 255
    filled = inpainter.fill(white, hole, seed=0)
    assert np.abs(filled[hole].astype(int) - ramp[hole]).mean() < 25
