import itertools

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.perspectives.transformation.physics.mri_motion import Motion, line_weights, reconstruct
from tests.perspectives.transformation.physics.slices import SIDES, head, noise, real_slice


def numpy_turn(image, degrees):
    """Three shears, each there and back along one axis, in complex128."""
    height, width = image.shape
    y, x = np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2
    ky, kx = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)
    phi = -np.deg2rad(degrees)
    down, across = np.tan(phi / 2) * x, -np.sin(phi) * y[:, None]
    image = np.fft.ifft(np.fft.fft(image, axis=0) * np.exp(-2j * np.pi * ky * down), axis=0)
    image = np.fft.ifft(np.fft.fft(image, axis=1) * np.exp(-2j * np.pi * kx * across), axis=1)
    return np.fft.ifft(np.fft.fft(image, axis=0) * np.exp(-2j * np.pi * ky * down), axis=0)


def numpy_motion(still, segment, poses):
    """The definition in complex128: each pose moves the whole image, of whose k-space its lines are taken."""
    height, width = still.shape
    ky, kx = np.meshgrid(np.arange(height) - height // 2, np.arange(width) - width // 2, indexing="ij")
    acquired = np.zeros((height, width), np.complex128)
    for number, (dy, dx, degrees) in enumerate(poses):
        turned = numpy_turn(still.astype(np.complex128), degrees)
        space = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(turned)))
        space *= np.exp(-2j * np.pi * (ky * dy / height + kx * dx / width))
        acquired[segment == number] = space[segment == number]
    return np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(acquired)))


def blobs(y, x):
    """Two Gaussian blobs, which can be drawn in any pose; (y, x) from the centre."""
    return np.exp(-((y + 8) ** 2 + (x - 5) ** 2) / 18) + 0.6 * np.exp(-((y - 6) ** 2 + (x + 9) ** 2) / 30)


@given(SIDES, SIDES, st.integers(0, 1000), st.integers(1, 32), st.integers(1, 32), st.integers(0, 1))
def test_zero_motion_is_the_identity(height, width, seed, moves, echoes, axis):
    image = noise(height, width, seed)
    out = Motion(0, 0, moves, echoes, axis).apply(image, np.random.default_rng(seed))
    assert out.dtype == np.float32
    assert out.shape == image.shape
    np.testing.assert_allclose(out, image, atol=1e-5)


@pytest.mark.parametrize("shape", [(64, 64), (90, 77), (75, 100)])
@pytest.mark.parametrize("echoes", [1, 8])
def test_agrees_with_the_definition_in_double_precision(shape, echoes):
    rng = np.random.default_rng(4)
    still = (noise(*shape, 1) * np.exp(1j * noise(*shape, 2))).astype(np.complex64)
    segment, poses = Motion(3, 5, 6, echoes).poses(line_weights(still), min(shape), rng)
    assert np.abs(poses).max() > 1
    expected = numpy_motion(still, segment, poses)
    np.testing.assert_allclose(np.abs(reconstruct(still, segment, poses)), np.abs(expected), atol=1e-4)


def test_one_pose_for_all_lines_moves_the_image():
    still = real_slice().astype(np.complex64)
    shifted = np.abs(reconstruct(still, np.zeros(64, np.intp), np.array([[3.0, -5.0, 0.0]])))
    np.testing.assert_allclose(shifted, np.roll(np.abs(still), (3, -5), (0, 1)), rtol=0, atol=1e-3)
    odd = still[:63, :63]
    turned = np.abs(reconstruct(odd, np.zeros(63, np.intp), np.array([[0.0, 0.0, 90.0]])))
    np.testing.assert_allclose(turned, np.rot90(np.abs(odd)), rtol=0, atol=1e-2)


@pytest.mark.parametrize("degrees", [-10, 0.3, 4, 10])
@pytest.mark.parametrize("shape", [(64, 80), (73, 60)])
def test_a_turned_and_shifted_picture_is_the_one_drawn_in_that_pose(shape, degrees):
    y, x = np.indices(shape) - (np.array(shape).reshape(2, 1, 1) - 1) / 2
    dy, dx = 2.4, -1.7
    moved = reconstruct(
        blobs(y, x).astype(np.complex64), np.zeros(shape[0], np.intp), np.array([[dy, dx, degrees]])
    )
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    # Counter-clockwise to the eye: where the picture came from, with rows counting downwards.
    back_y, back_x = c * (y - dy) + s * (x - dx), c * (x - dx) - s * (y - dy)
    np.testing.assert_allclose(np.abs(moved), blobs(back_y, back_x), atol=1e-4)


@given(st.integers(2, 200), st.integers(1, 32), st.integers(1, 32), st.integers(0, 1000))
def test_poses_have_the_stated_size_and_are_measured_from_their_mean(lines, moves, echoes, seed):
    rng = np.random.default_rng(seed)
    weights = rng.random(lines)
    segment, poses = Motion(2, 3, moves, echoes).poses(weights, 150, rng)
    shots = -(-lines // echoes)
    assert segment.shape == (lines,)
    assert len(poses) == min(moves, shots - 1) + 1
    assert set(segment) == set(range(len(poses)))
    if len(poses) > 1:
        np.testing.assert_allclose(np.average(poses[segment], axis=0, weights=weights), 0, atol=1e-9)
    if len(poses) > 1:
        assert np.hypot(poses[:, 0], poses[:, 1]).max() == pytest.approx(3.0)
        assert np.abs(poses[:, 2]).max() == pytest.approx(3.0)
    # All lines of one shot are acquired in one pose.
    for shot in range(min(shots, lines)):
        assert len(set(segment[shot::shots])) == 1


def test_lines_weigh_by_what_a_shift_changes():
    """Against differences: the energy of what a small shift down and across adds to each line."""
    still = cv2.GaussianBlur(head(96, 80), (0, 0), 6).astype(np.complex64)  # no finer than what counts
    added = sum(
        np.abs(np.fft.fft2(np.roll(still, 1, axis) - np.roll(still, -1, axis)).astype(complex)) ** 2
        for axis in (0, 1)
    ).sum(1)
    found = np.fft.ifftshift(line_weights(still))
    np.testing.assert_allclose(found / found.sum(), added / added.sum(), atol=0.01)


@pytest.mark.parametrize("echoes", [1, 4, 16])
def test_the_result_lies_on_the_clean_image(echoes):
    """Without it a turbo spin echo is seen pixels away, and nobody could tell by how much."""
    image = head(160, 128)
    for seed in range(6):
        moved = Motion(3, 0, 6, echoes, seed % 2).apply(image, np.random.default_rng(seed))
        here = ((moved - image) ** 2).mean()
        assert here > 1e-4 * image.max() ** 2
        for shift in itertools.product((-2, -1, 0, 1, 2), repeat=2):
            there = ((np.roll(moved, shift, (0, 1)) - image) ** 2).mean()
            assert there >= 0.99 * here, (seed, shift)


@pytest.mark.parametrize("axis", [0, 1])
def test_ghosts_run_along_the_phase_direction(axis):
    image = head(120, 120)
    ghosts = Motion(3, 0, 6, 8, axis).apply(image, np.random.default_rng(3))
    if axis == 1:
        image, ghosts = image.T, ghosts.T
    rows, columns = image.any(axis=1), image.any(axis=0)
    along = ghosts[~rows][:, columns]  # above and below the head
    # Beside it, farther than it was shifted.
    beside = ghosts[rows][:, ~np.convolve(columns, np.ones(21), "same").astype(bool)]
    assert along.mean() > 3 * beside.mean()
    assert along.mean() > 0.005 * image.max()


def test_more_motion_does_more_harm_and_the_seed_decides():
    image = real_slice()

    def error(translation, rotation, seed=0):
        out = Motion(translation, rotation).apply(image, np.random.default_rng(seed))
        return np.abs(out - image).mean()

    assert error(0.5, 0.5) < error(2, 2) < error(6, 6)
    assert error(2, 2) == error(2, 2)
    assert error(2, 2) != error(2, 2, seed=1)
