import tracemalloc

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.images.hashes import (
    CORRELATION,
    HASH_DISTANCE,
    _cells,
    _close,
    _directions,
    _places,
    near_pairs,
    perceptual,
    pixel_digest,
)
from tests.conftest import crop, shipped


def _traces(images):
    pairs = [perceptual(i) for i in images]
    thumbs = np.frombuffer(b"".join(t for _, t in pairs), np.uint8).reshape(-1, 256)
    return np.array([h for h, _ in pairs], np.uint64), thumbs


def _variants(image):
    jpeg = cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 70])[1], cv2.IMREAD_COLOR)
    half = cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    brighter = np.clip(image.astype(int) * 1.08 + 6, 0, 255).astype(np.uint8)
    return [jpeg, half, brighter]


def test_reencoded_scaled_and_brightened_copies_are_found():
    for name in ("retina.jpg", "ihc.png", "microaneurysms.png"):
        image = shipped(name)
        a = _traces([image])
        b = _traces(_variants(image))
        assert near_pairs(*a, *b) == [(0, 0), (0, 1), (0, 2)], name


def test_different_images_are_not_confused():
    images = [crop(n, 256, 256) for n in range(40)]
    traces = _traces(images)
    assert near_pairs(*traces, *traces) == [(n, n) for n in range(40)]


def test_a_flip_is_another_image():
    image = crop(0, 256, 256)
    assert near_pairs(*_traces([image]), *_traces([image[:, ::-1].copy()])) == []


@given(st.integers(0, 2**32 - 1), st.integers(0, 2), st.sampled_from([1, 40, 2**23]))
def test_the_result_is_that_of_comparing_all_with_all(seed, spread, most):
    """Pairs by hand, whatever the number of directions that pictures differ in, and of cells and strips."""
    draw = np.random.default_rng(seed)
    waves = draw.normal(size=(2 + 6 * spread, 256))
    weights = draw.normal(size=(60, len(waves)))
    weights[30:] = weights[:30] + draw.normal(size=(30, len(waves))) * draw.choice([0, 0.05, 0.2], (30, 1))
    pictures = weights @ waves + draw.normal(size=(60, 256)) * draw.choice([0.0, 0.1, 0.5], (60, 1))
    low, high = pictures.min(axis=1, keepdims=True), pictures.max(axis=1, keepdims=True)
    thumbs = np.rint(255 * (pictures - low) / (high - low)).astype(np.uint8)
    thumbs[draw.random(60) < 0.05] = 7
    hashes = np.repeat(draw.integers(0, 2**64 - 1, 1, np.uint64), 60)
    hashes ^= draw.integers(0, 2**64 - 1, 60, np.uint64) & draw.integers(0, 2**64 - 1, 60, np.uint64)
    hashes &= np.uint64(0xFFFFFFFF)  # eight bits are set in the mean, so some differ in ten and some in more
    a, b = slice(0, 35), slice(25, 60)
    with np.errstate(invalid="ignore"):  # of thumbnails of one grey
        alike = np.corrcoef(thumbs)
    sure = ~np.isclose(alike, CORRELATION, atol=1e-5)  # there, float32 decides
    expected = {
        (i, j)
        for i in range(35)
        for j in range(35)
        if (int(hashes[i]) ^ int(hashes[25 + j])).bit_count() <= HASH_DISTANCE
        and alike[i, 25 + j] >= CORRELATION
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mie.images.hashes._PAIRS", most)
        patch.setattr("mie.images.hashes._STRIP", 4)
        patch.setattr("mie.images.hashes._BLOCK", 16)
        found = near_pairs(hashes[a], thumbs[a], hashes[b], thumbs[b])
    assert found == sorted(set(found))
    assert {p for p in set(found) ^ expected if sure[p[0], 25 + p[1]]} == set()


def test_cutting_into_neighbourhoods_loses_no_pair(monkeypatch):
    """Against all with all: 600 smooth pictures, copies of some of them at the very threshold, flat ones."""
    draw = np.random.default_rng(0)
    low = draw.normal(size=(600, 5, 5)).astype(np.float32)
    smooth = np.stack([cv2.resize(one, (16, 16), interpolation=cv2.INTER_CUBIC) for one in low])
    grain = draw.normal(size=smooth.shape) * smooth.std(axis=(1, 2), keepdims=True)
    copies = (smooth + 0.14 * grain)[:300]  # about half of them correlate at .99
    flat = np.zeros((5, 16, 16))
    thumbs = [
        np.clip(60 * part + 128, 0, 255).astype(np.uint8).reshape(-1, 256)
        for part in (np.concatenate([smooth, flat]), np.concatenate([copies, flat]))
    ]
    hashes = [np.zeros(len(part), np.uint64) for part in thumbs]  # no pair is ruled out by its hash
    with np.errstate(invalid="ignore"):  # of flat ones
        every = np.corrcoef(*thumbs)[:605, 605:]
    expected = [tuple(pair) for pair in np.argwhere(every >= CORRELATION).tolist()]
    assert 100 < len(expected) < 250
    monkeypatch.setattr("mie.images.hashes._PAIRS", 64)
    basis = _directions(*thumbs)
    cells = list(_cells(*thumbs, *(_places(part, basis) for part in thumbs)))
    assert len(cells) > 20
    assert sum(len(cell.a) * len(cell.b) for cell in cells) < 0.5 * 600 * 300
    assert sum(len(a) for a, _ in _close(*thumbs)) < 0.01 * 600 * 300
    found = near_pairs(hashes[0], thumbs[0], hashes[1], thumbs[1])
    assert found == expected


def test_the_search_holds_few_thumbnails_as_floats():
    """One float32 copy of all thumbnails alone takes four times their bytes."""
    draw = np.random.default_rng(0)
    thumbs = draw.integers(0, 256, (2, 8192, 256), np.uint8)
    hashes = draw.integers(0, 2**63, (2, 8192), np.uint64)
    near_pairs(hashes[0, :9], thumbs[0, :9], hashes[1, :9], thumbs[1, :9])  # what is only loaded once
    tracemalloc.start()
    try:
        near_pairs(hashes[0], thumbs[0], hashes[1], thumbs[1])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * thumbs.nbytes


def test_the_hash_is_signs_against_the_median():
    for n in range(20):
        image = crop(n, 200, 160)
        grey = cv2.resize(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (32, 32), interpolation=cv2.INTER_AREA)
        low = cv2.dct(grey.astype(np.float32))[:8, :8].ravel()
        signs = "".join(str(int(v > np.median(low[1:]))) for v in low[1:])
        assert perceptual(image)[0] == int(signs, 2)


def test_pixel_digest_sees_shape_and_type():
    flat = np.zeros(12, np.uint8)
    digests = {pixel_digest(flat), pixel_digest(flat.reshape(3, 4)), pixel_digest(flat.reshape(4, 3))}
    assert len(digests | {pixel_digest(flat.astype(bool))}) == 4
    assert pixel_digest(np.arange(6).reshape(2, 3).T) == pixel_digest(np.arange(6).reshape(2, 3).T.copy())
