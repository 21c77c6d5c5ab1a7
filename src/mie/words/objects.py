"""What a verb asks for: a lesion, a drawing over the image, a file, a text."""

from __future__ import annotations

from typing import Final

from mie.words.clauses import Clause
from mie.words.mentions import COMMAS, ENDS, Mention, Scan
from mie.words.vocabulary import vocabulary, word_set

# What is drawn over an image, and is no part of it.
_MARKS: Final = word_set(
    "overlay overlays mask masks contour contours outline outlines tint label labels arrow arrows "
    "box boxes circle circles marker markers marking markings annotation annotations highlight "
    "highlights color colors highlighting markierung contorno umrandung surlignage line legend "
    "caption text scale segmentation"
)
FILES: Final = word_set("image images scan scans study studies series data dataset history request")
TEXTS: Final = word_set(
    "file files record records archive folder database message messages chat conversation account "
    "email report reports name names list mailing newsletter appointment calendar comment comments "
    "title signature word sentence paragraph chart differential findings problem impression summary note "
    "notes letter record records transcript caption"
)
DEFINITE: Final = word_set(
    "the this that these those his her its their my our your der die das den dem le la les el los las"
)
_PREPOSITIONS: Final = word_set("on at around near over onto in to from into auf um sur sobre en")
_ADJECTIVES: Final = 5  # words between an article and its lesion
_OBJECTS: Final = word_set("pen marker brush tool pencil phone notes trash bin coat patient screen")
_PRONOUNS: Final = word_set("it them this that these those one ones everything all both")


def is_lesion(mention: Mention) -> bool:
    known = vocabulary().targets
    return any(known[s.value].kind == "lesion" for s in mention.of("target")) and not mention.negated


def is_indefinite(found: Scan, mention: Mention) -> bool:
    """Whether a mention has "a" before it, or a size alone: "a small polyp", "small liver tumours".

    Of the words before it, the nearest article decides: "a spiculated mass in the breast".
    """
    sized = False
    for at in range(mention.first - 1, max(-1, mention.first - 2 - _ADJECTIVES), -1):
        here, word = found.covering[at], found.words[at]
        if word in DEFINITE or word in ENDS or word in COMMAS or word in _PREPOSITIONS:
            break  # "put a star on tumour" has no new tumour
        if here is not None and here.says("indefinite"):
            return True
        sized |= here is not None and (here.says("size") or here.says("unit"))
        if here is not None and here.operations & {"removal", "perception"}:
            break
    return sized and found.words[max(0, mention.first - 2)] not in DEFINITE


def is_mark(found: Scan, verbs: list[Mention]) -> bool:
    """Whether what a verb asks for is a drawing over the image: "remove the red overlay", "add a circle"."""
    for verb in verbs:
        for at in range(verb.last, min(verb.last + 5, len(found.words))):
            mention = found.covering[at]
            if found.words[at] in ("and", "then", *COMMAS, *ENDS):
                break
            if found.words[at] in _MARKS and not (
                mention and (mention.says("sure") or mention.says("target"))
            ):
                return True
            if mention is not None and (mention.says("target") or mention.says("sure")):
                break
    return False


def is_file(found: Scan, verbs: list[Mention], files: frozenset[str]) -> bool:
    """Whether what a verb asks for is a file or a record: "delete these images from the archive"."""
    for verb in verbs:
        for at in range(verb.last, min(verb.last + 6, len(found.words))):
            mention = found.covering[at]
            if found.words[at] in files and found.words[at + 1 : at + 2] != ["noise"]:
                return True
            if (
                mention is not None
                and (mention.says("target") or mention.says("sure") or mention.says("hint"))
            ) or (found.words[at] in ("from", "in", "of", "on")):
                break
    return False


def goes_to_text(found: Scan, verb: Mention) -> bool:
    """Whether something goes to a text or comes from one: "add the tumour to the report"."""
    behind = found.words[verb.last : verb.last + 10]
    return any(
        word in ("to", "into", "from", "off") and TEXTS & set(behind[at + 1 : at + 4])
        for at, word in enumerate(behind)
    )


def has_object(found: Scan, clause: Clause, verb: Mention) -> bool:
    """Whether a verb has a target, a pronoun or nothing behind it; "take out your pen" has something else."""
    mentions = found.within(clause.first, clause.last)
    if any(m.says("target") or m.says("sure") or m.says("hint") or "white" in m.operations for m in mentions):
        return True
    behind = found.words[verb.last : clause.last]
    return bool(_PRONOUNS & set(behind)) or not any(word in _OBJECTS for word in behind)
