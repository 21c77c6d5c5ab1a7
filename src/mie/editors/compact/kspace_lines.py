"""MRI of which lines of k-space were left out: find the lines in the image, and keep what they measured.

A stored image is a magnitude: which lines were measured, and the phase that the image had, are unknown. But a
restored image tells enough of both. Lines and a smooth phase are fitted until the restored image, with these
lines alone, is nearly the input; then the image is moved until that fits better still.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import expit

from mie.records import Pixels, Values

_ORDER: Final = 3  # half waves of the phase across the image, at most
_START: Final = 0.5  # radians: the size of the first guess of each wave
_CENTRE: Final = 0.08  # share of the lines, around zero frequency, that are taken for measured at first
_COLUMNS: Final = 64  # across the lines, at least, that are fitted: enough for some hundred numbers
_STEPS: Final = 90
_RATES: Final = (0.12, 0.5)  # of Adam, for the phase and for the lines
_MOVES: Final = 12
# Lines that explain less of the squared change, or are more of all lines, were not found.
_EXPLAINED: Final = 0.5
_MOST: Final = 0.75


def keep_lines(image: Pixels, restored: Values) -> tuple[Values, float] | None:
    """Return `restored` `(H, W)`, moved so that undersampled it is `image`, and the share of lines measured.

    None where no lines and phase explain the difference between the two. Nothing is random.
    """
    measured, guess = image.astype(np.float32), np.clip(restored, 0, 255).astype(np.float32)
    turned = _lines_are_columns(guess - measured)
    if turned:
        guess, measured = np.ascontiguousarray(guess.T), np.ascontiguousarray(measured.T)
    found = _found(guess, measured)
    if found is None:
        return None
    lines, weights = found
    moved = _moved(guess, measured, lines, weights)
    return (moved.T if turned else moved), float(lines.mean())


def _lines_are_columns(change: Values) -> bool:
    """Whether a change `(H, W)` differs more from column to column of k-space than from row to row."""
    power = np.square(np.abs(fft.fft2(change)))
    rough = []
    for axis in (0, 1):
        profile = power.sum(1 - axis)[1 : power.shape[axis] // 2]
        rough.append(float(np.abs(np.diff(np.log(profile + 1e-3))).mean()))
    return rough[1] > rough[0]


def _found(guess: Values, measured: Values) -> tuple[Values, Values] | None:
    """The lines `(lines,)`, 0 or 1, and the weights of the phase's waves that explain what was measured."""
    lines, width = guess.shape
    columns = np.arange(0, width, max(1, width // _COLUMNS))
    some, goal, waves = guess[:, columns], measured[:, columns], _waves(lines, width, columns)
    # A start at zero would be a saddle: a phase and its negative do equally well.
    weights = (_START * np.random.default_rng(0).standard_normal(len(waves))).astype(np.float32)
    middle = np.abs(fft.fftfreq(lines)) < _CENTRE / 2
    logits = np.where(middle, 3, 0).astype(np.float32)
    steps = _Adam(_RATES[0]), _Adam(_RATES[1])
    before, after = float(np.square(some - goal).mean()), float("inf")
    for _ in range(_STEPS):
        turned = some * _turn(weights, waves)
        kept = expit(logits)[:, None]
        kspace = fft.fft(turned, axis=0)
        again = fft.ifft(kspace * kept, axis=0)
        size = np.maximum(np.abs(again), 1e-3)
        miss = size - goal
        after = float(np.square(miss).mean())
        # The gradient of that mean, backwards through the magnitude, the lines and the phase.
        pull = fft.fft((2 / miss.size) * miss * again / size, axis=0)
        by_line = (kspace.conj() * pull).real.sum(1) / lines
        by_phase = (turned.conj() * fft.ifft(pull * kept, axis=0)).imag
        weights = weights - steps[0].step(np.tensordot(waves, by_phase, 2))
        logits = logits - steps[1].step(by_line * (kept * (1 - kept))[:, 0])
    if not (after < (1 - _EXPLAINED) * before and float((logits > 0).mean()) < _MOST):
        return None
    return (logits > 0).astype(np.float32), weights


class _Adam:
    """Kingma and Ba's method, algorithm 1, with their constants."""

    def __init__(self, rate: float) -> None:
        self.rate, self.count = rate, 0
        self.mean: Values | float = 0.0
        self.square: Values | float = 0.0

    def step(self, gradient: NDArray[np.floating]) -> Values:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * np.square(gradient)
        mean, square = self.mean / (1 - 0.9**self.count), self.square / (1 - 0.999**self.count)
        return np.asarray(self.rate * mean / (np.sqrt(square) + 1e-8), np.float32)


def _moved(guess: Values, measured: Values, lines: Values, weights: Values) -> Values:
    """Gradient steps from `guess` towards an image whose undersampled magnitude was measured."""
    turn = _turn(weights, _waves(len(guess), guess.shape[1], np.arange(guess.shape[1])))
    for _ in range(_MOVES):
        again = _only(guess * turn, lines)
        size = np.maximum(np.abs(again), 1e-3)
        change = _only((measured - size) * again / size, lines)
        guess = np.clip(guess + (change * turn.conj()).real, 0, 255)
    return guess


def _waves(height: int, width: int, columns: NDArray[np.intp]) -> Values:
    """`(number, height, columns)`: the products of cosines of which a smooth phase is the sum."""
    down, across = (np.arange(height) + 0.5) / height, (columns + 0.5) / width
    orders = [(i, j) for i in range(_ORDER + 1) for j in range(_ORDER + 1 - i) if i + j]
    products = [np.outer(np.cos(np.pi * i * down), np.cos(np.pi * j * across)) for i, j in orders]
    return np.stack(products).astype(np.float32)


def _turn(weights: Values, waves: Values) -> NDArray[np.complex64]:
    phase = np.tensordot(weights, waves, 1)
    out = np.empty(phase.shape, np.complex64)
    np.cos(phase, out=out.real)
    np.sin(phase, out=out.imag)
    return out


def _only(image: NDArray[np.complexfloating], lines: Values) -> NDArray[np.complex64]:
    """A complex image whose lines of k-space, along its first axis, are multiplied by `lines`."""
    return np.asarray(fft.ifft(fft.fft(image, axis=0) * lines[:, None], axis=0), np.complex64)
