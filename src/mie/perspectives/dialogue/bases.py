"""What overlays can lie on: the image itself, a degraded or differently windowed one, one without its lesion.

Each comes from the perspective that knows how to make it. Its sentence ("Denoise this MRI slice.") is that
perspective's too, or one that is said in conversations alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mie.images.resize import resize_mask
from mie.perspectives.dialogue.state import ORIGINAL, Operation, without_name
from mie.perspectives.transformation import phrasings
from mie.perspectives.transformation.samples import PairGate
from mie.records import Case, Mask, Pixels, Sample

if TYPE_CHECKING:
    from mie.perspectives.perspective import Recipe

_SCALED: Final = "train"  # the split in which other perspectives scale to the bins
_WINDOW: Final = "CT window"
# What is said in a conversation beside the phrasings of transformation, by its targets. Of those, every word
# in `named` must be there.
SPOKEN: Final[Mapping[str, tuple[str, ...]]] = {
    "low_dose_ct_soft": (
        "Before we start: denoise this low-dose CT, it has a soft kernel.",
        "Too much quantum noise for a soft-kernel CT; take it out first.",
    ),
    "low_dose_ct_sharp": (
        "Before we start: denoise this low-dose CT, it has a sharp kernel.",
        "Too much quantum noise for a sharp-kernel CT; take it out first.",
    ),
    "mri_noise": (
        "First get the noise out of this MRI.",
        "Before I mark anything, denoise this MRI slice for me.",
    ),
    "ultrasound_speckle": (
        "First take the speckle down in this ultrasound.",
        "Before I mark anything, despeckle this ultrasound for me.",
    ),
    "oct_speckle": (
        "First take the speckle out of this OCT.",
        "Before I mark anything, denoise this OCT scan for me.",
    ),
    "ct_metal": (
        "First remove the metal artifact from this CT.",
        "Before I mark anything, take the metal streaks out of this CT.",
    ),
    "ct_sparse_view": (
        "First remove the sparse-view streaks from this CT.",
        "Before I mark anything, clean up this sparse-view CT.",
    ),
    "mri_motion": (
        "First correct the motion artifact of this MRI.",
        "Before I mark anything, remove the motion ghosts from this MRI.",
    ),
    "mri_bias_field": (
        "First correct the bias field of this MR slice.",
        "Before I mark anything, remove the bias field from this MRI.",
    ),
    "mri_undersampling": (
        "First remove the aliasing from this accelerated MRI.",
        "Before I mark anything, remove the undersampling artifacts from this MRI.",
    ),
    "dermoscopy_artifacts": (
        "First remove {artifacts} from this picture of the skin.",
        "Before I mark anything, take {artifacts} off this dermoscopic image.",
    ),
    "ct_window": (
        "Let me see this CT in the {window} window: level {level}, width {width}.",
        "The {window} window, please, level {level} and width {width}.",
    ),
    "super_resolution": (
        "First super-resolve this MRI {factor}x.",
        "Before I mark anything, apply {factor}x super-resolution to this MRI.",
    ),
}


@dataclass(frozen=True, slots=True)
class Bases:
    """The bases of one conversation by name, how each is asked for, and how it was made."""

    images: Mapping[str, Pixels]
    start: str = ORIGINAL
    windows: tuple[str, ...] = ()
    removable: tuple[str, ...] = ()  # targets
    holes: Mapping[str, Mask] = field(default_factory=dict)  # base -> where it differs from the original
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    wordings: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # base -> (phrasing, sentence)

    def wording(self, operation: Operation) -> tuple[str, str]:
        return self.wordings[operation.base or ""]


@dataclass(frozen=True, slots=True)
class Sources:
    """Which conversations have more than one base, and where these come from."""

    share: float = 0.0
    transformation: Recipe | None = None
    modification: Recipe | None = None

    def draw(self, case: Case, plain: Pixels, bin_: int, draw: np.random.Generator) -> Bases:
        """The bases of a conversation about this case; often the image alone, `plain`."""
        only = Bases({ORIGINAL: plain})
        recipes = [r for r in (self.transformation, self.modification) if r is not None]
        if not recipes or draw.random() >= self.share:
            return only
        seed = int(draw.integers(2**31))
        for at in draw.permutation(len(recipes)).tolist():  # what one cannot use may suit another
            samples = [s for s in recipes[at].samples(case, _SCALED, seed) if isinstance(s, Sample)]
            sample = samples[0] if samples else None
            if sample is None or max(sample.input.shape[:2]) != bin_:
                continue
            is_removal = recipes[at] is self.modification
            made = _removal(sample, plain) if is_removal else _transformed(sample, draw)
            if made is not None:
                return made
        return only


def _transformed(sample: Sample, draw: np.random.Generator) -> Bases | None:
    if PairGate()(sample) is not None:
        return None
    facts = {"made_by": "transformation", "target": sample.target, **sample.params}
    wording = _spoken(sample, draw)
    if sample.target == _WINDOW:
        name = f"window: {sample.params.get('named', [''])[0]}"
        images = {ORIGINAL: sample.input, name: sample.target_image}
        return Bases(images, windows=(name,), facts={name: facts}, wordings={name: wording})
    name = f"degraded: {sample.target}"
    images = {name: sample.input, ORIGINAL: sample.target_image}
    return Bases(images, start=name, facts={ORIGINAL: facts}, wordings={ORIGINAL: wording})


def _spoken(sample: Sample, draw: np.random.Generator) -> tuple[str, str]:
    """The sample's own phrasing and sentence, or one of `SPOKEN`: each phrasing with about equal chance."""
    key = str(sample.params["key"])
    spoken = SPOKEN.get(key, ())
    at = int(draw.integers(len(phrasings.PHRASINGS[key]) + len(spoken)))
    if at >= len(spoken):
        return sample.prompt_template, sample.prompt
    words = dict(zip(phrasings.NAMED.get(key, ()), sample.params["named"], strict=True))
    return spoken[at], spoken[at].format(**words)


def _removal(sample: Sample, plain: Pixels) -> Bases | None:
    """None where the counterfactual is not of this very image, or removes several targets at once."""
    if sample.mask is None or "," in sample.target or not np.array_equal(sample.input, plain):
        return None
    name = without_name(sample.target)
    hole = resize_mask(sample.mask > 0, (plain.shape[0], plain.shape[1]))
    return Bases(
        {ORIGINAL: plain, name: sample.target_image},
        removable=(sample.target,),
        holes={name: hole},
        facts={name: {"made_by": "modification", "inpainter": sample.params.get("inpainter")}},
        wordings={name: (sample.prompt_template, sample.prompt)},
    )
