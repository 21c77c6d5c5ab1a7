"""One simulated pair: a clean image scaled, degraded where the effect happens, and both shown alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.core.hashing import generator, stable_hash
from mie.errors import ImageError
from mie.images.resize import resize_values, scaled_image
from mie.images.windows import (
    FULL_RANGE,
    WINDOWS,
    CtWindow,
    apply_window,
    find_ct_window,
    percentiles_of,
    through_ct_window,
)
from mie.perspectives.perception.phrasings import listed
from mie.perspectives.transformation.physics.resolution import at_acquired_size
from mie.perspectives.transformation.targets import TransformTarget
from mie.records import Case, Pixels, Values

_HEAD: Final = ("brain", "head")
# What a surgeon or dentist leaves there.
_METAL: Final = {"head": ("fillings", "clips"), "pelvis": ("hip", "screws"), "body": ("clips", "screws")}
_PELVIS: Final = ("pelvis", "hip", "prostate", "bladder")
# A pixel is coloured when its channels differ by more levels than JPEG's colour sampling leaves on grey; an
# image is, when more than this share of its pixels are (the rest is the scanner's menu).
_COLOURED: Final = (24, 0.02)
# The scan's width where the file does not say, in mm.
_FIELD_OF_VIEW: Final = {"head": 230.0, "body": 360.0}
# In which windows each target is shown: grain of a sharp kernel is read in lung and bone.
_SHOWN_IN: Final = {"low_dose_ct_sharp": {"head": ("bone",), "body": ("lung", "bone")}}
_SHOWN: Final = {"head": ("brain",), "body": ("abdomen", "mediastinum")}
_SUITED: Final = {
    "head": ("bone", "brain", "stroke"),
    "body": ("lung", "mediastinum", "bone", "abdomen", "liver"),
}
# The input's window is wider than the wanted one: enough to see it, and leaving 20 grey levels inside it.
_WIDER: Final = (1.5, 12.0)
_AIR_HU: Final = -1024.0
# A picture whose black is brighter than this, in HU, shows air and lung as black: up to so many grey levels.
_SOFT_FROM: Final = -500.0
_BLACK: Final = 4
_ARTIFACTS: Final = {
    "hairs": "hair",
    "ruler": "ruler marks",
    "bubbles": "gel bubbles",
    "frame": "vignetting",
    "ink": "pen marks",
}


@dataclass(frozen=True, slots=True)
class Made:
    """The two images, what made them, and the words that a phrasing may use."""

    input: Pixels
    target_image: Pixels
    params: dict[str, Any]
    words: dict[str, Any]


def hounsfield_missing(target: TransformTarget, case: Case) -> str | None:
    """Why this CT cannot be used for the target; None where it can or needs no Hounsfield units."""
    if target.domain != "HU" and target.key != "ct_window":
        return None
    if case.units == "HU" or (case.hu_range is not None and target.domain == "HU"):
        return None
    found = "an 8-bit picture" if case.values is None else "values without rescale and without air"
    return f"no Hounsfield units: found {found}, needs {target.needs}"


def window_variants(anatomy: str, asked: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    for name in asked or _SUITED[_region(anatomy)]:
        yield {"window": name}


def as_acquired(case: Case) -> Case:
    """An MR case whose image, if it was enlarged, has the size it was acquired at; in colour, as it is."""
    try:
        grey = _one_channel(case.image)
    except ImageError:
        return case  # the simulators say what is wrong with it
    small = at_acquired_size(grey)
    if small is grey:
        return case
    spacing = case.spacing
    if spacing is not None:
        spacing = (spacing[0] * len(grey) / len(small), spacing[1] * grey.shape[1] / small.shape[1])
    step = {"step": "acquired size", "height": small.shape[0], "width": small.shape[1]}
    return replace(case, image=_rgb(small), spacing=spacing, steps=(*case.steps, step))


def simulate(
    target: TransformTarget,
    fixed: Mapping[str, Any],
    case: Case,
    size: tuple[int, int],
    rng: np.random.Generator,
) -> Made:
    """The case at `size`, clean and degraded. Everything random comes from `rng`."""
    if target.key == "ct_window":
        return _windowed(case, size, find_ct_window(fixed["window"]), rng)
    effect, params = _drawn(target, fixed, case, rng)
    if target.domain == "HU":
        clean, degraded, facts = _hounsfield(target, effect, case, size, rng)
    elif target.domain == "magnitude":
        clean, degraded, facts = _magnitude(effect, case, size, rng)
    elif target.domain == "colour":
        clean, facts = scaled_image(case.image, size), _steps(case)
        degraded = effect.apply(clean, rng)
    else:
        shown, facts = _one_channel(scaled_image(case.image, size)), _steps(case)
        clean, degraded = _rgb(shown), _rgb(effect.apply(shown, rng))
    return Made(degraded, clean, {**params, **facts}, _words(target, effect))


def _drawn(
    target: TransformTarget, fixed: Mapping[str, Any], case: Case, rng: np.random.Generator
) -> tuple[Any, dict[str, Any]]:
    """An effect of a severity that suits the case, and its parameters."""
    if target.key == "ct_metal" and "kind" not in fixed:
        place = "pelvis" if case.anatomy in _PELVIS else _region(case.anatomy)
        fixed = {**fixed, "kind": str(rng.choice(_METAL[place]))}
    effect = target.simulator().draw(rng, **fixed)
    return effect, {"made": "simulation", "effect": type(effect).__name__, **effect.params()}


def simulate_volume(
    target: TransformTarget,
    fixed: Mapping[str, Any],
    cases: Sequence[Case],
    size: tuple[int, int],
    seed: int,
) -> Iterator[Made]:
    """The slices of one volume, clean and degraded by one effect: one dose, bias field, history of motion.

    Noise is each slice's own; everything else that is drawn is the same in all of them. All are shown in one
    window.
    """

    def volume_rng() -> np.random.Generator:
        return generator(seed)

    if target.key == "ct_window":
        goal = find_ct_window(fixed["window"])
        for case in cases:
            yield _windowed(case, size, goal, volume_rng())
        return
    effect, params = _drawn(target, fixed, cases[0], volume_rng())
    words = _words(target, effect)
    if target.domain == "magnitude":
        yield from _magnitude_volume(effect, params, words, cases, size, stable_hash("volume", seed))
        return
    for at, case in enumerate(cases):
        # No two slices share their noise; a fault of the scanner they do.
        own = generator(stable_hash("slice", seed, at if getattr(effect, "NOISE", False) else 0))
        if target.domain == "HU":
            clean, degraded, facts = _hounsfield(target, effect, case, size, volume_rng(), own)
        else:
            shown, facts = _one_channel(scaled_image(case.image, size)), _steps(case)
            clean, degraded = _rgb(shown), _rgb(effect.apply(shown, own))
        yield Made(degraded, clean, {**params, **facts}, words)


def _magnitude_volume(
    effect: Any,
    params: Mapping[str, Any],
    words: Mapping[str, Any],
    cases: Sequence[Case],
    size: tuple[int, int],
    seed: int,
) -> Iterator[Made]:
    stack = scratch.zeros((len(cases), *size), np.float32)
    for at, case in enumerate(cases):
        stack[at] = _one_channel(scaled_image(case.image, size))
        scratch.give_back()
    if hasattr(effect, "apply_volume"):
        degraded = effect.apply_volume(stack, generator(seed))
    else:
        degraded = scratch.zeros(stack.shape, np.float32)
        for at, one in enumerate(stack):
            degraded[at] = effect.apply(one, generator(seed))
    high = max(255.0, float(percentiles_of(degraded, 99.5)))
    window = {"step": "window", "low": 0.0, "high": high}
    for case, clean, worse in zip(cases, stack, degraded, strict=True):
        facts = _steps(case)
        if high > 255:
            facts["image_steps"].append(window)
        shown = [_rgb(apply_window(values, window)) for values in (worse, clean)]
        yield Made(shown[0], shown[1], {**params, **facts}, dict(words))
        scratch.give_back()


def _words(target: TransformTarget, effect: Any) -> dict[str, Any]:
    if target.key == "dermoscopy_artifacts":
        return {"artifacts": listed([_ARTIFACTS[kind] for kind in effect.kinds])}
    if target.key == "ct_sparse_view":
        return {"views": str(effect.views)}
    if target.key == "mri_undersampling":
        return {"factor": f"{1 / effect.fraction:.1f}".removesuffix(".0")}
    if target.key == "super_resolution":
        return {"factor": str(effect.factor)}
    return {}


def _hounsfield(
    target: TransformTarget,
    effect: Any,
    case: Case,
    size: tuple[int, int],
    rng: np.random.Generator,
    noise: np.random.Generator | None = None,
) -> tuple[Pixels, Pixels, dict[str, Any]]:
    """Clean, degraded and facts; what the effect draws comes from `noise`, where it is given."""
    side, assumed = _pixel_side(case, size)
    facts: dict[str, Any] = {"pixel_mm": side}
    if assumed:
        facts["assumed"] = {"field_of_view_mm": _FIELD_OF_VIEW[_region(case.anatomy)]}
    if case.units == "HU" and case.values is not None:
        values = resize_values(case.values, size)
        air = np.zeros(values.shape, bool)
        names = _SHOWN_IN.get(target.key, _SHOWN)[_region(case.anatomy)]
        window = WINDOWS[str(rng.choice(names))]
        facts |= _steps(case, window)

        def show(hu: Values) -> Pixels:
            return _rgb(through_ct_window(hu, window.level, window.width))
    else:
        assert case.hu_range is not None  # noqa: S101 (hounsfield_missing has looked)
        low, high = case.hu_range
        facts["assumed"] = {**facts.get("assumed", {}), "hu_range": [low, high]}
        facts |= _steps(case)
        grey = _one_channel(scaled_image(case.image, size))
        values = (low + grey.astype(np.float32) * ((high - low) / 255)).astype(np.float32)
        air = (grey <= _BLACK) & (low > _SOFT_FROM)

        def show(hu: Values) -> Pixels:
            return _rgb(apply_window(hu, {"low": low, "high": high}))

    degraded = effect.apply(np.where(air, np.float32(_AIR_HU), values), noise or rng, spacing=(side, side))
    # Most noise of air is darker than what the picture shows.
    degraded[air] = np.maximum(degraded[air], values[air])
    return show(values), show(degraded), facts


def _magnitude(
    effect: Any, case: Case, size: tuple[int, int], rng: np.random.Generator
) -> tuple[Pixels, Pixels, dict[str, Any]]:
    clean = _one_channel(scaled_image(case.image, size)).astype(np.float32)
    degraded = effect.apply(clean, rng)
    # One window for both: a bias field can make tissue brighter than white, and must not be cut off there.
    high = max(255.0, float(np.percentile(degraded, 99.5)))
    window = {"step": "window", "low": 0.0, "high": high}
    facts = _steps(case)
    if high > 255:
        facts["image_steps"].append(window)
    return _rgb(apply_window(clean, window)), _rgb(apply_window(degraded, window)), facts


def _windowed(case: Case, size: tuple[int, int], goal: CtWindow, rng: np.random.Generator) -> Made:
    """From a wider window to the wanted one: what the input hides cannot be asked for."""
    assert case.values is not None  # noqa: S101 (hounsfield_missing has looked)
    values = resize_values(case.values, size)
    wider = [w for w in (FULL_RANGE, *WINDOWS.values()) if w != goal and _shows(w, goal)]
    source = wider[int(rng.integers(len(wider)))]
    shown = [_rgb(through_ct_window(values, w.level, w.width)) for w in (source, goal)]
    params = {"made": "window", "from": dict(source.step()), **_steps(case, goal)}
    words = {"window": goal.name, "level": f"{goal.level:g}", "width": f"{goal.width:g}"}
    return Made(shown[0], shown[1], params, words)


def _shows(window: CtWindow, goal: CtWindow) -> bool:
    low = max(goal.low, _AIR_HU)
    inside = window.low <= low + 0.1 * goal.width and window.high >= goal.high - 0.1 * goal.width
    return inside and _WIDER[0] <= window.width / goal.width <= _WIDER[1]


def _region(anatomy: str) -> str:
    return "head" if anatomy in _HEAD else "body"


def _pixel_side(case: Case, size: tuple[int, int]) -> tuple[float, bool]:
    """Millimetres between pixels at the stored size, and whether that is a guess."""
    longer = max(case.image.shape[:2])
    if case.spacing is None:
        return _FIELD_OF_VIEW[_region(case.anatomy)] / max(size), True
    return float(np.mean(case.spacing)) * longer / max(size), False


def _steps(case: Case, window: CtWindow | None = None) -> dict[str, Any]:
    """The case's steps; with a window of our own in the place of its."""
    steps = [dict(s) for s in case.steps if window is None or s["step"] != "window"]
    return {"image_steps": steps if window is None else [*steps, dict(window.step())]}


def _one_channel(image: Pixels) -> NDArray[np.uint8]:
    """The grey of an image that is grey but for compression and a few coloured marks."""
    levels, share = _COLOURED
    coloured = float((np.ptp(image, axis=2) > levels).mean())
    if coloured > share:
        raise ImageError(
            "a colour image was given to physics that knows grey values only",
            expected=f"at most {share:.0%} coloured pixels",
            found=f"{coloured:.1%}",
            fix="check the data set's modality",
        )
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), np.uint8)


def _rgb(grey: NDArray[np.uint8]) -> Pixels:
    return np.repeat(grey[..., None], 3, axis=2)
