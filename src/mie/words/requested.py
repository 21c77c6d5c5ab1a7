"""The targets of a text: which mention means which, its colour and its side, what is excluded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from mie.words.mentions import COMMAS, ENDS, Mention, Scan
from mie.words.strangers import coloured_words
from mie.words.vocabulary import Sense, phrase, vocabulary, word_set

_PREPOSITIONS: Final = word_set("of in from within into inside on im von aus der du de dans del en sur the")
_OF: Final = word_set("of in from within into inside im von aus du dans del de en")
_AT: Final = word_set("on near at along beside next around auf an sur sobre")
_DETERMINERS: Final = word_set(
    "the this his her their my a an patient s der die das dem le la les el los las l"
)
_PICTURES: Final = word_set("image picture slice photograph photo scan section view frame film ray study")
# "The area of the polyp" is the polyp.
_EXTENTS: Final = word_set(
    "area areas extent region outline contour contours border borders boundary boundaries location "
    "position patch pixels size volume presence segmentation removal shape edges edge mask all any "
    "most some both each none one rid whereabouts margin margins appearance look signs evidence "
    "spread case example kind sort type instance version bit parts part rest"
)
_DESCRIBED: Final = word_set("dots dot spots deposits lines patches bits stuff streaks")
_LINKS: Final = word_set("in as is are should be with en de : (")  # between a target and its colour
_INSIDE: Final = word_set("in within inside of on at im in dans en del auf an")
_COLOURS: Final = frozenset(("colour", "other colour"))
_MARKING: Final = frozenset(("perception", "removal", "addition"))
_FAR: Final = 9  # tokens between a lesion and the organ that it lies in
_NEAR: Final = 4  # tokens between a side and its target
_ADJECTIVES: Final = 3  # unknown words between an article and its noun
_HOLDS: Final = word_set(
    "contains contain containing harbors harbor harboring bears bearing holds enthaelt contient contiene"
)


@dataclass(frozen=True, slots=True)
class Requested:
    """One target as it is asked for."""

    name: str
    colour: str | None = None
    side: str | None = None


class Choice(NamedTuple):
    """What a mention means: a target, or why it cannot be told."""

    name: str | None
    side: str | None = None
    question: str | None = None
    by_modality: bool = False  # the word means this in this modality alone


def meaning(mention: Mention, modality: str | None, written: str) -> Choice:
    """Resolve a mention by the modality: what it has before what it has not, names before synonyms."""
    choice = _meaning(mention.senses, modality)
    if choice.question is None:
        return choice
    return choice._replace(question=f"{written!r} {choice.question}")


@lru_cache(4096)
def _meaning(senses_given: tuple[Sense, ...], modality: str | None) -> Choice:
    known = vocabulary().targets
    targets = [s for s in senses_given if s.kind == "target"]
    senses = [s for s in targets if s.modality in (None, modality)]
    if not targets:
        return Choice(None)
    if not senses and modality is not None and any(s.kind in ("anatomy", "filler") for s in senses_given):
        return Choice(None)  # "head" in an MRI is no fetal head
    if not senses:
        options = sorted({(s.value, s.modality or "") for s in targets})
        listed = " or ".join(f"{name} ({where})" for name, where in options)
        return Choice(None, None, f"may mean {listed}: say which, or give the modality")

    def order(sense: Sense) -> tuple[int, int]:
        target = known[sense.value]
        there = modality is not None and (sense.modality == modality or modality in target.modalities)
        general = not target.modalities
        return (0 if there else 1 if general or modality is None else 2), sense.rank

    senses.sort(key=order)
    best = [s for s in senses if order(s) == order(senses[0])]
    names = sorted({s.value for s in best})
    if len(names) > 1:
        listed = " or ".join(f"{name} ({', '.join(known[name].modalities)})" for name in names)
        return Choice(None, None, f"may mean {listed}: say which, or give the modality")
    target = known[best[0].value]
    if modality is not None and modality not in target.modalities:  # its name may mean another one here
        own = [s for s in vocabulary().senses[phrase(target.name)] if s.modality == modality]
        target = known[own[0].value] if own else target
    if target.side and modality is not None and modality not in target.modalities:
        parents = vocabulary().senses[phrase(target.parents[0])]
        parent = _meaning(tuple(parents), modality)
        return Choice(parent.name, target.side)
    return Choice(target.name, target.side, by_modality=best[0].modality is not None)


def is_place(found: Scan, mention: Mention, targets: list[Mention], strict: bool) -> bool:
    """Whether a mention says where something is: "of the liver" behind a picture or another target.

    `strict`: behind any preposition, as for an edit that alters the image.
    """
    if _is_owner(found, mention, targets):
        return True
    at, strange = mention.first - 1, 0
    while at >= 0 and strange <= _ADJECTIVES:
        if not (found.words[at] in _DETERMINERS or _is_side(found, at) or _is_healthy(found, at)):
            if not _describes(found, at):
                break
            strange += 1
        at -= 1
    if at >= 0 and (own := found.covering[at]) is not None and own.operations and own.last - own.first > 1:
        return False  # "paint in a tumour"
    verb = found.covering[at - 1] if at > 0 and found.words[at] in ("in", "on") else None
    if verb is not None and verb.operations & {"addition", "removal"} and not verb.says("filler"):
        return False  # "sprinkle in a few microaneurysms"
    if (
        at >= 0
        and found.words[at] in _AT
        and any(other.last in (at, at + 1) and is_lesion(other) for other in targets if other is not mention)
    ):
        return True  # "the spot on my left lung"
    if at >= 0 and found.words[at] in (*_OF, "for", "on") and _is_topic(found, mention, at, targets):
        return True
    if at < 0 or found.words[at] not in _OF:
        return False
    if _lies_in(found, mention, at, targets):
        return True
    if found.words[at] == "of" and at and found.words[at - 1] in _EXTENTS:
        return False
    if strict:
        return True
    before = at - 1
    if before >= 0 and (found.words[before] in _PICTURES or found.words[before] == "("):
        return True
    return any(other is not mention and other.last in (before + 1, before) for other in targets) or any(
        other.says("modality") and other.last == before + 1 for other in found.mentions
    )


def _describes(found: Scan, at: int) -> bool:
    """Whether a word between an article and a noun tells nothing: "the rather inconspicuous left kidney"."""
    own, word = found.covering[at], found.words[at]
    if not word.isalpha() or word in _OF or word in _AT or word in _LINKS:
        return False
    if own is not None and (not own.says("filler") or own.operations or own.says("target")):
        return False
    before = found.before(at, 2)
    return bool(before) and (before[-1] in _DETERMINERS or (len(before) == 2 and before[0] in _DETERMINERS))


def _is_owner(found: Scan, mention: Mention, targets: list[Mention]) -> bool:
    """Whether another target belongs to it: "左肺里的结节", "the lungs affected by covid"."""
    behind = found.words[mention.last : mention.last + 5]
    if {"affected", "involved", "invaded", "infiltrated"} & set(behind) and "by" in behind:
        return True
    if behind[:1] and behind[0] in _HOLDS and any(is_lesion(t) and t.first > mention.last for t in targets):
        return True  # "the kidney that contains the tumour"
    ahead = found.before(mention.first, 3)
    if "which" in ahead and behind[:1] in (["are"], ["is"]) and any(t.first > mention.last for t in targets):
        return True  # "which of these cells are lymphocytes?"
    at = mention.last
    while found.words[at : at + 1] and found.words[at] in "里内中上处部":
        at += 1
    if found.words[at : at + 1] not in (["的"], ["s"]):
        return False
    return any(other.first - at in (1, 2) for other in targets)


def _lies_in(found: Scan, mention: Mention, at: int, targets: list[Mention]) -> bool:
    """Whether a lesion before it lies in it: "the mass in the upper pole of the right kidney"."""
    if is_lesion(mention):
        return False
    lesions = [t for t in targets if is_lesion(t) and t.last <= at and at - t.last <= _FAR]
    if not lesions:
        return False
    between = found.within(lesions[-1].last, at)
    parted = any(
        m.says("colour") or m.says("target") or (m.operations & _MARKING and not m.says("place"))
        for m in between
    )
    words = set(found.words[lesions[-1].last : at + 1])
    return not parted and bool(words & _INSIDE) and not ({*COMMAS, "and", "or"} & words or ENDS & words)


def _is_topic(found: Scan, mention: Mention, at: int, targets: list[Mention]) -> bool:
    """Whether it stands before the request and says what it is about: "for the cell, mark the nucleus"."""
    if at and found.words[at - 1] not in ENDS and found.words[at - 1] not in COMMAS:
        return False
    comma = next((i for i in range(mention.last, len(found.words)) if found.words[i] in COMMAS), None)
    if comma is None or comma - mention.last > _NEAR:
        return False
    return any(other.first > comma and not other.negated and not other.excepted for other in targets)


def is_lesion(mention: Mention) -> bool:
    known = vocabulary().targets
    return any(known[sense.value].kind == "lesion" for sense in mention.of("target"))


def _is_side(found: Scan, at: int) -> bool:
    own = found.covering[at]
    return own is not None and own.says("side")


def _is_healthy(found: Scan, at: int) -> bool:
    own = found.covering[at]
    return own is not None and own.says("healthy")


def is_tissue(found: Scan, mention: Mention) -> bool:
    """Whether it is what fills a place: "healthy liver tissue", "normal bone"."""
    before = found.covering[mention.first - 1] if mention.first else None
    after = found.covering[mention.last] if mention.last < len(found.words) else None
    healthy = before is not None and before.says("healthy")
    return healthy or (after is not None and after.says("tissue") and not is_lesion(mention))


def sides(found: Scan, targets: list[Mention]) -> dict[int, str]:
    """Return the side of each target mention (by its first token) that has one."""
    given: dict[int, list[str]] = {}
    others = [m for m in found.all_of("target") if (m.negated or m.excepted) and m not in targets]
    every = sorted([*targets, *others], key=lambda m: m.first)
    for mention in found.all_of("side"):
        name = mention.of("side")[0].value
        if mention.says("target"):
            if mention in targets:
                given.setdefault(mention.first, []).append(name)
            continue
        if mention.kept or _of_image(found, mention):
            continue
        behind = [
            t for t in every if 0 <= t.first - mention.last <= _NEAR and _same(found, mention.last, t.first)
        ]
        ahead = [
            t for t in targets if 0 <= mention.first - t.last <= _NEAR and _same(found, t.last, mention.first)
        ]
        straight = [t for t in behind if t.first - mention.last <= 1]
        ahead += [] if straight else _listed(found, mention, targets)  # "kidney, left, outline"
        chosen = straight[:1] or ahead[-1:] or behind[:1] or _far(found, mention, targets)
        if chosen and chosen[0] in targets and (chosen[0].negated or not mention.negated):
            given.setdefault(chosen[0].first, []).append(name)
    return {at: names[0] if len(set(names)) == 1 else "both" for at, names in given.items()}


def _listed(found: Scan, mention: Mention, targets: list[Mention]) -> list[Mention]:
    """The target before a side that stands alone between two commas, or between one and the end."""
    after = found.after(mention.last)
    if after and after[0] not in COMMAS and after[0] not in ENDS:
        return []
    return [t for t in targets if t.last == mention.first - 1 and found.words[t.last] in COMMAS]


def _far(found: Scan, mention: Mention, targets: list[Mention]) -> list[Mention]:
    """The last target before "on the right" at the end of a clause, or before "it is on the right"."""
    before = found.before(mention.first, 2)
    own = [
        t for t in targets if found.starts[t.first] == found.starts[mention.first] and t.last <= mention.first
    ]
    behind = found.covering[mention.last] if mention.last < len(found.words) else None
    if len(own) == 1 and behind is not None and behind.says("place") and len(targets) == 1:
        return own  # "nodule in the thyroid, right lobe"
    if not {"on", "rechts", "links", "a"} & {*before, found.words[mention.first]}:
        return []
    start = found.starts[mention.first]
    opening = found.words[start : start + 2]
    earlier = [t for t in targets if t.last <= mention.first]
    inside = [t for t in earlier if found.starts[t.first] == start]
    if inside:
        return inside[-1:] if len(inside) == 1 else []
    return earlier[-1:] if {"it", "they"} & set(opening) else []


def _same(found: Scan, first: int, last: int) -> bool:
    """Whether nothing but small words lies between two tokens: another target or colour parts them."""
    if (ENDS - {"("}) & set(found.words[first:last]):
        return False
    for mention in found.within(first, last):
        if mention.says("target") or mention.says("colour") or mention.operations - {"none"}:
            return mention.says("filler") or mention.says("side")
    return not {",", ";", "."} & set(found.words[first:last])


def _of_image(found: Scan, mention: Mention) -> bool:
    after = found.after(mention.last, 5)
    if mention.says("side", "both") or not {"of", "quadrant", "half", "corner"} & set(after[:3]):
        return False  # "both kidneys on this image"
    return bool({"quadrant", "half", "corner", "image", "picture", "screen", "photo"} & set(after[:4])) and (
        {"image", "picture", "screen", "photo", "view"} & set(after) != set() or "quadrant" in after[:2]
    )


class Colours(NamedTuple):
    """By the first token of a target's mention: its colour, and where the colour stands next to it."""

    given: dict[int, str]
    direct: set[int]
    contradiction: str | None = None


def colours(found: Scan, targets: list[Mention]) -> Colours:
    """Return which colour belongs to which target.

    Colours that an overlay cannot have, and words that are not known, take part: in "liver red, xyz green"
    the green is not the liver's, and in "liver red, spleen yellow" the spleen is not red.
    """
    if not found.all_of("colour"):
        return Colours({}, set())
    named = [m for m in found.mentions if not _COLOURS.isdisjoint(m.kinds)]
    given = [m for m in named if _is_colour(found, m, targets) and not m.negated and not m.kept]
    if not any(m.says("colour") for m in given):
        return Colours({}, set())
    row = sorted([*targets, *given, *coloured_words(found)], key=lambda m: m.first)
    result: dict[int, str] = {}
    direct: set[int] = set()
    is_colour = [m in given for m in row]
    forward = not is_colour[0]
    pairs = _former_and_latter(found, targets, given)
    if not pairs and len(given) == len(targets) > 1 and sorted(is_colour) == is_colour:
        # "Liver and spleen in red and blue".
        pairs = [(t.first, _colour(c)) for t, c in zip(targets, given, strict=True)]
    if pairs:
        return _available(dict(pairs), {at for at, _ in pairs})
    if not forward and is_colour[-1] and sum(is_colour) == len(targets) > 1:
        # "Paint red the liver and the spleen blue".
        pairs = [(t.first, _colour(c)) for t, c in zip(targets, given, strict=True)]
        return _available(dict(pairs), {at for at, _ in pairs})
    waiting: list[Mention] = []
    current: str | None = None
    for at, mention in enumerate(row):
        if is_colour[at]:
            name = _colour(mention)
            if forward:
                if not waiting and at and is_colour[at - 1]:
                    other = _colour(row[at - 1])
                    either = {"or", "oder", "ou", "o"} & set(found.before(mention.first, 2))
                    if other != name and not either and not _has_unknown(found, mention.first):
                        return Colours(
                            result, direct, f"contradiction: {other} and {name} for the same target"
                        )
                start = found.starts[mention.first]
                if any(target.first >= start for target in waiting):  # "kidneys and aorta. Aorta red"
                    waiting = [target for target in waiting if target.first >= start]
                verb = _own_verb(found, mention)
                if any(
                    target.first >= verb for target in waiting
                ):  # "trace the vessels and mark the disc in red"
                    waiting = [target for target in waiting if target.first >= verb]
                if any(target.senses == waiting[-1].senses for target in waiting[:-1]):
                    waiting = waiting[-1:]  # "stomach and colon, stomach red"
                for index, target in enumerate(waiting):
                    near = index == len(waiting) - 1
                    if near or target.first not in direct:
                        result[target.first] = name
                    if near:
                        direct.add(target.first)
                waiting = []
            current = name
        elif forward:
            waiting.append(mention)
        elif current is not None:
            result[mention.first] = current
    if found.all_of("swap") and len(set(result.values())) == 2:
        one, other = sorted(set(result.values()))
        result = {at: other if name == one else one for at, name in result.items()}
    return _available(result, direct)


def _own_verb(found: Scan, colour: Mention) -> int:
    """The token of the last verb before a colour that has a target behind it."""
    start = found.starts[colour.first]
    seen, at = False, start
    for mention in reversed(found.within(start, colour.first)):
        if mention.says("target"):
            seen = True
        elif seen and "perception" in mention.operations and not mention.says("filler"):
            at = mention.first
            break
    return at


def _has_unknown(found: Scan, at: int) -> bool:
    """Whether a word before a colour is not known, so that the colour may be meant for it."""
    return any(
        mention is None and word.isalpha() and word < "\u3400"
        for mention, word in zip(found.covering[:at], found.words, strict=False)
    )


def _former_and_latter(found: Scan, targets: list[Mention], given: list[Mention]) -> list[tuple[int, str]]:
    """Pairs for "the former in blue and the latter in red"."""
    order = [at for name in ("former", "latter") for at, word in enumerate(found.words) if word == name]
    if len(order) != 2 or len(targets) < 2:
        return []
    colours = [next((c for c in given if c.first > at), None) for at in order]
    pairs = zip(targets[:2], colours, strict=True)
    return [(target.first, _colour(colour)) for target, colour in pairs if colour is not None]


def _available(given: dict[int, str], direct: set[int]) -> Colours:
    """Without the colours that an overlay cannot have."""
    known = vocabulary().colours
    return Colours({at: name for at, name in given.items() if name in known}, direct)


def _colour(mention: Mention) -> str:
    return (mention.of("colour") or mention.of("other colour"))[0].value


def _is_colour(found: Scan, mention: Mention, targets: list[Mention]) -> bool:
    """Whether it is a colour of an overlay; "white" and "black" also describe what is seen."""
    described = bool(_DESCRIBED & set(found.after(mention.last)))
    if described and not {"with", "in", "as", "by", "using", "a"} & set(found.before(mention.first)):
        return False  # "the tiny red dots that are microaneurysms"
    if mention.says("colour"):
        return True
    if not mention.says("other colour") or mention.says("target"):
        return False
    before = found.before(mention.first)
    return before[:1] in (["in"], ["as"], ["en"], ["is"], ["should"]) or any(
        target.last == mention.first for target in targets
    )


def merge(parts: list[tuple[Requested, bool]]) -> tuple[list[Requested], str | None]:
    """One entry per target and side: a colour next to it wins over a shared one. And what contradicts."""
    result: dict[tuple[str, str | None], Requested] = {}
    direct: dict[tuple[str, str | None], str] = {}
    for part, near in parts:
        key = (part.name, None if part.side == "both" else part.side)
        if key in result and result[key].side == "both":
            part = replace(part, side="both")
        if near and part.colour:
            if direct.setdefault(key, part.colour) != part.colour:
                return [], f"contradiction: {direct[key]} and {part.colour} for the {part.name}"
            result[key] = part
        elif key not in result or (part.colour and not result[key].colour):
            result[key] = part
    return list(result.values()), None
