"""Where the clauses of a text begin: at signs, before verbs that ask, and before and behind asides."""

from __future__ import annotations

import itertools
from typing import Final

from mie.words.mentions import COMMAS, ENDS, Mention, Scan
from mie.words.vocabulary import word_set

VERBS: Final = frozenset(("perception", "removal", "addition", "fill"))
NOUNS: Final = word_set(
    "removal deletion addition resection ablation excision erasure entfernung suppression "
    "eliminacion resektion exzision reseccion extirpacion exeresis exerese retrait"
)
_JOINS: Final = word_set(
    "and then but so or und dann aber sondern et puis mais ensuite y luego pero sino entonces 并 再 然 "
    "但 plus also"
)
# Before one of these there is something else than a request: a subject, a finite verb, a purpose.
SUBJECTS: Final = word_set(
    "i we he she they it who surgeon surgeons surgery radiologist radiologists doctor doctors nurse "
    "colleague colleagues friend friends team clinic hospital oncologist oncologists dermatologist "
    "pathologist gastroenterologist consultant consultants resident family wife husband mother "
    "father boss professor student everyone everybody nobody people ich wir er man "
    "chirurg arzt aerztin arzte kollege kollegin je il elle nous ils elles chirurgien medecin yo "
    "ella nosotros ellos cirujano medico 医 他 她 们"
)
FINITE: Final = word_set(
    "is are was were be been being am has have had does did do done will would could may might "
    "shall said says told thinks wants wanted plans planned intends suggested suggests recommended "
    "recommends advised asked asks going underwent undergoes decided hopes hoped scheduled supposed "
    "considered considering refused agreed presented presents suspects suspected showed revealed "
    "demonstrated reported noted seems seemed appears appeared became remains remained ist sind war "
    "waren wurde wurden wird werden hat haben hatte hatten est sont etait etaient ete ont avait "
    "sera fue fueron ha han sido era eran esta estan seran 被 已 曾 年 昨"
)
PURPOSES: Final = word_set(
    "to of for by zu de d a pour por para que al sans sin ohne without after before about during "
    "while when if how why than or"
)
_BEFORE_RELATIVES: Final = word_set("in on for by from with of")
RELATIVES: Final = word_set("which who whom whose welche welcher welches qui dont cual cuyo")
WHERES: Final = word_set("where whereabouts wo ou donde")
THE: Final = word_set("the my his her this our your their")
PROFESSIONS: Final = ("surgeon", "surgeons", "ologist", "ologists", "ologe", "ologin", "icians", "ician")
_BEGINS_REQUEST: Final = word_set(
    "i we please pls plz kindly can could would will lets let bitte kannst koenntest ich wir veuillez je "
    "peux pouvez pourriez por puedes podria quiero quisiera"
)
_TIMES: Final = word_set("before after until during since prior ahead once vor nach bis avant apres antes")
_PLEASE: Final = word_set("please pls plz kindly bitte veuillez por 请")
_SHORT_ASIDE: Final = 4  # words: "before the operation"
_ALL: Final = word_set("everything anything all whatever")
_OPENERS: Final = ("address", "aside", "wish", "soft", "only")
_ASIDE_WORDS: Final = RELATIVES | SUBJECTS | {"that"}  # what may begin an aside, beside these kinds
_ASIDES: Final = frozenset(("aside", "address"))
_REQUESTS: Final = frozenset(("address", "only", "operation"))  # what may end one
_NONE: Final[frozenset[str]] = frozenset()


def spans(found: Scan) -> list[tuple[int, int]]:
    """Return the first and the last token (excluded) of each clause, in order."""
    words, starts = found.words, {m.first: m for m in found.mentions}
    asides = bool(found.all_of("aside"))
    edges = {0, len(words)}
    for at, word in enumerate(words):
        if word in ENDS:
            edges.add(at + 1)
        elif word in COMMAS or word in _JOINS:
            opening = _opening(found, at + 1)
            if opening is not None and _opens(found, opening, word in COMMAS):
                if not _continues_where(found, at, opening):
                    edges.add(at + 1)
            elif word in COMMAS and _states(found, at + 1):
                edges.add(at + 1)
        mention = starts.get(at)
        kinds = mention.kinds if mention is not None else _NONE
        may_begin = word in _ASIDE_WORDS or not kinds.isdisjoint(_ASIDES)
        may_end = asides and not kinds.isdisjoint(_REQUESTS)
        if at and (
            (may_begin and begins_aside(found, at, mention))
            or (may_end and _ends_aside(found, edges, at, mention))
        ):
            edges.add(at)
    row = sorted(edges)
    return [(first, last) for first, last in itertools.pairwise(row) if _tells(found, first, last)]


def _tells(found: Scan, first: int, last: int) -> bool:
    return any(word not in ENDS and word not in COMMAS for word in found.words[first:last])


def _opening(found: Scan, at: int) -> Mention | None:
    """The first mention from a token on that says more than a small word, in the same stretch."""
    for mention in found.within(at, len(found.words)):
        if {*found.words[at : mention.first]} & (ENDS | COMMAS):
            return None
        if not mention.is_small() or any(mention.says(kind) for kind in _OPENERS):
            return mention
    return None


def _opens(found: Scan, mention: Mention, comma: bool) -> bool:
    """Whether a mention begins a clause of its own behind a comma or "and"."""
    if mention.says("aside"):
        return True
    if mention.says("address"):
        return comma or mention.last - mention.first > 1
    if mention.says("wish") or mention.says("soft") or mention.says("hide"):
        return True
    if mention.says("target") and not mention.says("operation"):
        return False
    if mention.operations & (VERBS | {"none", "gone"}):
        return not mention.says("target")
    return comma and (
        mention.says("keep") or mention.says("only") or mention.says("correction") or mention.says("not")
    )


def _continues_where(found: Scan, at: int, opening: Mention) -> bool:
    """Whether words between commas part "where" from its verb: "where, pray, are the clips?"."""
    if found.words[opening.first] not in ("is", "are") or opening.operations - {"none"}:
        return False
    before = found.within(found.starts[at], at)
    return any(found.words[m.first] in WHERES for m in before) and not any(m.says("target") for m in before)


def _states(found: Scan, at: int) -> bool:
    """Whether a subject and its verb begin here: "liver red, spleen blue, the resident is asleep"."""
    article = found.words[at : at + 1] != [] and found.words[at] in THE
    at += article
    words = found.words[at : at + 2]
    if len(words) < 2 or words[1] not in FINITE or words[0] in ("it", "who"):
        return False
    own = found.covering[at]
    named = own is not None and any(own.says(kind) for kind in ("target", "side", "colour", "place", "size"))
    return words[0] in SUBJECTS or words[0].endswith(PROFESSIONS) or (article and not named)


def begins_aside(found: Scan, at: int, mention: Mention | None) -> bool:
    word, before = found.words[at], found.words[at - 1]
    if before in ENDS:
        return False
    if mention is not None and mention.says("aside"):
        return not mention.operations - {"none"}
    if word in RELATIVES:
        noun = at - 1 if before in _BEFORE_RELATIVES else at
        named = found.covering[noun - 1] if noun else None
        return (named is not None and not named.is_small()) or (before in _BEFORE_RELATIVES and noun > 0)
    following = found.words[at + 1 : at + 3]
    if word == "that":
        return (
            before not in _ALL | _TIMES
            and bool(following)
            and (following[0] in FINITE or following[0] in SUBJECTS or following[0] == "you")
        )
    if mention is not None and mention.says("address") and word in ("i", "we") and _is_shown(found, at):
        return True  # "show the polyp I want to remove later"
    # "The polyp we are going to remove".
    if word not in SUBJECTS or mention is None or mention.says("address"):
        return False
    target = found.covering[at - 1]
    return target is not None and target.says("target")


def _ends_aside(found: Scan, edges: set[int], at: int, mention: Mention | None) -> bool:
    """Whether a request begins behind an aside without a comma: "before it is removed I'd like to see it"."""
    if mention is None:
        return False
    addressed = mention.says("address") and found.words[at] in _BEGINS_REQUEST
    if not (addressed or mention.says("only") or "perception" in mention.operations):
        return False
    start = max(edge for edge in edges if edge <= at)
    while start < at and (found.words[start] in COMMAS or found.words[start] in _JOINS):
        start += 1
    opening = found.covering[start]
    if opening is None or not opening.says("aside") or opening.says("address"):
        return False
    verb = next((m for m in found.within(at, len(found.words)) if m.operations), None)
    if verb is None or "perception" not in verb.operations:
        return False
    words = found.words[opening.last : at]
    short = found.words[opening.first] in _TIMES and 0 < len(words) <= _SHORT_ASIDE
    if short and not (SUBJECTS | FINITE | {"you"}) & set(words) and not _is_verb(found, at - 1):
        return True
    named = any(m.says("target") or m.operations for m in found.within(opening.last, at))
    return addressed and (named or (found.words[at] in _PLEASE and len(words) > 1))


def _is_verb(found: Scan, at: int) -> bool:
    """Whether a token is a verb, or a preposition or article that what follows belongs to."""
    own = found.covering[at]
    linked = found.words[at] in PURPOSES or found.words[at] in ("the", "a", "an", "and", "or")
    return linked or (own is not None and bool(own.operations) and found.words[at] not in NOUNS)


def _is_shown(found: Scan, at: int) -> bool:
    """Whether a target that a verb shows ends right before a token."""
    target = found.covering[at - 1]
    before = found.within(found.starts[at], at)
    return target is not None and target.says("target") and any("perception" in m.operations for m in before)
