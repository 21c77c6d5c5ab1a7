"""Hounsfield units, attenuation, and how it falls with energy: water, bone, metals, a 120 kVp spectrum.

Mass attenuation coefficients (with coherent scattering) are those of NIST, Standard Reference Databases 8
(XCOM) and 126 (Hubbell and Seltzer); 70, 90, 110 and 120 keV, which database 126 leaves out, are from the
Elam, Ravel and Sieber tables, which agree with it to 0.2 % elsewhere. Bone is ICRU-44 cortical bone. Amalgam
is a set dental alloy of 50 % mercury, 35 % silver, 9 % tin and 6 % copper by mass: mercury's K edge at
83.1 keV makes it the only material here that attenuates more at 90 than at 80 keV.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.errors import ImageError
from mie.physics.ct_geometry import Slice

ENERGIES: Final = (30, 40, 50, 60, 70, 80, 90, 100, 110, 120)  # keV
# The energy whose attenuation 120 kVp CT numbers stand for.
REFERENCE: Final = 70

# g / cm^3
DENSITY: Final = {"water": 1.0, "bone": 1.92, "iron": 7.874, "titanium": 4.506, "amalgam": 11.6}
# cm^2 / g at ENERGIES
MASS_ATTENUATION: Final = {
    "water": (0.3756, 0.2683, 0.2269, 0.2059, 0.1929, 0.1837, 0.1766, 0.1707, 0.1657, 0.1614),
    "bone": (1.331, 0.6655, 0.4242, 0.3148, 0.2570, 0.2229, 0.2008, 0.1855, 0.1743, 0.1656),
    "iron": (8.176, 3.629, 1.958, 1.205, 0.8164, 0.5952, 0.4597, 0.3717, 0.3118, 0.2693),
    "titanium": (4.972, 2.214, 1.213, 0.7661, 0.5361, 0.4052, 0.3247, 0.2721, 0.2360, 0.2102),
    "amalgam": (31.41, 14.77, 8.177, 5.046, 3.362, 2.376, 4.363, 3.331, 2.616, 2.103),
}
_ALUMINIUM: Final = (1.128, 0.5685, 0.3681, 0.2778, 0.2301, 0.2018, 0.1833, 0.1704, 0.1608, 0.1533)

# HU above which part of a pixel is taken for bone: above muscle and organs, below contrast-filled vessels.
_BONE_FROM: Final = 100.0


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Photons by energy: `energies` in keV out of ENERGIES, `weights` that add up to 1."""

    energies: tuple[int, ...]
    weights: tuple[float, ...]

    def attenuation(self, material: str) -> NDArray[np.float64]:
        """Linear attenuation (1/mm) of the material at each energy."""
        return np.array([linear_attenuation(material, kev) for kev in self.energies])


def linear_attenuation(material: str, kev: int = REFERENCE) -> float:
    """Attenuation in 1/mm of a material of `MASS_ATTENUATION` at one of `ENERGIES`."""
    return MASS_ATTENUATION[material][ENERGIES.index(kev)] * DENSITY[material] / 10


def one_energy(kev: int = REFERENCE) -> Spectrum:
    return Spectrum((kev,), (1.0,))


def tungsten_120kvp(filtration: float = 7.0) -> Spectrum:
    """A tungsten tube at 120 kVp behind `filtration` mm of aluminium, in steps of 10 keV.

    Kramers' law, photons ~ (120 - E) / E, times the filter, with 12 % of the photons in the K lines (58 and
    59 keV, and a quarter of them at 67 to 69 keV). Mean energy 59.5 keV.
    """
    # The last step reaches from 115 to 120 keV only: half as wide, and centred on 117.5.
    centres = np.array([*ENERGIES[:-1], 117.5])
    widths = np.array([1.0] * (len(ENERGIES) - 1) + [0.5])
    through = np.exp(-np.array(_ALUMINIUM) * 2.699 * filtration / 10)
    photons = (120 - centres) / centres * widths * through
    photons *= 0.88 / photons.sum()
    photons[ENERGIES.index(60)] += 0.09
    photons[ENERGIES.index(70)] += 0.03
    return Spectrum(ENERGIES, tuple(float(p) for p in photons))


def hu_to_attenuation(hu: NDArray[Any]) -> Slice:
    """Linear attenuation in 1/mm at REFERENCE; below -1000 HU (fill values, noise in air) it is 0."""
    water = linear_attenuation("water")
    return np.maximum((1 + hu / 1000) * water, 0).astype(np.float32)


def attenuation_to_hu(attenuation: NDArray[Any]) -> Slice:
    """CT numbers of linear attenuation in 1/mm at REFERENCE."""
    return (1000 * (attenuation / linear_attenuation("water") - 1)).astype(np.float32)


def water_and_bone(attenuation: Slice) -> tuple[Slice, Slice]:
    """Split attenuation at REFERENCE (1/mm) into densities of water and cortical bone (1 where pure).

    Below 100 HU all is water, more or less dense; from there bone takes over in proportion. Whatever the
    split, `water * mu_water + bone * mu_bone` is the attenuation again.
    """
    mu_water, mu_bone = linear_attenuation("water"), linear_attenuation("bone")
    start = (1 + _BONE_FROM / 1000) * mu_water
    bone = np.clip((attenuation - start) / (mu_bone - start), 0, attenuation / mu_bone).astype(np.float32)
    return (attenuation - bone * np.float32(mu_bone)) / np.float32(mu_water), bone


def check_slice(hu: NDArray[Any], spacing: tuple[float, float]) -> float:
    """The pixel's side in mm, once it is sure that `hu` is a slice `(H, W) float32` with square pixels.

    float32 on purpose: 8-bit pictures have no Hounsfield units any more, and would pass unnoticed.
    """
    if hu.ndim != 2:
        raise ImageError(
            "CT physics needs one grey slice",
            expected="(H, W) float32 in Hounsfield units",
            found=f"{hu.shape} {hu.dtype}",
            fix="take one slice; colour images are not CT",
        )
    if hu.dtype != np.float32:
        raise ImageError(
            "CT physics needs Hounsfield units",
            expected="float32, air -1000, water 0",
            found=hu.dtype,
            fix="apply rescale slope and intercept, then astype(np.float32); a windowed picture will not do",
        )
    if min(hu.shape) < 16:
        raise ImageError("slice is too small to project", expected="at least 16x16 pixels", found=hu.shape)
    if not np.isfinite(hu).all():
        raise ImageError(
            "slice has pixels that are not numbers",
            expected="finite values",
            found=f"{int(np.isnan(hu).sum())} NaN and {int(np.isinf(hu).sum())} infinite of {hu.size} pixels",
            fix="replace them in the source file",
        )
    row, column = spacing
    if not (0 < row < 50 and 0 < column < 50 and math.isclose(row, column, rel_tol=0.01)):
        raise ImageError(
            "pixel spacing does not fit parallel beams",
            expected="square pixels, (row, column) in mm",
            found=spacing,
            fix="resample the slice to square pixels",
        )
    return float((row + column) / 2)
