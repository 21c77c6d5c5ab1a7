"""Projection and filtered back-projection of 512x512 at 180 angles against scikit-image, on one thread.

Outputs are compared first; then runs are interleaved and medians compared.

    OMP_NUM_THREADS=1 python bench/physics_ct.py [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import cv2
import numpy as np
from skimage.data import shepp_logan_phantom
from skimage.transform import iradon, radon, resize

from mie.perspectives.transformation.physics.ct import even_angles, fbp, project
from mie.perspectives.transformation.physics.ct_dose import LowDose, SparseView
from mie.perspectives.transformation.physics.ct_metal import MetalArtifact

SIZE, VIEWS = 512, 180
PROJECTION, RECONSTRUCTION = 5.0, 3.5


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(
    name: str, theirs: Callable[[], object], ours: Callable[[], object], repeats: int, least: float
) -> bool:
    """Print the two medians; True if theirs over ours is at least `least`."""
    ours()  # compiles
    pairs = [(seconds(theirs), seconds(ours)) for _ in range(repeats)]
    slow, fast = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(
        f"{name:<16} scikit-image {1e3 * slow:7.1f} ms   mie {1e3 * fast:7.1f} ms   {slow / fast:5.1f}x",
        end="",
    )
    print(f"   (at least {least})")
    return slow / fast >= least


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    cv2.setNumThreads(1)
    # The phantom reaches the circle's edge: a rim of two pixels keeps it inside.
    phantom = np.pad(resize(shepp_logan_phantom(), (SIZE - 4, SIZE - 4)), 2).astype(np.float32)
    angles = even_angles(VIEWS)
    sinogram = radon(phantom, angles)
    worst = float(np.abs(project(phantom, angles) - sinogram).max() / sinogram.max())
    print(f"largest difference of projections      {worst:.1e} of the maximum (limit 1e-5)")
    back = iradon(sinogram, angles)
    worst_back = float(np.abs(fbp(sinogram, angles, "ramp") - back).max() / np.ptp(back))
    print(f"largest difference of reconstructions  {worst_back:.1e} of the range (limit 1e-4)")
    fast = ratio(
        "projection",
        lambda: radon(phantom, angles),
        lambda: project(phantom, angles),
        repeats,
        PROJECTION,
    )
    fast &= ratio(
        "reconstruction",
        lambda: iradon(sinogram, angles),
        lambda: fbp(sinogram, angles, "ramp"),
        repeats,
        RECONSTRUCTION,
    )
    hu = cv2.resize(phantom, (256, 256), interpolation=cv2.INTER_AREA) * 1000 - 1000
    for effect in (LowDose(1e5), SparseView(60), MetalArtifact("hip", "iron", 5e6)):
        times = [
            seconds(lambda e=effect: e.apply(hu, np.random.default_rng(0), spacing=(1.4, 1.4)))
            for _ in range(5)
        ]
        print(f"{type(effect).__name__:<16} 256x256 {1e3 * statistics.median(times):7.1f} ms")
    if not fast or worst > 1e-5 or worst_back > 1e-4:
        sys.exit("slower or less exact than it may be")


if __name__ == "__main__":
    main()
