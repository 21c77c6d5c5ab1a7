"""A parse in plain words: one sentence for each thing that can be asked for, which parses to the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mie.words.vocabulary import phrase, vocabulary

if TYPE_CHECKING:
    from mie.words.parse import Parse
    from mie.words.requested import Requested

_TRANSFORMATIONS: Final = {
    "low-dose CT noise, soft kernel": "Denoise this low-dose CT, soft kernel.",
    "low-dose CT noise, sharp kernel": "Denoise this low-dose CT, sharp kernel.",
    "MRI noise": "Denoise this MRI slice.",
    "ultrasound speckle": "Reduce the speckle in this ultrasound image.",
    "OCT speckle": "Denoise this OCT B-scan.",
    "CT metal artifact": "Remove the metal artifact from this CT slice.",
    "CT sparse-view streaks": "Remove the streaks of this sparse-view CT.",
    "MRI motion artifact": "Remove the motion artifact from this MRI.",
    "MRI bias field": "Correct the bias field of this MRI.",
    "MRI undersampling artifact": "Remove the aliasing from this undersampled MRI.",
    "dermoscopy overlay artifacts": "Remove {artifacts} from this dermoscopic image.",
    "super-resolution": "Apply {factor}x super-resolution.",
    "CT window": "Show this CT in the {window} window (level {level}, width {width}).",
}
_WITH_NUMBER: Final = {
    "CT sparse-view streaks": (
        "views",
        "This CT was reconstructed from {views} views only: remove the streaks.",
    ),
    "MRI undersampling artifact": (
        "factor",
        "This MRI was accelerated {factor} times: reconstruct it as if fully sampled.",
    ),
}


def canonical(parse: Parse) -> str:
    """Return the sentence; empty where nothing is asked for."""
    if parse.operation == "none":
        return ""
    if parse.operation == "transformation":
        return _transformation(parse)
    names = [_named(target) for target in parse.targets]
    if parse.operation == "perception":
        painted = [
            f"the {n}{f' in {t.colour}' if t.colour else ''}"
            for n, t in zip(names, parse.targets, strict=True)
        ]
        sentence = f"Highlight {listed(painted)}" if painted else "Highlight"
    elif parse.operation == "removal":
        sentence = f"Remove {listed([f'the {name}' for name in names])}" if names else "Remove"
    elif parse.operation == "inpainting":
        sentence = "Fill the white area with healthy tissue"
    else:
        size = parse.attributes.get("size", "")
        things = listed(
            [f"{'an' if f'{size}{n}'[0] in 'aeiou' else 'a'} {f'{size} {n}'.strip()}" for n in names]
        )
        sentence = f"Add {things}" if parse.operation == "addition" else f"Fill the white area with {things}"
        sentence = sentence.strip()
    excluded = parse.attributes.get("exclude", ())
    if excluded:
        sentence += f", but not {listed([f'the {name}' for name in excluded])}"
    if "place" in parse.attributes:
        place = parse.attributes["place"]
        organ = any(s.kind == "target" for s in vocabulary().senses.get(phrase(place), ()))
        sentence += "" if organ else f" (place: {place})"  # an organ is told by the target's name
    if "numbers" in parse.attributes:
        sentence += f" ({', '.join(parse.attributes['numbers'])})"
    return sentence + "."


def listed(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


def _named(target: Requested) -> str:
    name, side = target.name, target.side
    if side is None or name.startswith(side):
        return name
    # "The left heart" is a name of its own.
    return f"{name} on the {side}" if phrase(f"{side} {name}") in vocabulary().senses else f"{side} {name}"


def _transformation(parse: Parse) -> str:
    if not parse.targets:
        return {"denoising": "Denoise this image.", "artifact removal": "Remove the artifacts."}.get(
            parse.task or "", ""
        )
    name, words = parse.targets[0].name, parse.attributes
    if name in _WITH_NUMBER and _WITH_NUMBER[name][0] in words:
        return _WITH_NUMBER[name][1].format(**words)
    if name == "CT window":
        window = f"the {words['window']} window" if "window" in words else "another window"
        numbers = ", ".join(f"{key} {words[key]}" for key in ("level", "width") if key in words)
        return f"Show this CT in {window}{f' ({numbers})' if numbers else ''}."
    if name == "super-resolution" and "factor" not in words:
        return "Apply super-resolution."
    if name in _TRANSFORMATIONS:
        return _TRANSFORMATIONS[name].format(**words)
    if "goal" in words:
        source = words.get("source")
        return (
            f"Convert this {source} to {words['goal']}."
            if source
            else f"Show the same section as {words['goal']}."
        )
    return "Predict the tracer uptake of this MRI." if name == "MRI to PET" else f"Apply: {name}."
