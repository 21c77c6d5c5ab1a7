"""How a clinician would ask for each transformation: at least ten phrasings per target.

Places: {picture} the modality's noun ("CT slice"), {anatomy}; {views} of a sparse-view CT; {artifacts} over
the skin; {source} and {goal} of a transfer ("T1-weighted MRI"), {a_goal} with its article; {window} and
{a_window}, {level} and {width}; {factor}.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any, Final

from mie.vocabulary import MODALITIES

PHRASINGS: Final[dict[str, tuple[str, ...]]] = {
    "low_dose_ct_soft": (
        "Denoise this low-dose CT, soft kernel.",
        "Remove the quantum noise from this low-dose CT reconstructed with a soft kernel.",
        "This is a low-dose scan, soft-tissue kernel: show it as at full dose.",
        "Reduce the noise of this low-dose CT slice and keep the soft kernel's texture.",
        "Restore the full-dose image from this soft-kernel low-dose CT.",
        "Clean up the grain in this low-dose {anatomy} CT (soft kernel).",
        "Give me the normal-dose version of this soft-kernel slice.",
        "Suppress the photon noise in this soft-kernel CT slice without blurring edges.",
        "Low dose, soft kernel: please denoise.",
        "Make this soft-kernel low-dose CT as quiet as a standard-dose scan.",
        "Take the dose noise out of this soft-kernel CT slice of the {anatomy}.",
    ),
    "low_dose_ct_sharp": (
        "Denoise this low-dose CT, sharp kernel.",
        "Remove the quantum noise from this low-dose CT reconstructed with a sharp kernel.",
        "This is a low-dose scan, sharp kernel: show it as at full dose.",
        "Reduce the noise of this low-dose CT slice and keep the sharp kernel's detail.",
        "Restore the full-dose image from this sharp-kernel low-dose CT.",
        "Clean up the grain in this low-dose {anatomy} CT (sharp kernel).",
        "Give me the normal-dose version of this sharp-kernel slice.",
        "Suppress the photon noise in this sharp-kernel CT slice; fine structures must stay.",
        "Low dose, sharp kernel: please denoise.",
        "Make this sharp-kernel low-dose CT as quiet as a standard-dose scan.",
        "Take the dose noise out of this sharp-kernel CT slice of the {anatomy}.",
    ),
    "mri_noise": (
        "Denoise this MRI slice.",
        "Remove the Rician noise from this {anatomy} MRI.",
        "This MRI has a poor signal-to-noise ratio: clean it up.",
        "Suppress the thermal noise in this MR image and keep the fine detail.",
        "Show this MRI as if it had been averaged over many acquisitions.",
        "Reduce the grain in this MRI slice.",
        "Give me a noise-free version of this MR image.",
        "The background of this MRI should be black, not noisy: denoise it.",
        "Restore this noisy MRI of the {anatomy}.",
        "Raise the signal-to-noise ratio of this MRI slice without blurring it.",
        "Please filter the noise out of this MR slice.",
    ),
    "ultrasound_speckle": (
        "Reduce the speckle in this ultrasound image.",
        "Despeckle this {anatomy} ultrasound.",
        "Remove the speckle noise and keep the boundaries.",
        "Smooth the speckle of this B-mode image without losing edges.",
        "Suppress the speckle so that the contours of the {anatomy} are easier to see.",
        "This ultrasound is too grainy: take the speckle out.",
        "Show this sonogram with less speckle, as after compounding.",
        "Clean the speckle from this ultrasound image.",
        "Apply speckle reduction to this sonogram.",
        "Give me a despeckled version of this ultrasound.",
        "Filter the multiplicative speckle out of this B-mode picture.",
    ),
    "oct_speckle": (
        "Denoise this OCT B-scan.",
        "Remove the speckle from this OCT image.",
        "Show this single OCT frame as the average of many frames.",
        "Despeckle this {anatomy} OCT and keep the layers sharp.",
        "Reduce the speckle so that the retinal layers can be told apart.",
        "Clean up this noisy OCT scan.",
        "Give me the averaged version of this OCT B-scan.",
        "Suppress the speckle noise in this OCT without smearing the layer borders.",
        "This OCT frame is noisy: restore it.",
        "Improve this OCT as frame averaging would.",
        "Take the speckle out of this B-scan of the {anatomy}.",
    ),
    "ct_metal": (
        "Remove the metal artifact from this CT slice.",
        "Reduce the streaks caused by metal in this CT.",
        "Correct the metal artifacts and restore the tissue hidden by them.",
        "Apply metal artifact reduction to this CT of the {anatomy}.",
        "The metal implant throws bright and dark bands across this slice: remove them.",
        "Show this CT as it would look without the metal.",
        "Take out the beam-hardening streaks around the metal.",
        "Clean this CT slice of metal streaks.",
        "Restore the {anatomy} CT that the metal has spoilt.",
        "Get rid of the metal and its streak artifacts.",
        "Undo the photon starvation behind the metal in this CT.",
    ),
    "ct_sparse_view": (
        "Remove the streaks of this sparse-view CT.",
        "This CT was reconstructed from {views} views only: remove the streaks.",
        "Restore the full-view image from this {views}-view reconstruction.",
        "Correct the sparse-view artifacts ({views} projections) in this CT slice.",
        "Take the view-aliasing streaks out of this CT of the {anatomy}.",
        "Show this sparse-view CT as if all projections had been measured.",
        "Reconstructed from {views} projections: please clean up the streaks.",
        "Suppress the undersampling streaks of this sparse-view CT.",
        "Make this {views}-view CT look like a full scan.",
        "Get rid of the fine streak pattern from too few projections.",
        "Repair this few-view CT reconstruction.",
    ),
    "mri_motion": (
        "Remove the motion artifact from this MRI.",
        "The patient moved during this MRI: correct it.",
        "Take out the ghosting in this MR image.",
        "Correct the motion ghosts along the phase-encoding direction.",
        "Show this MRI as if the patient had lain still.",
        "Remove the blurring and ghosts that patient motion left in this {anatomy} MRI.",
        "Please do a motion correction on this MR slice.",
        "Restore this motion-corrupted MRI.",
        "Suppress the ringing and ghosts from patient motion.",
        "Make this MRI free of motion artifacts.",
        "Undo the motion in this scan of the {anatomy}.",
    ),
    "mri_bias_field": (
        "Correct the bias field of this MRI.",
        "Remove the intensity inhomogeneity from this MR image.",
        "Even out the shading in this {anatomy} MRI.",
        "Apply a bias field correction, as N4 would.",
        "The coil makes one side of this MRI brighter: make it uniform.",
        "Flatten the signal non-uniformity of this MR slice.",
        "Take out the smooth shading from the receive coil.",
        "Make the same tissue equally bright everywhere in this MRI.",
        "Correct the B1 inhomogeneity in this MR image.",
        "Give me this MRI without the bias field.",
        "Homogenise the intensity of this MRI slice.",
    ),
    "mri_undersampling": (
        "Remove the aliasing from this undersampled MRI.",
        "This MRI was accelerated {factor} times: reconstruct it as if fully sampled.",
        "Restore the fully sampled image from this {factor}-fold undersampled MRI.",
        "Take out the undersampling artifacts (acceleration {factor}) in this MR slice.",
        "Clean up the aliasing of this {factor}x accelerated scan.",
        "Show this {anatomy} MRI with all k-space lines measured; it was undersampled by {factor}.",
        "Correct the fold-over and blur of this undersampled acquisition.",
        "Reconstruct this zero-filled MRI, acceleration factor {factor}.",
        "Suppress the incoherent aliasing in this accelerated MRI.",
        "Make this {factor}x undersampled MRI look fully sampled.",
        "Fill in what the missing k-space lines cost this MRI.",
    ),
    "dermoscopy_artifacts": (
        "Remove {artifacts} from this dermoscopic image.",
        "Take {artifacts} out of the picture and keep the lesion as it is.",
        "Clean this dermoscopy image: no {artifacts}, please.",
        "Show the skin without {artifacts}.",
        "Erase {artifacts} and restore the skin beneath.",
        "Digitally remove {artifacts} before I assess the lesion.",
        "Get rid of {artifacts} in this dermoscopic image.",
        "I need this lesion without {artifacts}.",
        "Inpaint {artifacts} so that only skin and lesion remain.",
        "Restore what lies under {artifacts}.",
        "Retouch {artifacts} away; do not touch the lesion.",
    ),
    "ct_mri": (
        "Turn this {source} into the matching {goal}.",
        "Synthesise {a_goal} of the same slice from this {source}.",
        "What would this slice look like on {goal}?",
        "Convert this {anatomy} {source} to {goal}.",
        "Generate the {goal} that corresponds to this {source}.",
        "Show the same section as {a_goal}.",
        "Translate this {source} into {a_goal}.",
        "From this {source}, predict the {goal} of the same level.",
        "I only have the {source}: make the {goal}.",
        "Render this {anatomy} slice as {goal}.",
        "Give me a synthetic {goal} for this {source}.",
    ),
    "mri_sequence": (
        "Turn this {source} into {a_goal}.",
        "Synthesise the {goal} of the same slice from this {source}.",
        "What would this slice look like as {a_goal}?",
        "Convert this {anatomy} {source} to {goal}.",
        "Generate the missing {goal} from this {source}.",
        "Show the same section as {a_goal}.",
        "The {goal} was not acquired: predict it from the {source}.",
        "From this {source}, make the {goal} of the same level.",
        "Change the contrast of this {source} to that of {a_goal}.",
        "Render this {anatomy} slice as {a_goal}.",
        "Give me a synthetic {goal} for this {source}.",
    ),
    "mri_pet": (
        "Turn this {source} into the matching {goal} image.",
        "Synthesise the {goal} image of the same slice from this {source}.",
        "What would the {goal} of this slice look like?",
        "Predict the tracer uptake: make {a_goal} image from this {anatomy} {source}.",
        "Generate the {goal} image that corresponds to this {source}.",
        "Show the same section as {a_goal} image in false colour.",
        "Translate this {source} into {a_goal} image.",
        "From this {source}, estimate the {goal} image of the same level.",
        "No {goal} was done: synthesise it from the {source}.",
        "Render the metabolism of this slice as {goal} would show it.",
        "Give me a synthetic {goal} image for this {source}.",
    ),
    "ct_window": (
        "Show this CT in the {window} window (level {level}, width {width}).",
        "Switch to the {window} window, L {level} W {width}.",
        "Apply {a_window} window with level {level} HU and width {width} HU.",
        "Re-window this {anatomy} CT for {window}: centre {level}, width {width}.",
        "Display the slice with {window} settings, window width {width}, window level {level}.",
        "Change the window to {window} (WL {level}, WW {width}).",
        "I want to read this slice in the {window} window: {width} wide, centred at {level} HU.",
        "Set window level {level} and window width {width}, the {window} preset.",
        "Use the {window} preset (C {level}, W {width}) for this CT slice.",
        "Adjust the contrast of this CT to {a_window} window, level {level}, width {width}.",
        "Please hang this image in {window} window, WW/WL {width}/{level}.",
    ),
    "ct_phase": (
        "Turn this {source} CT into the {goal}.",
        "Synthesise the {goal} from this {source} CT slice.",
        "What would this {source} slice look like in the {goal}?",
        "Show this slice in the {goal} instead of the {source}.",
        "Generate the missing {goal} image from the {source}.",
        "Change the contrast phase from {source} to {goal}.",
        "Predict the {goal} enhancement of this {anatomy} CT; this is the {source}.",
        "From the {source}, make the {goal} of the same level.",
        "Only the {source} was scanned: give me the {goal}.",
        "Render this {source} CT of the {anatomy} as {goal}.",
        "Convert {source} to {goal}.",
    ),
    "super_resolution": (
        "Increase the resolution of this {picture} by a factor of {factor}.",
        "Super-resolve this MRI x{factor}.",
        "This MRI was acquired at 1/{factor} of the resolution: restore the detail.",
        "Sharpen this low-resolution {anatomy} MRI, factor {factor}.",
        "Give me this slice with {factor} times the resolution.",
        "Recover the {factor}x finer image from this coarse MRI.",
        "Apply {factor}x super-resolution.",
        "Undo the k-space truncation (factor {factor}) of this MRI.",
        "Make the fine structures of the {anatomy} visible: upscale the detail {factor}x.",
        "Reconstruct the high-resolution MRI from this {factor}x lower-resolution scan.",
        "The matrix was {factor} times too small: show the full-resolution image.",
    ),
}  # fmt: skip

DESCRIPTIONS: Final[dict[str, str]] = {
    "low_dose_ct_soft": "The noise of the low dose is gone; anatomy and soft-kernel texture are unchanged.",
    "low_dose_ct_sharp": "The noise of the low dose is gone; anatomy and sharp-kernel detail are unchanged.",
    "mri_noise": "The Rician noise is gone; anatomy and contrast are unchanged.",
    "ultrasound_speckle": "The added speckle is gone; structures and their borders are unchanged.",
    "oct_speckle": "The speckle is gone as after frame averaging; the layers are unchanged.",
    "ct_metal": "The metal and its streaks are gone; the tissue they hid is restored.",
    "ct_sparse_view": "The streaks of too few projections are gone; the anatomy is unchanged.",
    "mri_motion": "Ghosts and blur of patient motion are gone; the anatomy is unchanged.",
    "mri_bias_field": "The smooth shading is gone: the same tissue is equally bright everywhere.",
    "mri_undersampling": "The aliasing of the missing k-space lines is gone; the anatomy is unchanged.",
    "dermoscopy_artifacts": "The skin and the lesion without {artifacts}.",
    "ct_mri": "The same slice as {goal} instead of {source}.",
    "mri_sequence": "The same slice as {goal} instead of {source}.",
    "mri_pet": "The tracer uptake of the same slice as {goal} shows it.",
    "ct_window": "The same slice in the {window} window, level {level} HU, width {width} HU.",
    "ct_phase": "The same slice in the {goal} instead of the {source}.",
    "super_resolution": "The same slice with {factor} times the resolution.",
}

# What decides the goal: every phrasing of these targets names it, and `mie verify` looks for it.
NAMED: Final[dict[str, tuple[str, ...]]] = {
    "dermoscopy_artifacts": ("artifacts",),
    "ct_mri": ("goal",),
    "mri_sequence": ("goal",),
    "mri_pet": ("goal",),
    "ct_phase": ("goal",),
    "ct_window": ("window", "level", "width"),
    "super_resolution": ("factor",),
}


def all_words(modality: str, anatomy: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a phrasing may use: what the target says, the picture's noun, the anatomy, articles."""
    found = {"picture": MODALITIES[modality], "anatomy": anatomy, **words}
    for name in ("goal", "window"):
        if name in found:
            found[f"a_{name}"] = with_article(found[name])
    return found


def places(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def ask(template: str, words: Mapping[str, Any]) -> str:
    """The template filled in, beginning with a capital."""
    text = template.format(**words)
    # "No PET": a sentence may begin with a place.
    return text[0].upper() + text[1:]


def with_article(words: str) -> str:
    """As spoken: letter by letter where that is how it is said.

    >>> with_article("MRI"), with_article("FLAIR MRI"), with_article("CT")
    ('an MRI', 'a FLAIR MRI', 'a CT')
    """
    first = words.split()[0]
    spoken = first.isupper() and first[0] in "AEFHILMNORSX" and first not in ("FLAIR",)
    return f"{'an' if spoken or first[0] in 'aeiou' else 'a'} {words}"
