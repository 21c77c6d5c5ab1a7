"""Heads of simple shapes, in millimetres, right-anterior-superior."""

import numpy as np


def head(*, face=True, skull=True, cut=None, mm=2.0):
    """(X, Y, Z) float32: a brain in a skull with jaw and nose; `cut` is where a plane takes the face off.

    The vertex is 20 mm below the top; the plane runs down and back from the brows.
    """
    shape = (100, 120, 130)
    x, y, z = np.meshgrid(*(np.arange(n) * mm for n in shape), indexing="ij")
    x, y, top = x - 100, y - 110, 240 - z  # `top`: mm below the vertex
    brain = (x / 68) ** 2 + (y / 82) ** 2 + ((top - 68) / 62) ** 2 < 1
    out = np.zeros(shape, bool)
    if skull:
        out |= (x / 76) ** 2 + (y / 95) ** 2 + ((top - 80) / 80) ** 2 < 1
        out |= ((x / 60) ** 2 + ((y - 5) / 60) ** 2 < 1) & (top > 80)  # neck, and the back of the jaw
        if face:
            out |= ((x / 55) ** 2 + ((y - 40) / 50) ** 2 < 1) & (top > 90) & (top < 205)  # cheeks and jaw
            out |= (
                (np.abs(x) < 12) & (y > 60) & (y < 60 + 0.9 * (top - 90)) & (top > 95) & (top < 145)
            )  # nose
    if cut is not None:
        out &= ~((y > cut - 0.3 * (top - 90)) & (top > 90))
    values = np.where(out | brain, 600.0, 0.0)
    values[brain] = 900.0
    return (values + np.random.default_rng(0).normal(0, 20, shape)).clip(0).astype(np.float32)
