import cv2
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mie.images.hashes import CORRELATION, _neighbourhoods, _within, near_pairs, perceptual, pixel_digest
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


@given(st.lists(st.integers(0, 2**64 - 1), max_size=8), st.lists(st.integers(0, 2**64 - 1), max_size=8))
def test_hamming_distance_by_hand(a, b):
    expected = [(i, j) for i, x in enumerate(a) for j, y in enumerate(b) if (x ^ y).bit_count() <= 20]
    found = _within(np.array(a, np.uint64), np.array(b, np.uint64), 20)
    assert [tuple(p) for p in found.tolist()] == expected


def test_pairs_are_found_in_every_block(monkeypatch):
    monkeypatch.setattr("mie.images.hashes._BLOCK", 32)
    draw = np.random.default_rng(0)
    a, b = (draw.integers(0, 2**64 - 1, n, np.uint64) for n in (50, 9))
    b[3], b[7] = a[0], a[41] ^ np.uint64(0b1011)
    assert _within(a, b, 3).tolist() == [[0, 3], [41, 7]]
    assert _within(b, a, 3).tolist() == [[3, 0], [7, 41]]


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
    blocks = list(_neighbourhoods(*thumbs))
    assert len(blocks) > 20
    assert sum(len(a) * len(b) for a, b in blocks) < 0.5 * 600 * 300
    found = near_pairs(hashes[0], thumbs[0], hashes[1], thumbs[1])
    assert found == expected


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
