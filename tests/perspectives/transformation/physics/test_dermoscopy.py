import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.dermoscopy import KINDS, SkinArtifacts, around, fill, ribbon
from tests.conftest import crop

ONE = {
    "hairs": SkinArtifacts(hairs=12),
    "ruler": SkinArtifacts(ruler=True),
    "bubbles": SkinArtifacts(bubbles=5),
    "frame": SkinArtifacts(frame=0.8),
    "ink": SkinArtifacts(ink=True),
}


def skin(height=200, width=240):
    image = np.empty((height, width, 3), np.uint8)
    image[:] = (215, 170, 150)
    return image


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_draws_and_the_seed_decides(kind):
    image = crop(1, 150, 190)
    before = image.copy()
    out = ONE[kind].apply(image, np.random.default_rng(3))
    assert ONE[kind].kinds == (kind,)
    assert out.shape == image.shape
    assert out.dtype == np.uint8
    np.testing.assert_array_equal(image, before)
    changed = (out != image).any(axis=2).mean()
    assert changed > 0.002
    if kind not in ("frame",):
        assert changed < 0.7  # the rest of the skin is as it was
    np.testing.assert_array_equal(out, ONE[kind].apply(image, np.random.default_rng(3)))
    assert (out != ONE[kind].apply(image, np.random.default_rng(4))).any()


@pytest.mark.parametrize(("light", "sign"), [(0.0, -1), (1.0, 1)])
def test_dark_hair_darkens_and_light_hair_lightens(light, sign):
    image = skin()
    if light:
        image[:] = (120, 80, 60)
    out = SkinArtifacts(hairs=15, light_hairs=light).apply(image, np.random.default_rng(1)).astype(int)
    change = out[..., 1] - image[..., 1]
    assert sign * change[np.abs(change) > 40].mean() > 40


def test_hair_is_thin_and_long():
    image = skin(400, 400)
    out = SkinArtifacts(hairs=1, light_hairs=0).apply(image, np.random.default_rng(2))
    dark = out[..., 1] < 120
    rows, columns = np.nonzero(dark)
    length = np.hypot(np.ptp(rows), np.ptp(columns))
    assert length > 60
    assert dark.sum() / length < 6  # mean width in pixels, at most 1 % of 400 and the slack of a bend


def test_the_ruler_has_regular_marks():
    # Along the scale the marks repeat: of a line through them the strongest wave stands out.
    image = skin(400, 400)
    out = SkinArtifacts(ruler=True).apply(image, np.random.default_rng(8))
    drawn = (215 - out[..., 0].astype(float)).clip(0)
    assert (drawn > 60).any()
    profile = max((drawn.sum(axis=0), drawn.sum(axis=1)), key=np.count_nonzero)
    first, last = np.flatnonzero(profile)[[0, -1]]
    wave = np.abs(np.fft.rfft(profile[first : last + 1] - profile[first : last + 1].mean()))
    assert wave[5:].max() > 4 * np.median(wave)


def test_bubbles_have_a_dark_rim_and_a_highlight():
    image = skin(300, 300)
    out = SkinArtifacts(bubbles=6).apply(image, np.random.default_rng(0)).astype(int)
    assert out[..., 0].min() < 160
    assert out.min(axis=2).max() > 220


def test_ink_filters_light_and_lets_the_lesion_show():
    image = skin()
    image[:, ::2] //= 2  # stripes
    out = SkinArtifacts(ink=True).apply(image, np.random.default_rng(5)).astype(float)
    assert (out <= image).all()
    inked = (image[..., 1] - out[..., 1]) > 30
    assert inked.any()
    rows, columns = np.nonzero(inked[:, 1:-1:2] & inked[:, 2::2])
    ratio = out[rows, 2 * columns + 2, 0] / np.maximum(out[rows, 2 * columns + 1, 0], 1)
    assert np.median(ratio) == pytest.approx(0.5, abs=0.1)


def test_the_frame_is_dark_outside_and_spares_the_middle():
    image = skin(200, 200)
    mild = SkinArtifacts(frame=0.3).apply(image, np.random.default_rng(0)).astype(float)
    strong = SkinArtifacts(frame=1.0).apply(image, np.random.default_rng(0)).astype(float)
    np.testing.assert_allclose(strong[95:105, 95:105], image[95:105, 95:105], atol=3)
    assert strong[:5, :5].max() < 20
    assert 0.6 * 215 < mild[:5, :5, 0].mean() < 0.95 * 215


def test_at_least_one_is_drawn():
    with pytest.raises(ConfigError, match="nothing to draw"):
        SkinArtifacts()
    seen = set()
    for seed in range(200):
        drawn = SkinArtifacts.draw(np.random.default_rng(seed))
        assert 1 <= len(drawn.kinds) <= 3
        seen |= set(drawn.kinds)
    assert seen == set(KINDS)


def test_kinds_can_be_switched():
    rng = np.random.default_rng(0)
    assert SkinArtifacts.draw(rng, ruler=True).kinds == ("ruler",)
    assert SkinArtifacts.draw(rng, ink=True, hairs=5).kinds == ("hairs", "ink")
    for seed in range(50):
        rng = np.random.default_rng(seed)
        assert "hairs" not in SkinArtifacts.draw(rng, hairs=0).kinds
        assert SkinArtifacts.draw(rng, hairs=0, ruler=False, bubbles=0, frame=0.0).kinds == ("ink",)


@settings(max_examples=40)
@given(st.sampled_from([2, 3, 7, 31, 97]), st.sampled_from([2, 5, 13, 64, 150]), st.integers(0, 999))
def test_any_size(height, width, seed):
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = SkinArtifacts(8, 0.5, True, 3, 0.9, True).apply(image, rng)
    assert out.shape == image.shape


@pytest.mark.parametrize(
    "image", [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3), np.float32), np.zeros((1, 1, 3), np.uint8)]
)
def test_wrong_pictures_are_refused(image):
    with pytest.raises(ImageError, match="dermoscopic"):
        SkinArtifacts(ruler=True).apply(image, np.random.default_rng(0))


def test_shapes_are_anti_aliased_to_their_area():
    line = np.array([[5.0, 6.0], [52.0, 33.0]])
    path = np.linspace(line[0], line[1], 40)
    cover = fill((40, 60), [ribbon(path, np.full(40, 2.5))])
    assert cover.sum() == pytest.approx(2.5 * np.hypot(47, 27), rel=0.1)
    assert ((cover > 0.1) & (cover < 0.9)).sum() > 20
    # Its centre of mass is the line's middle: no half-pixel slip.
    y, x = np.indices(cover.shape)
    assert (x * cover).sum() / cover.sum() == pytest.approx(28.5, abs=0.15)
    assert (y * cover).sum() / cover.sum() == pytest.approx(19.5, abs=0.15)


def test_a_part_lies_in_the_picture():
    picture = np.zeros((20, 30, 3), np.float32)
    part, corner = around(picture, np.array([[5.2, 6.0], [9.0, 8.5]]), 2)
    np.testing.assert_array_equal(corner, [3, 4])
    assert part.shape == (8, 9, 3)
    part += 1
    assert picture.sum() == part.size
    part, _ = around(picture, np.array([[-50.0, -60.0], [-40.0, 90.0]]), 2)
    assert part.size > 0
