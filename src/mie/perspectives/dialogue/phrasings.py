"""What people say in a conversation about an image: in full, with pronouns, with words left out, with "undo".

Places: {target} and {other} are names, {it} it/them, {is} is/are, {colour} the wanted colour, {old} the
present one, {turn} "first", {picture} the modality's noun ("CT slice"). A phrasing belongs to one key of
`PHRASINGS` alone: the editor `resolve` reads a sentence back by the phrasing that it fills.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from string import Formatter
from typing import Any, Final

from mie.perspectives.perception.phrasings import LESION, STRUCTURE
from mie.records import Target
from mie.vocabulary import COLOURS, MODALITIES

TURNS: Final = (
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
    *("eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth"),
)

PHRASINGS: Final[Mapping[str, tuple[str, ...]]] = {
    # A new overlay, in full.
    "paint": tuple(dict.fromkeys((*STRUCTURE, *LESION))),
    "paint_first": (
        "I am interested in the {target} and the {other}. Mark the {target} in {colour} first.",
        "Of the {target} and the {other}, paint the {target} {colour} first.",
        "This {picture} shows the {target} and the {other}: start with the {target}, in {colour}.",
        "Two things matter here, the {target} and the {other}. Begin by shading the {target} {colour}.",
        "Let us look at the {target} and the {other}; first the {target}, in {colour}.",
        "Before we get to the {other}, highlight the {target} in {colour}.",
        "We need the {target} and the {other}. Take the {target} first and make {it} {colour}.",
        "First the {target}, then the {other}: mark the {target} in {colour} for now.",
        "Both the {target} and the {other} are of interest. For now only the {target}, in {colour}.",
        "I will ask about the {target} and the {other}. Show the {target} in {colour} to begin with.",
        "Please mark the {target} in {colour}; the {other} will come next.",
        "The {target} and the {other} should be told apart. Tint the {target} {colour} first.",
    ),
    "paint_other": (
        "Now the other one, in {colour}.",
        "And the other one in {colour}.",
        "Then the other one: {colour}.",
        "Next, the other of the two in {colour}.",
        "Now mark the other one as well, in {colour}.",
        "The other one should be {colour}.",
        "Please show the other one too, in {colour}.",
        "And now the second of the two, in {colour}.",
        "Add the other one in {colour}.",
        "What about the other one? Paint it {colour}.",
        "The one that is still missing, in {colour}.",
        "Highlight the other structure I mentioned in {colour}.",
    ),
    "same": (
        "Do the same for the {target}.",
        "The same on the {target}, please.",
        "And the same for the {target}.",
        "Mark the {target} in the same way.",
        "Likewise the {target}.",
        "Repeat that for the {target}.",
        "Now the {target}, in the same colour.",
        "The {target} as well, just like that.",
        "Treat the {target} the same way.",
        "Give the {target} the same overlay.",
        "Same again for the {target}.",
        "Also the {target}, in the colour you just used.",
    ),
    "replace": (
        "Mark the {other} instead of the {target}.",
        "Not the {target}, the {other}: move the overlay there.",
        "Swap the {target} for the {other}, same colour.",
        "Use that overlay on the {other} instead; the {target} should be plain again.",
        "I meant the {other}, not the {target}.",
        "Show the {other} in place of the {target}.",
        "Take the marking off the {target} and put it on the {other}.",
        "Replace the overlay of the {target} by one of the {other}.",
        "The {other} should be marked rather than the {target}.",
        "Switch from the {target} to the {other}, in the colour you have.",
        "Drop the {target} and highlight the {other} in its colour.",
        "Transfer the colour from the {target} to the {other}.",
    ),
    # A premise, and what rests on it.
    "premise": (
        "From now on mark everything in {colour}. Start with the {target}.",
        "Use {colour} for everything in this session, beginning with the {target}.",
        "Whatever I ask you to mark today, mark it in {colour}. First the {target}.",
        "In this conversation every overlay is {colour}. Show the {target}.",
        "Our house style is {colour}: stick to it. The {target} first, please.",
        "Always paint in {colour} unless I say otherwise. Now mark the {target}.",
        "Let us agree on {colour} for all markings. Highlight the {target}.",
        "I can only tell {colour} overlays apart, so use that throughout. Start: the {target}.",
        "Remember: all structures in {colour}. Go ahead with the {target}.",
        "For this whole case the overlay colour is {colour}. Begin with the {target}.",
        "Set the colour to {colour} and keep it. Mark the {target}.",
        "Please work in {colour} from here on; first outline and fill the {target}.",
    ),
    "premise_only": (
        "From now on use {colour}.",
        "For whatever comes next, the colour is {colour}.",
        "Change the default colour to {colour}; leave what is there as it is.",
        "New overlays should be {colour} from here on.",
        "Switch the pen to {colour} for the next ones.",
        "Everything I ask for after this is to be {colour}. Do not change anything yet.",
        "Keep in mind: {colour} from the next marking on.",
        "The following overlays go in {colour}; nothing to do right now.",
        "Use {colour} for later markings, and leave the image alone for the moment.",
        "Note that the next structures should be {colour}.",
        "After this, mark in {colour}. No change for now.",
        "Remember {colour} for the markings to come.",
    ),
    "paint_premise": (
        "Mark the {target} too.",
        "Now the {target}.",
        "And the {target}, please.",
        "Highlight the {target} as agreed.",
        "Next: the {target}.",
        "Show me the {target} as well.",
        "Also paint the {target}.",
        "The {target}, as I said at the start.",
        "Add the {target} in the usual colour.",
        "Please go on with the {target}.",
        "Mark the {target} in our colour.",
        "Then the {target}; you know the colour.",
    ),
    # Attributes of what is there.
    "recolour": (
        "Change the {target} to {colour}.",
        "Make the overlay of the {target} {colour}.",
        "Recolour the {target} in {colour}.",
        "The {target} should be {colour} now.",
        "Switch the colour of the {target} to {colour}.",
        "I would rather have the {target} in {colour}.",
        "Turn the {target} {colour}.",
        "Give the {target} a {colour} overlay instead.",
        "For the {target}, use {colour} instead of the present colour.",
        "Set the {target} to {colour}; keep its shape.",
        "Let the {target} be {colour} from here.",
        "Colour change for the {target}: {colour}.",
    ),
    "recolour_it": (
        "Make it {colour}.",
        "Now in {colour}.",
        "Better in {colour}.",
        "Change that to {colour}.",
        "{colour}, please.",
        "Use {colour} instead.",
        "Could you turn that {colour}?",
        "Same region, but {colour}.",
        "I prefer it in {colour}.",
        "That one in {colour}.",
        "Let it be {colour}.",
        "Same thing, {colour} this time.",
    ),
    "recolour_old": (
        "Turn the {old} overlay {colour}.",
        "What is {old} now should be {colour}.",
        "Change the {old} one to {colour}.",
        "Make everything that is {old} {colour}.",
        "Swap {old} for {colour}.",
        "Replace {old} by {colour}.",
        "The {old} region in {colour}, please.",
        "Recolour the {old} area: {colour}.",
        "I cannot read the {old} marking; make it {colour}.",
        "From {old} to {colour}.",
        "The one you marked in {old} should be {colour}.",
        "Where you used {old}, use {colour}.",
    ),
    "recolour_larger": (
        "Make the larger of the two {colour}.",
        "Change the bigger one to {colour}.",
        "The larger region should be {colour}.",
        "Turn the larger of the marked regions {colour}.",
        "The bigger of the two in {colour}, please.",
        "Recolour the larger one in {colour}.",
        "Give the bigger region a {colour} overlay instead.",
        "Whichever is larger: {colour}.",
        "Of the two, the one with more area in {colour}.",
        "Switch the larger overlay to {colour}.",
        "Let the bigger of the two be {colour}.",
        "The one that covers more should be {colour}.",
    ),
    "recolour_smaller": (
        "Make the smaller of the two {colour}.",
        "Change the smaller one to {colour}.",
        "The smaller region should be {colour}.",
        "Turn the smaller of the marked regions {colour}.",
        "The smaller of the two in {colour}, please.",
        "Recolour the smaller one in {colour}.",
        "Give the smaller region a {colour} overlay instead.",
        "Whichever is smaller: {colour}.",
        "Of the two, the one with less area in {colour}.",
        "Switch the smaller overlay to {colour}.",
        "Let the smaller of the two be {colour}.",
        "The one that covers less should be {colour}.",
    ),
    "outline": (
        "Only the outline of the {target}, please.",
        "Show the {target} as a contour instead of a filled area.",
        "Draw just the border of the {target}.",
        "Replace the fill of the {target} by its outline.",
        "I want to see inside the {target}: keep only its edge.",
        "Contour only for the {target}.",
        "Reduce the overlay of the {target} to its boundary.",
        "Leave a line around the {target} and clear the inside.",
        "Outline the {target} rather than filling {it}.",
        "Hollow out the overlay of the {target}.",
        "The {target} as an outline, same colour.",
        "Keep the rim of the {target} and nothing of its interior.",
    ),
    "outline_it": (
        "Just the outline.",
        "Only its border, please.",
        "As a contour instead.",
        "Show only the edge of it.",
        "Make that an outline.",
        "Hollow it out.",
        "Outline only, same colour.",
        "I want to see what is inside: contour only.",
        "Clear the inside and keep the line.",
        "Reduce that to its boundary.",
        "Without the fill, please.",
        "Only a line around it.",
    ),
    "fill": (
        "Fill the {target} again.",
        "Show the {target} as a filled area instead of a contour.",
        "Fill in the outline of the {target}.",
        "The {target} filled, same colour.",
        "Turn the contour of the {target} into a solid overlay.",
        "Shade the whole {target} again, not only its border.",
        "Cover the interior of the {target} as well.",
        "Make the overlay of the {target} solid.",
        "The inside of the {target} should be coloured too.",
        "Back to a filled {target}.",
        "Paint the whole {target} again, in the colour of its outline.",
        "Not just the rim: the entire {target}.",
    ),
    "fill_it": (
        "Fill it in again.",
        "As a filled area, please.",
        "Fill the contour.",
        "Solid instead of the outline.",
        "Shade the inside as well.",
        "Make it solid.",
        "The whole region, not only its border.",
        "Close it with the same colour.",
        "Colour the interior too.",
        "Filled, same colour.",
        "Not just the line: all of it.",
        "Turn the outline into a filled overlay.",
    ),
    # Taking overlays away.
    "clear": (
        "Remove the overlay from the {target}.",
        "Clear the marking of the {target}.",
        "Show the {target} without any overlay.",
        "Take the colour off the {target}.",
        "The {target} should be plain again.",
        "Unmark the {target}.",
        "Delete the overlay of the {target} and leave the rest.",
        "I no longer need the {target} marked.",
        "Drop the marking on the {target}.",
        "Let me see the {target} as in the original.",
        "Erase the paint on the {target}.",
        "Hide the overlay of the {target}.",
    ),
    "clear_it": (
        "Remove it again.",
        "Take that overlay off.",
        "Without that marking, please.",
        "Clear it.",
        "Unmark that.",
        "I do not need it any more.",
        "Hide that overlay.",
        "Delete the last marking and leave the rest.",
        "Take the colour away again.",
        "Let me see that spot plain.",
        "Wipe that overlay.",
        "Drop that one.",
    ),
    "clear_all": (
        "Remove all overlays.",
        "Clear everything you have marked.",
        "Take off every marking.",
        "Show the {picture} without any overlays.",
        "Delete all markings.",
        "Wipe the slate clean: no overlays.",
        "No colours any more, please.",
        "Hide everything that was painted.",
        "Back to a plain {picture}, without markings.",
        "Clear all of them.",
        "Erase every overlay on the {picture}.",
        "I want to see the {picture} unmarked.",
    ),
    # Going back.
    "undo": (
        "Undo that.",
        "Withdraw the last step.",
        "Take that back.",
        "Revert the last change.",
        "No, as it was before.",
        "Go one step back.",
        "Undo the last turn.",
        "Please cancel what you just did.",
        "That was wrong, undo it.",
        "Return to the previous version.",
        "Scrap the last edit.",
        "Step back once.",
    ),
    "undo_two": (
        "Undo the last two steps.",
        "Go back two steps.",
        "Take back the last two changes.",
        "Revert the last two turns.",
        "Withdraw the two previous rounds.",
        "Cancel your last two edits.",
        "Two steps back, please.",
        "Undo twice.",
        "Return to the version before the last two changes.",
        "Scrap the last two edits.",
        "The last two steps were wrong, undo both.",
        "Step back two times.",
    ),
    "back": (
        "Go back to how it looked after the {turn} turn.",
        "Return to the version of the {turn} turn.",
        "Show the image as it was after the {turn} step.",
        "Restore the result of the {turn} round.",
        "I liked the {turn} version best: back to that.",
        "Forget what came after the {turn} turn.",
        "Take me back to the {turn} result.",
        "As after the {turn} turn, please.",
        "Use the image from the {turn} step again.",
        "Revert to the {turn} version.",
        "The {turn} result was right, return to it.",
        "Drop everything since the {turn} turn.",
    ),
    "back_start": (
        "Go back to the original image.",
        "Start over from the image I gave you.",
        "Return to the very first image.",
        "Forget everything: the original, please.",
        "Reset to the untouched {picture}.",
        "Show the {picture} as I sent it.",
        "Undo all of it.",
        "Back to square one, the original image.",
        "Restore the image from before the first turn.",
        "Discard all changes so far.",
        "I want the original {picture} back.",
        "Everything as at the beginning.",
    ),
    "back_recolour": (
        "As after the {turn} turn, but with the {target} in {colour}.",
        "Go back to the {turn} version and make the {target} {colour}.",
        "Withdraw everything since the {turn} turn and show the {target} in {colour} there.",
        "Return to the {turn} result, with the {target} {colour} instead.",
        "Take the {turn} version again, the {target} in {colour} this time.",
        "Like the {turn} step, only the {target} should be {colour}.",
        "Restore the {turn} round, then turn the {target} {colour}.",
        "The {turn} version was fine except that the {target} should be {colour}.",
        "Back to the {turn} turn; change the {target} to {colour} in it.",
        "Use what you had after the {turn} turn and recolour the {target} {colour}.",
        "Same as the {turn} result, with a {colour} {target}.",
        "Reset to the {turn} step and colour the {target} {colour}.",
    ),
    # The base.
    "put_back": (
        "Put the {target} back.",
        "Show the {target} again.",
        "Restore the {target} that you took out.",
        "Bring the {target} back exactly as before.",
        "The {target} should be there again.",
        "Let the {target} reappear.",
        "Undo the removal of the {target}.",
        "Add the {target} back in the same place.",
        "I want to see the {target} again.",
        "Return the {target} to the image.",
        "Reinsert the {target} unchanged.",
        "Give me the version with the {target}.",
    ),
    "window_back": (
        "Back to the window we started with.",
        "Show it in the first window again.",
        "Return to the window that the image came in.",
        "The previous window settings again, please.",
        "Reset the window, leave the rest as it is.",
        "I preferred the window from the beginning.",
        "Put the window back as it was.",
        "Use the original window settings again.",
        "That window does not help: the one before, please.",
        "Undo the windowing and nothing else.",
        "Switch back to the starting window.",
        "Same view, but in the window I sent you.",
    ),
}


def fill_in(
    template: str,
    modality: str,
    *,
    target: Target | None = None,
    other: Target | None = None,
    colour: str | None = None,
    old: str | None = None,
    turn: int | None = None,
) -> str:
    """The phrasing with its places filled, beginning with a capital."""
    words: dict[str, Any] = {
        "target": target and target.name,
        "other": other and other.name,
        "it": "them" if target and target.plural else "it",
        "is": "are" if target and target.plural else "is",
        "colour": colour,
        "old": old,
        "turn": TURNS[(turn or 1) - 1],
        "picture": MODALITIES[modality],
    }
    text = template.format(**words)
    return text[0].upper() + text[1:]


# What each place can hold; a name is whatever is left.
_PLACES: Final = {
    "it": "it|them",
    "is": "is|are",
    "colour": "|".join(COLOURS),
    "old": "|".join(COLOURS),
    "turn": "|".join(TURNS),
    "picture": "|".join(map(re.escape, MODALITIES.values())),
}


def read_back(text: str) -> tuple[str, dict[str, str]] | None:
    """The key of the phrasing that a sentence fills, and the words in its places.

    Where a sentence fills several, the one with the most words of its own is meant.

    >>> read_back("Make it green.")
    ('recolour_it', {'colour': 'green'})
    """
    for key, pattern in _patterns():
        match = pattern.fullmatch(text.strip())
        if match is not None:
            return key, {name: _name(word) for name, word in match.groupdict().items()}
    return None


def _name(word: str) -> str:
    return word.lower() if word.lower() in (*COLOURS, *TURNS) else word


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Of every phrasing, those with the most words of their own first."""
    found = []
    for key, templates in PHRASINGS.items():
        for template in templates:
            pattern, seen, own = "", set(), 0
            for literal, name, _, _ in Formatter().parse(template):
                pattern += re.escape(literal)
                own += len(literal)
                if name in seen:
                    pattern += f"(?P={name})"
                elif name:
                    pattern += f"(?P<{name}>{_PLACES.get(name, '.+?')})"
                    seen.add(name)
            found.append((own, key, re.compile(pattern, re.IGNORECASE)))
    found.sort(key=lambda one: -one[0])
    return [(key, pattern) for _, key, pattern in found]


def describe(before: Mapping[str, Any], after: Mapping[str, Any], changed: bool) -> str:
    """The truth of a turn in one sentence, for judges and readers."""
    overlays = [f"the {t} {'filled' if s == 'fill' else 'outlined'} in {c}" for t, c, s in after["overlays"]]
    shown = ", ".join(overlays) or "no overlay"
    base = "" if before["base"] == after["base"] else f" The image underneath is now: {after['base']}."
    return f"{'' if changed else 'Nothing changes. '}The image shows {shown}.{base}"
