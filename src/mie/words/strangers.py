"""What a text names and the vocabulary does not have: unknown words, and organs that no target stands for.

They take part in the reading, so that their colour is not given to another target, and are said. An ordinary
word that names nothing ("thanks a lot", "for tomorrow's lecture") takes no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mie.words.clauses import Clause
from mie.words.mentions import COMMAS, ENDS, Mention, Scan
from mie.words.vocabulary import vocabulary, word_set

_PURPOSE: Final = word_set("for because since pour para weil damit fuer")
_LINKS: Final = word_set("in as is are should be with en de : (")  # between a name and its colour
_IN: Final = word_set(
    "of in from within into inside on at near along around for with by im am von aus an auf bei du dans "
    "del de en sur sobre"
)
_DETERMINERS: Final = word_set(
    "the this his her their my a an both all each every der die das dem den le la les el los las l left right"
)
_PICTURES: Final = word_set(
    "image images picture slice photograph photo scan section view frame film ray study window stain tissue "
    "biopsy specimen exam examination radiograph tile sample protocol wall s"
)
# Parts of the body that say what an image shows rather than what to paint.
_REGIONS: Final = word_set(
    "head neck chest thorax abdomen pelvis body patient skin blood cells tissue brain eye retina breast "
    "breasts spine skeleton bone mucosa lumbar thoracic nerve surgical bacterial yeast whole digestive"
)
_BEFORE_REQUEST: Final = word_set("as on at by per after before during since like with for in from")
_PLACES: Final = frozenset(("organ", "anatomy", "window", "filler"))  # with filler alone nothing is named
_MOST: Final = 12  # words that are said


def named_organs(found: Scan) -> list[Mention]:
    """Organs that are asked for as a thing, and that are no target: "bladder blue, prostate red"."""
    return [m for m in found.all_of("anatomy") if not m.says("target") and _is_thing(found, m)]


def _is_thing(found: Scan, mention: Mention) -> bool:
    if not mention.is_free():
        return False
    following = found.covering[mention.last] if mention.last < len(found.words) else None
    if _modifies(found, mention) or (
        following is not None
        and any(following.says(kind) for kind in ("target", "modality", "image", "window"))
    ):
        return False
    at = mention.first - 1
    while at >= 0 and found.words[at] in _DETERMINERS:
        at -= 1
    if at >= 0 and found.words[at] in _IN:
        return False
    coloured = _colour_behind(found, mention.last)
    if {*found.words[mention.first : mention.last]} & _REGIONS:
        return coloured
    return coloured or at < 0 or found.words[at] in COMMAS or found.words[at] in ENDS or _governs(found, at)


def _modifies(found: Scan, mention: Mention) -> bool:
    return mention.last < len(found.words) and found.words[mention.last] in _PICTURES


def _governs(found: Scan, at: int) -> bool:
    """Whether a verb or "and" stands before an organ."""
    own = found.covering[at]
    return found.words[at] in ("and", "und", "et", "y", "or") or (own is not None and bool(own.operations))


def _colour_behind(found: Scan, at: int) -> bool:
    while at < len(found.words) and found.words[at] in _LINKS:
        at += 1
    own = found.covering[at] if at < len(found.words) else None
    return own is not None and (own.says("colour") or own.says("other colour"))


def coloured_words(found: Scan) -> list[Mention]:
    """Unknown words, and organs that are no target, that may have a colour of their own."""
    words = [
        Mention(at, at + 1, ())
        for at, own in enumerate(found.covering)
        if own is None
        and found.words[at].isalpha()
        and found.words[at] not in ENDS
        and _colour_behind(found, at + 1)
    ]
    return [*words, *named_organs(found)]


def unknown_words(found: Scan, rows: Sequence[Clause], targets: bool, alters: bool) -> tuple[str, ...]:
    """Words that nothing is known about; not those of a purpose ("for the tumour board on Monday").

    `targets`: the request has some; then, and where it `alters` the image, an organ tells where a lesion is.
    """
    things = [] if alters else named_organs(found)
    organs = targets or alters
    covered = {
        at
        for m in found.mentions
        if (organs or not (m.says("organ") or m.is_all(_PLACES))) and m not in things
        for at in range(m.first, m.last)
    }
    words: list[str] = []
    skipping = -1
    for at, token in enumerate(found.tokens):
        own = found.covering[at]
        if found.words[at] in _PURPOSE and (own is None or own.last - own.first == 1):  # not "grateful for"
            skipping = found.starts[at]
        if at in covered or not _is_asked(found, rows, at, targets):
            continue
        chinese = "\u3400" <= token.text <= "\u9fff"
        if not chinese and (found.starts[at] == skipping or not token.text.isalpha() or len(token.text) < 2):
            continue
        if (targets and token.text.endswith(("ly", "ing")) and found.english) or not found.may_name(at):
            continue
        words.append(found.text[token.start : token.end])
    return tuple(dict.fromkeys(words))[:_MOST]


def _is_asked(found: Scan, rows: Sequence[Clause], at: int, targets: bool) -> bool:
    """Whether a word belongs to the request; an ordinary word does only beside a target."""
    row = next((row for row in rows if row.first <= at < row.last), None)
    if row is not None and _is_setting(found, rows, row, at):
        return False
    if not targets:
        return True
    if row is None or row.mood in ("report", "aside", "question"):
        return False
    token = found.tokens[at]
    if found.text[token.start : token.end].casefold() not in vocabulary().ordinary:
        return True
    beside = [m for m in found.all_of("target") if m.last == at or m.first == at + 1]
    return bool(beside) or not any(m.says("target") for m in found.mentions)


def _is_setting(found: Scan, rows: Sequence[Clause], row: Clause, at: int) -> bool:
    """Whether a word stands before a request that has a verb: "Dr Meyer here. Mark the liver"."""
    verb = next((head for clause in rows for head in clause.heads if head.first > at), None)
    if verb is None or row.mood not in ("name", "request", "report"):
        return False
    if not any(m.says("target") or m.says("wholesale") for m in found.within(row.first, len(found.words))):
        return False  # "my son swallowed a coin, show it"
    if (
        row.mood != "request"
        and not row.heads
        and not any(m.says("target") or m.says("colour") for m in found.within(row.first, row.last))
    ):
        return row.last - row.first > 2
    comma = next((i for i in range(at, verb.first) if found.words[i] in COMMAS), None)
    return comma is not None and found.words[row.first] in _BEFORE_REQUEST
