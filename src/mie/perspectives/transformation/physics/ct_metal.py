"""Metal in CT: beam hardening and photon starvation, computed energy by energy in the sinogram.

The metal is a filling, clip, hip prosthesis or screw, sized in millimetres. Each maker returns closed
outlines `(points, 2)` in mm, (x, y) about the implant's own origin, x to the right and y down as in the
picture. `place_metal` chooses where they go and renders how much of each pixel is metal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.errors import ConfigError, ImageError
from mie.perspectives.transformation.physics.ct import (
    KERNELS,
    Sinogram,
    Slice,
    Spectrum,
    check_slice,
    embed,
    enough_views,
    even_angles,
    fbp,
    hu_to_attenuation,
    linear_attenuation,
    project,
    tungsten_120kvp,
    water_and_bone,
)
from mie.perspectives.transformation.physics.ct_dose import AIR, log_uniform, measure, to_hu
from mie.perspectives.transformation.physics.severity import as_params, check_choice, check_ranges
from mie.records import Mask

Outline = NDArray[np.float64]

# Side of the sub-pixels in which outlines are filled, in mm: a clip of 1.2 mm must keep its area.
_FINE: Final = 0.1


def fillings(rng: np.random.Generator, ahead: float) -> list[Outline]:
    """One to four lumps of 3 to 7 mm along a jaw-like arc, each with an uneven edge."""
    outlines = []
    arc = rng.uniform(0, 2 * math.pi) + np.cumsum(rng.uniform(0.35, 1.0, rng.integers(1, 5)))
    centres = 28 * np.stack([np.cos(arc), np.sin(arc)], 1)
    for centre in centres - centres[0]:
        outlines.append(_disc(rng.uniform(3, 7), 0.18, rng) + centre)
    return outlines


def clips(rng: np.random.Generator, ahead: float) -> list[Outline]:
    """Two to six surgical clips, 6 to 10 mm long and about 1.3 mm thick, scattered over a resection bed."""
    outlines = []
    for _ in range(rng.integers(2, 7)):
        rod = _rod(rng.uniform(6, 10), rng.uniform(1.1, 1.6))
        outlines.append(_turn(rod, rng.uniform(0, math.pi)) + rng.normal(0, 14, 2))
    return outlines


def hip(rng: np.random.Generator, ahead: float) -> list[Outline]:
    """A femoral head of 28 to 36 mm, half the time with its neck and the start of the stem."""
    diameter = rng.uniform(28, 36)
    outlines = [_disc(diameter, 0.0, rng)]
    if rng.random() < 0.5:
        length, wide, narrow = rng.uniform(35, 55), rng.uniform(13, 17), rng.uniform(9, 12)
        taper = [[0, -wide / 2], [length, -narrow / 2], [length + 4, 0], [length, narrow / 2], [0, wide / 2]]
        outlines.append(_turn(np.array(taper), ahead + math.pi + rng.uniform(-0.7, 0.7)))
    return outlines


def screws(rng: np.random.Generator, ahead: float) -> list[Outline]:
    """A pair of threaded pedicle screws, 35 to 50 mm long, that converge in the direction `ahead`."""
    length, thick = rng.uniform(35, 50), rng.uniform(5.0, 6.5)
    apart, lean = rng.uniform(14, 18), rng.uniform(0.15, 0.4)
    outlines = []
    for side in (-1, 1):
        head = np.array([-length / 2, side * apart])
        outlines += [_turn(_turn(part, -side * lean) + head, ahead) for part in _screw(length, thick)]
    return outlines


KINDS: Final[dict[str, Callable[[np.random.Generator, float], list[Outline]]]] = {
    "fillings": fillings,
    "clips": clips,
    "hip": hip,
    "screws": screws,
}


def place_metal(kind: str, hu: Slice, side: float, rng: np.random.Generator) -> Slice:
    """The share 0..1 of each pixel (`side` mm) of the slice `(H, W)` that metal fills, all of it in the body.

    Fillings, hips and screws sit in bone where there is some, clips in soft tissue.
    """
    body = _body(hu, side)
    rows, columns = np.nonzero(_sites(kind, hu, body, side))
    if not rows.size:
        raise ImageError("no body to put metal into", expected="a slice with tissue", found="air only")
    across, down = np.nonzero(body)[::-1]
    centre = np.array([across.mean(), down.mean()])
    best = np.zeros(hu.shape, np.float32)
    for _ in range(20):
        chosen = rng.integers(rows.size)
        at = np.array([columns[chosen], rows[chosen]], np.float64)
        inward = centre - at
        outlines = [o / side + at for o in KINDS[kind](rng, math.atan2(inward[1], inward[0]))]
        if kind == "hip" and rng.random() < 0.35:  # both hips: the second mirrors the first
            outlines += [o * (-1, 1) + (2 * centre[0], 0) for o in outlines]
        share = _render(outlines, hu.shape, side)
        inside = share * body
        if inside.sum() > best.sum():
            best = inside
        if 0 < share.sum() < 1.02 * inside.sum():
            break
    return best


def _body(hu: Slice, side: float) -> NDArray[np.bool_]:
    """The largest thing that is not air, lungs included, the couch left out."""
    radius = max(1, round(4 / side))
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))
    solid = cv2.morphologyEx((hu > -400).astype(np.uint8), cv2.MORPH_OPEN, disc)
    outlines, _ = cv2.findContours(solid, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    filled = np.zeros(hu.shape, np.uint8)
    if outlines:
        cv2.drawContours(filled, [max(outlines, key=cv2.contourArea)], -1, 1, cv2.FILLED)
    return filled > 0


def _sites(kind: str, hu: Slice, body: NDArray[np.bool_], side: float) -> NDArray[np.bool_]:
    """Pixels where the implant's origin may lie."""
    depth = cv2.distanceTransform(np.pad(body, 1).astype(np.uint8), cv2.DIST_L2, 5)[1:-1, 1:-1] * side
    # Not in lungs or bowel gas; deep inside, but somewhere even in a finger.
    tissue = body & (hu > -150) & (depth > min(15.0, 0.6 * float(depth.max())))
    bone = tissue & (hu > (600 if kind == "fillings" else 250))
    if kind == "clips":
        return tissue & (hu < 150)
    if bone.sum() * side**2 < 30:
        return tissue
    if kind == "fillings":
        return bone
    window = max(3, round(25 / side))
    density = cv2.blur(bone.astype(np.float32), (window, window), borderType=cv2.BORDER_CONSTANT) * tissue
    if kind == "hip":  # to the side: not in the spine, if there is other bone
        columns = np.nonzero(body)[1]
        off = np.abs(np.arange(hu.shape[1]) - columns.mean()) > 0.2 * np.ptp(columns)
        if (bone & off).any():
            density *= off
    return density > (0.9 if kind == "screws" else 0.6) * density.max()


def _render(outlines: list[Outline], shape: tuple[int, ...], side: float) -> Slice:
    """The share of each pixel that the outlines (in pixels, centres at whole numbers) cover together."""
    share = np.zeros(shape, np.float32)
    points = np.concatenate(outlines)
    left, top = np.clip(np.floor(points.min(0)), 0, None).astype(int)
    right, bottom = np.minimum(np.ceil(points.max(0)).astype(int) + 1, shape[::-1])
    if left >= right or top >= bottom:
        return share
    parts = math.ceil(side / _FINE)
    fine = np.zeros(((bottom - top) * parts, (right - left) * parts), np.uint8)
    for outline in outlines:
        # The middle of pixel 0 is that of `parts` sub-pixels; fillPoly counts in their 1/16.
        sub = (outline - (left, top) + 0.5) * parts - 0.5
        cv2.fillPoly(fine, [np.rint(sub * 16).astype(np.int32)], 255, shift=4)
    covered = cv2.resize(fine, (right - left, bottom - top), interpolation=cv2.INTER_AREA)
    share[top:bottom, left:right] = covered / np.float32(255)
    return share


def _disc(diameter: float, uneven: float, rng: np.random.Generator) -> Outline:
    """A disc whose radius varies smoothly by the share `uneven`."""
    turn = np.linspace(0, 2 * math.pi, 72, endpoint=False)
    radius = np.full(72, diameter / 2)
    for waves in (2, 3, 5):
        radius *= 1 + uneven * rng.uniform(-1, 1) * np.cos(waves * turn + rng.uniform(0, 2 * math.pi))
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], 1)


def _rod(length: float, thick: float) -> Outline:
    x, y = length / 2, thick / 2
    return np.array([[-x, -y], [x, -y], [x, y], [-x, y]])


def _screw(length: float, thick: float) -> list[Outline]:
    """Head and threaded shaft (pitch 2.5 mm, 0.6 mm deep) along x, from the head at 0 to the tip."""
    along = np.arange(0, length - 5, 1.25)
    edge = thick / 2 - 0.6 * (np.arange(len(along)) % 2)
    upper, lower = np.stack([along, -edge], 1), np.stack([along, edge], 1)
    shaft = np.concatenate([upper, [[length, 0]], lower[::-1]])
    return [shaft, _rod(10, 1.9 * thick) - np.array([4, 0])]


def _turn(points: Outline, angle: float) -> Outline:
    c, s = math.cos(angle), math.sin(angle)
    return points @ np.array([[c, s], [-s, c]])


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
