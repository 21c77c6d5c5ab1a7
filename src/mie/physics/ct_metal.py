"""Metal in CT: beam hardening and photon starvation, computed energy by energy in the sinogram."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from mie.errors import ConfigError
from mie.physics._severity import as_params, check_choice, check_ranges
from mie.physics.ct_attenuation import (
    Spectrum,
    check_slice,
    hu_to_attenuation,
    linear_attenuation,
    tungsten_120kvp,
    water_and_bone,
)
from mie.physics.ct_dose import AIR, log_uniform, measure, to_hu
from mie.physics.ct_geometry import KERNELS, Sinogram, Slice, embed, enough_views, even_angles, fbp, project
from mie.physics.ct_inserts import KINDS, place_metal
from mie.records import Mask

PHOTONS: Final = (2e6, 2e7)
ELECTRONIC: Final = 10.0
# Scattered photons that every ray gets besides its own, as a share of all: about 1 % of what 30 cm of water
# let through, what grid and correction leave. In the shadow of thick metal little else arrives.
SCATTER: Final = 2e-5
# What each implant is made of; "iron" stands for steel and cobalt-chrome.
MATERIALS: Final = {
    "fillings": ("amalgam",),
    "clips": ("titanium", "iron"),
    "hip": ("iron", "titanium"),
    "screws": ("titanium", "iron"),
}
# CT numbers are stored in 12 bits: metal saturates.
LOWEST, HIGHEST = -1024.0, 3071.0


@dataclass(frozen=True, slots=True)
class MetalArtifact:
    """An implant of a `kind` of KINDS and a `material` of MATERIALS, seen with `photons` per ray.

    Metal is harsh in this order: titanium, iron, amalgam. `photons` runs from 2e6 (starved: noise streaks
    through thick metal) to 2e7 (beam hardening alone). `kernel` is that of the reconstruction.

    The result is `clean + FBP(scan with metal) - FBP(scan without)`, clipped to -1024 .. 3071 HU, both scans
    polychromatic and corrected for water as scanners do. All that is added comes from the metal: its own
    picture, dark bands and bright streaks from hardening, noise streaks from starvation. The clean slice has
    no metal; `insert` also tells where it lies, so that scores can leave it out.
    """

    kind: str
    material: str
    photons: float
    kernel: str = "shepp-logan"

    def __post_init__(self) -> None:
        check_choice(self, "kind", tuple(KINDS))
        allowed = MATERIALS[self.kind]
        if self.material not in allowed:
            raise ConfigError(
                f"{self.kind} are not made of that", expected=" or ".join(allowed), found=self.material
            )
        check_ranges(self, {"photons": PHOTONS})
        check_choice(self, "kernel", KERNELS)

    @classmethod
    def draw(cls, rng: np.random.Generator, **fixed: Any) -> Self:
        """Any kind and one of its materials, photons log-uniform; `fixed` fields are kept."""
        kinds = tuple(KINDS)
        kind = fixed.get("kind", kinds[rng.integers(len(kinds))])
        materials = MATERIALS.get(kind, ("",))  # an unknown kind is refused below
        material = materials[rng.integers(len(materials))]
        return cls(**{"kind": kind, "material": material, "photons": log_uniform(rng, PHOTONS)} | fixed)

    def apply(self, image: Slice, rng: np.random.Generator, *, spacing: tuple[float, float]) -> Slice:
        """The slice `(H, W) float32` in HU with the implant and its artifacts."""
        return self.insert(image, rng, spacing=spacing)[0]

    def insert(
        self, image: Slice, rng: np.random.Generator, *, spacing: tuple[float, float]
    ) -> tuple[Slice, Mask]:
        """What `apply` returns, and the pixels `(H, W) bool` that are at least half metal or the most so."""
        side = check_slice(image, spacing)
        metal = place_metal(self.kind, image, side, rng)
        body, place = embed(hu_to_attenuation(image), AIR)
        share = np.zeros_like(body)
        share[place] = metal
        angles = even_angles(enough_views(len(body)))
        metal_path = project(share, angles) * np.float32(side)
        paths = {self.material: metal_path}
        tissue = {}
        for name, density in zip(("water", "bone"), water_and_bone(body), strict=True):
            tissue[name] = project(density, angles) * np.float32(side)
            # Metal takes the place of tissue, of its mean density there: that is exact enough for what metal
            # outweighs many times, and spares projecting the tissue twice.
            displaced = (density * share).sum() / share.sum()
            paths[name] = tissue[name] - displaced * metal_path
        spectrum = tungsten_120kvp()
        before = -np.log(transmission(tissue, spectrum) + np.float32(SCATTER))
        after = measure(transmission(paths, spectrum) + SCATTER, self.photons, ELECTRONIC, rng)
        lines = correct_for_water(after, spectrum) - correct_for_water(before, spectrum)
        added = fbp(lines, angles, self.kernel)
        degraded = np.clip(image + to_hu(added, side)[place], LOWEST, HIGHEST)
        return degraded, metal >= min(0.5, float(metal.max()))

    def params(self) -> dict[str, Any]:
        return as_params(self)


def transmission(paths: Mapping[str, Sinogram], spectrum: Spectrum) -> Sinogram:
    """The share of photons that pass `paths`, mm of each material (its density times length) by ray."""
    total = np.zeros(next(iter(paths.values())).shape, np.float32)
    for energy, weight in zip(spectrum.energies, spectrum.weights, strict=True):
        line = np.zeros_like(total)
        for material, path in paths.items():
            line += np.float32(linear_attenuation(material, energy)) * path
        total += np.float32(weight) * np.exp(-line)
    return np.maximum(total, np.float32(1e-30))  # its logarithm must be finite


def correct_for_water(lines: Sinogram, spectrum: Spectrum) -> Sinogram:
    """Line integrals of a polychromatic scan as they would be at the reference energy if all were water.

    Every scanner is calibrated so: what hardens the beam other than water does stays as an artifact.
    """
    millimetres = np.linspace(0, 3000, 6001)
    weights = np.array(spectrum.weights)
    measured = -np.log(np.exp(-np.outer(millimetres, spectrum.attenuation("water"))) @ weights)
    water = np.interp(lines, measured, millimetres) * linear_attenuation("water")
    return water.astype(np.float32)
