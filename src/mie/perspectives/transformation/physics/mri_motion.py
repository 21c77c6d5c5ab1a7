"""Rigid motion of the patient during an MR scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from mie.core import scratch
from mie.perspectives.transformation.physics import kspace
from mie.perspectives.transformation.physics.severity import (
    Ranges,
    as_params,
    check_choice,
    check_fields,
    check_ranges,
    draw_ranges,
)

_FINEST: Final = 0.05  # cycles per pixel, above which detail no longer says where edges are
_STEPS: Final = 10  # to a pixel, when the best place is looked for


@dataclass(frozen=True, slots=True)
class Motion:
    """The patient moves `moves` times during the scan; each line of k-space sees the pose of its moment.

    Lines are acquired in shots of `echoes` lines spread evenly over k-space: line `i` belongs to shot
    `i mod ceil(lines / echoes)`. One echo is the linear order of a spin or gradient echo: few moves blur and
    ring. More echoes are a turbo spin echo: neighbouring lines come from different moments, which gives the
    regular ghosts along the phase direction.

    Poses are measured from their mean over the lines, each line by how much it says about the place of edges;
    then the whole is shifted onto the clean image, where it fits best: nobody who sees the result could tell
    by how much it is displaced. Shifts and turns (about the centre) are phase ramps, hence exact for what
    k-space holds, and wrap at the border as on a scanner.
    """

    translation: float  # largest shift, per cent of the shorter side (1 % of 240 mm is 2.4 mm); 0 .. 8
    rotation: float  # largest turn, degrees; 0 .. 10
    moves: int = 4  # 1 .. 32
    echoes: int = 1  # lines in one shot; 1 .. 32
    phase_axis: int = 0  # image axis of the phase direction: 0 ghosts run up and down, 1 left and right

    RANGES: ClassVar[Ranges] = {
        "translation": (0.0, 8.0), "rotation": (0.0, 10.0), "moves": (1, 32), "echoes": (1, 32)
    }  # fmt: skip
    DRAWN: ClassVar[Ranges] = {"translation": (1.0, 3.0), "rotation": (1.0, 4.0), "moves": (4, 12)}

    def __post_init__(self) -> None:
        check_ranges(self, self.RANGES)
        check_choice(self, "phase_axis", (0, 1))

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        """Severity from DRAWN; every second scan is a turbo spin echo of 4 to 16 echoes."""
        check_fields(cls, fixed)
        echoes = int(rng.choice([4, 8, 16])) if rng.random() < 0.5 else 1
        numbers: dict[str, Any] = {**draw_ranges(rng, cls.DRAWN), "echoes": echoes}
        numbers["phase_axis"] = int(rng.integers(2))
        return cls(**numbers | fixed)

    def apply(self, image: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """`(H, W)` float32 magnitude -> the same with motion; same units, zero motion gives it back."""
        return self.apply_volume(kspace.check_magnitude(image)[None], rng)[0]

    def apply_volume(self, stack: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
        """`(S, H, W)`: one history of motion for all slices, as when they are acquired interleaved."""
        out = scratch.zeros(stack.shape, np.float32)
        lines_first = (0, 2, 1) if self.phase_axis == 1 else (0, 1, 2)
        stack = stack.transpose(lines_first)
        side = stack.shape[1], stack.shape[2]
        shape = kspace.good_shape(side)
        phase = kspace.smooth_phase(shape, rng)
        weights = np.mean([line_weights(kspace.pad_to(one, shape) * phase) for one in stack], axis=0)
        segment, poses = self.poses(weights, min(side), rng)
        for one, target in zip(stack, out.transpose(lines_first), strict=True):
            still = kspace.pad_to(one, shape) * phase
            moved = shifted_onto(reconstruct(still, segment, poses), still)
            target[...] = kspace.crop_to(np.abs(moved), side)
        return out

    def poses(
        self, weights: NDArray[np.float64], side: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """For each line (centred order) its segment, and for each segment (down, across, degrees).

        `weights (lines,)`: by how much each line counts for the mean pose.
        """
        lines = len(weights)
        shots = -(-lines // self.echoes)
        moves = min(self.moves, shots - 1)
        when = np.sort(rng.choice(np.arange(1, shots), moves, replace=False)) if moves else np.zeros(0)
        segment = np.searchsorted(when, np.arange(lines) % shots, side="right")
        # A patient slides away in a random walk rather than jumping about.
        walk = np.cumsum(rng.standard_normal((moves + 1, 3)), axis=0)
        walk -= np.average(walk[segment], axis=0, weights=weights)
        shift = np.hypot(walk[:, 0], walk[:, 1]).max()
        turn = np.abs(walk[:, 2]).max()
        tiny = np.finfo(np.float64).tiny
        walk[:, :2] *= self.translation / 100 * side / max(shift, tiny)
        walk[:, 2] *= self.rotation / max(turn, tiny)
        return segment, walk

    def params(self) -> dict[str, Any]:
        return as_params(self)


def line_weights(still: NDArray[np.complex64]) -> NDArray[np.float64]:
    """`(lines,)`, centred order: how much each line of k-space says about where edges are.

    A small shift by `d` changes what is measured at a frequency `k` by `k d` of it, so its energy weighs by
    `k` squared. Above `_FINEST` it weighs no more: fine detail goes out of phase in any case.
    """
    energy = np.abs(fft.fft2(still)).astype(np.float64) ** 2
    ky, kx = (np.minimum(np.abs(fft.fftfreq(side)), _FINEST) for side in still.shape)
    weights = energy.sum(1) * ky**2 + energy @ kx**2
    return np.asarray(fft.fftshift(weights)) + np.finfo(np.float64).tiny  # without edges any mean will do


def reconstruct(
    still: NDArray[np.complex64], segment: NDArray[np.intp], poses: NDArray[np.float64]
) -> NDArray[np.complex64]:
    """The complex image whose line `i` of k-space was acquired in pose `poses[segment[i]]`.

    A turn by phi is three shears, down by `tan(phi / 2)`, across by `-sin(phi)` and down again; each is a
    phase ramp after a transform along one axis. The first transform is the same for all poses, the last one
    is already the way to k-space, and of it only the segment's lines are needed. k-space stays in the FFT's
    own order: shifting it to the centre and back would only cost time.
    """
    height, width = still.shape
    y, x = np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2
    ky, kx = fft.fftfreq(height), fft.fftfreq(width)
    columns = fft.fft(still, axis=0)
    in_fft_order = fft.ifftshift(segment)
    acquired = np.empty_like(still)
    for number, (dy, dx, degrees) in enumerate(poses):
        rows = np.flatnonzero(in_fft_order == number)
        if degrees == 0:
            lines = columns[rows]
        else:
            phi = -np.deg2rad(degrees)  # rows count downwards
            shear = _ramp(ky, np.tan(phi / 2) * x)
            turned = fft.fft(fft.ifft(columns * shear, axis=0, overwrite_x=True), axis=1, overwrite_x=True)
            turned *= _ramp(-np.sin(phi) * y, kx)
            turned = fft.ifft(turned, axis=1, overwrite_x=True)
            lines = fft.fft(turned, axis=0, overwrite_x=True)[rows] * shear[rows]
        lines = fft.fft(lines, axis=1, overwrite_x=True)
        acquired[rows] = lines * (_ramp(ky[rows], np.array([dy])) * _ramp(np.array([dx]), kx))
    return fft.ifft2(acquired, overwrite_x=True)


def shifted_onto(moved: NDArray[np.complex64], still: NDArray[np.complex64]) -> NDArray[np.complex64]:
    """`moved`, shifted so that its magnitude differs least from that of `still`, to 1 / _STEPS of a pixel."""
    ky, kx = (fft.fftfreq(side) for side in still.shape)
    product = np.conj(fft.fft2(np.abs(moved))) * fft.fft2(np.abs(still))
    correlation = fft.ifft2(product).real
    peak = np.unravel_index(int(correlation.argmax()), correlation.shape)
    near = np.arange(-_STEPS, _STEPS + 1) / _STEPS
    down, across = (at + near for at in peak)
    fine = (_ramp(-down, ky) @ product @ _ramp(kx, -across)).real
    row, column = np.unravel_index(int(fine.argmax()), fine.shape)
    spectrum = fft.fft2(moved)
    spectrum *= _ramp(ky, down[[row]]) * _ramp(across[[column]], kx)
    return fft.ifft2(spectrum, overwrite_x=True)


def _ramp(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.complex64]:
    """`exp(-2 pi i a b)` for all pairs, `(len(a), len(b))`."""
    phase = np.outer((-2 * np.pi * a).astype(np.float32), b.astype(np.float32))
    out = np.empty(phase.shape, np.complex64)
    np.cos(phase, out=out.real)
    np.sin(phase, out=out.imag)
    return out
