"""Restorations that agree with their input: with its physics, and with how much there is to restore.

A scan of low resolution holds the middle of k-space and nothing else. What it holds is right, so a restored
image must give the input back when it is degraded again; only the frequencies beyond are the network's guess.

How many views a CT needs grows with its pixels. In a small one, what looks like streaks to a network that was
mostly shown larger ones is anatomy: it is enlarged first. Where a CT has few streaks or little noise, most of
what the network would still change is anatomy: a small change is made smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from mie.editors.compact.kspace_lines import keep_lines
from mie.editors.compact.understanding import Question
from mie.images.overlay import is_grey
from mie.perspectives.transformation.physics.resolution import LowResolution
from mie.records import Pixels, Values

_WHITE: Final = 255
# Grey levels, root mean square: rounding alone gave up to .48, and images with finer detail 1.4 and more.
_MISFIT: Final = 0.7
_FITTING: Final = 4  # rounds in which the values that black and white cut off are looked for
_ROUNDS: Final = 12
_LEAST_CT: Final = 256  # pixels, of the longer side
_LEAST_MRI: Final = 64  # pixels, of the shorter side: fewer lines tell nothing
# Grey levels, root mean square: a change of this size is halved, smaller ones vanish, larger ones stay.
_HALVED: Final = {"ct_sparse_view": 4, "low_dose_ct_soft": 4, "low_dose_ct_sharp": 3}
_STEEPNESS: Final = 4
_LITTLE: Final = 0.5  # of a change: less is said


def least_view(image: Pixels, asked: Question | None) -> int:
    """The longer side at which the network must see an image; 0 where the image's own will do."""
    if asked is None or not asked.asks_for("ct_sparse_view") or max(image.shape[:2]) >= _LEAST_CT:
        return 0
    return _LEAST_CT


class Agreed(NamedTuple):
    image: Pixels  # (H, W, 3)
    facts: dict[str, Any]  # for `Edited.meta`
    note: str = ""


def agree(image: Pixels, residual: Iterable[Values], asked: Question | None) -> Agreed | None:
    """Return `image + 255 * residual`, `(H, W, 3)`, made to agree with what `image` measured.

    The residual is three maps `(H, W)`, whose mean counts. None where something else is asked for, and where
    the image does not tell what it measured: in colour, not coarse, or without lines left out.
    """
    if asked is None or not is_grey(image):
        return None
    grey = image[..., 0]
    if asked.asks_for("super_resolution"):
        factor = low_resolution_factor(grey)
        if factor is not None:
            result = keep_low_band(grey, _restored(grey, residual), factor)
            return Agreed(_as_image(result), {"factor": factor})
    elif asked.asks_for("mri_undersampling") and min(grey.shape) >= _LEAST_MRI:
        kept = keep_lines(grey, _restored(grey, residual))
        if kept is not None:
            return Agreed(_as_image(kept[0]), {"lines": round(kept[1], 4)})
    else:
        for key, halved in _HALVED.items():
            if asked.asks_for(key):
                restored = np.clip(_restored(grey, residual), 0, _WHITE)
                result, strength = weaken(grey, restored, halved)
                note = f"there is little to remove: {strength:.0%} of the change was made"
                facts = {"strength": round(strength, 4)}
                return Agreed(_as_image(result), facts, note if strength < _LITTLE else "")
    return None


def weaken(image: Pixels, restored: Values, halved: float) -> tuple[Values, float]:
    """Return `image` with a share of its change to `restored`, and that share: the smaller, the less.

    `restored` is `(H, W)` from black to white; of a change of `halved` grey levels half is made. The size of
    a change tells how much of it is right: streaks and noise add to it, and what the network mistakes for
    them is about the same in every image.
    """
    change = restored - image
    size = float(np.sqrt(np.square(change).mean()))
    share = size**_STEEPNESS / (size**_STEEPNESS + halved**_STEEPNESS)
    return np.asarray(image + share * change, np.float32), share


def _restored(grey: Pixels, residual: Iterable[Values]) -> Values:
    return np.asarray(grey + 255 * np.mean(list(residual), axis=0), np.float32)


def _as_image(grey: Values) -> Pixels:
    return np.repeat(np.rint(grey).astype(np.uint8)[..., None], 3, axis=2)


def low_resolution_factor(image: Pixels) -> int | None:
    """The factor by which the resolution of a grey image `(H, W)` was reduced, 4 or 2; None where it was not.

    k-space must be empty beyond, but for what rounding to 8 bits leaves there.
    """
    values = image.astype(np.float32)
    inside = (image > 0) & (image < _WHITE)
    if min(image.shape) < 2 * max(LowResolution.FACTORS) or not inside.any():
        return None
    for factor in sorted(LowResolution.FACTORS, reverse=True):
        coarse = LowResolution(factor)
        fit = coarse.apply(values)
        for _ in range(_FITTING):
            fit = coarse.apply(_uncut(values, fit))
        if float(np.square(fit - values).mean(where=inside)) < _MISFIT**2:
            return factor
    return None


def keep_low_band(image: Pixels, restored: Values, factor: int) -> Values:
    """The image nearest to `restored` `(H, W)` that is `image` at a resolution lower by `factor`, about.

    Projects in turn onto the images that agree with the measured band and onto those between black and white,
    with Nesterov's momentum. Ringing below black was cut off in the input: there any darker value agrees.
    """
    coarse, measured = LowResolution(factor), image.astype(np.float32)
    result = ahead = np.clip(restored, 0, _WHITE).astype(np.float32)
    pace = 1.0
    for _ in range(_ROUNDS):
        before, band = result, coarse.apply(ahead)
        result = ahead + coarse.apply(_uncut(measured, band) - band)
        np.clip(result, 0, _WHITE, out=result)
        faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
        ahead = result + np.float32((pace - 1) / faster) * (result - before)
        pace = faster
    return result


def _uncut(measured: Values, band: Values) -> Values:
    """`measured`, with the values of `band` where black or white may have cut them off."""
    cut = ((measured == 0) & (band < 0)) | ((measured == _WHITE) & (band > _WHITE))
    return np.where(cut, band, measured)
