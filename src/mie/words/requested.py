"""The targets of a text: which mention means which, its colour and its side, what is excluded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from mie.words.scan import Mention, Scan
from mie.words.vocabulary import Sense, phrase, vocabulary, word_set

_PREPOSITIONS: Final = word_set(
    "of in from within into inside on im in von aus der du de dans del en sur the"
)
_OF: Final = word_set("of in from within into inside im von aus du dans del de en")
_DETERMINERS: Final = word_set(
    "the this his her their my a an patient s der die das dem le la les el los las l"
)
_PICTURES: Final = word_set("image picture slice photograph photo scan section view frame film ray study")
# "The area of the polyp" is the polyp.
_EXTENTS: Final = word_set(
    "area areas extent region outline contour contours border borders boundary boundaries location "
    "position patch pixels size volume presence segmentation removal shape edges edge mask all any "
    "most some both each none one rid location whereabouts margin margins"
)
_NEAR: Final = 4  # tokens between a side and its target


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


def meaning(mention: Mention, modality: str | None, written: str) -> Choice:
    """Resolve a mention by the modality: what it has before what it has not, names before synonyms."""
    known = vocabulary().targets
    senses = [s for s in mention.of("target") if s.modality in (None, modality)]
    if not senses:
        options = sorted({(s.value, s.modality or "") for s in mention.of("target")})
        listed = " or ".join(f"{name} ({where})" for name, where in options)
        return Choice(None, None, f"{written!r} may mean {listed}: say which, or give the modality")

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
        return Choice(None, None, f"{written!r} may mean {listed}: say which, or give the modality")
    target = known[best[0].value]
    if modality is not None and modality not in target.modalities:  # its name may mean another one here
        own = [s for s in vocabulary().senses[phrase(target.name)] if s.modality == modality]
        target = known[own[0].value] if own else target
    if target.side and modality is not None and modality not in target.modalities:
        parents = vocabulary().senses[phrase(target.parents[0])]
        parent = meaning(Mention(0, 0, tuple(parents)), modality, written)
        return Choice(parent.name, target.side)
    return Choice(target.name, target.side)


def is_place(found: Scan, mention: Mention, targets: list[Mention], strict: bool) -> bool:
    """Whether a mention says where something is: "of the liver" behind a picture or another target.

    `strict`: behind any preposition, as for an edit that alters the image.
    """
    at = mention.first - 1
    while at >= 0 and (found.words[at] in _DETERMINERS or _is_side(found, at) or _is_healthy(found, at)):
        at -= 1
    if at < 0 or found.words[at] not in _OF:
        return False
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


def _is_side(found: Scan, at: int) -> bool:
    return any(m.first <= at < m.last and m.says("side") for m in found.mentions)


def _is_healthy(found: Scan, at: int) -> bool:
    return any(m.first <= at < m.last and m.says("healthy") for m in found.mentions)


def is_tissue(found: Scan, mention: Mention) -> bool:
    """Whether it is what fills a place: "healthy liver tissue", "normal bone"."""
    before = next((m for m in found.mentions if m.last == mention.first), None)
    after = next((m for m in found.mentions if m.first == mention.last), None)
    return (before is not None and before.says("healthy")) or (after is not None and after.says("tissue"))


def sides(found: Scan, targets: list[Mention]) -> dict[int, str]:
    """Return the side of each target mention (by its first token) that has one."""
    given: dict[int, list[str]] = {}
    every = [m for m in found.all_of("target") if m in targets or m.negated or m.excepted]
    for mention in found.all_of("side"):
        if mention.negated or _of_image(found, mention):
            continue
        name = mention.of("side")[0].value
        behind = [
            t for t in every if 0 <= t.first - mention.last <= _NEAR and _same(found, mention.last, t.first)
        ]
        ahead = [
            t for t in targets if 0 <= mention.first - t.last <= _NEAR and _same(found, t.last, mention.first)
        ]
        straight = [t for t in behind if t.first - mention.last <= 1]
        chosen = straight[:1] or ahead[-1:] or behind[:1]
        if chosen and chosen[0] in targets:
            given.setdefault(chosen[0].first, []).append(name)
    return {at: names[0] if len(set(names)) == 1 else "both" for at, names in given.items()}


def _same(found: Scan, first: int, last: int) -> bool:
    """Whether nothing but small words lies between two tokens: another target or colour parts them."""
    for mention in found.mentions:
        if first <= mention.first < last and (
            mention.says("target") or mention.says("colour") or mention.operations() - {"none"}
        ):
            return mention.says("filler") or mention.says("side")
    return not {",", ";", "."} & set(found.words[first:last])


def _of_image(found: Scan, mention: Mention) -> bool:
    after = found.after(mention.last, 5)
    return bool({"quadrant", "half", "corner", "image", "picture", "screen", "photo"} & set(after[:4])) and (
        {"image", "picture", "screen", "photo", "view"} & set(after) != set() or "quadrant" in after[:2]
    )


class Colours(NamedTuple):
    """By the first token of a target's mention: its colour, and where the colour stands next to it."""

    given: dict[int, str]
    direct: set[int]
    contradiction: str | None = None


def colours(found: Scan, targets: list[Mention]) -> Colours:
    given = [m for m in found.all_of("colour") if not m.negated and not m.kept]
    corrected = [m.first for m in found.all_of("correction")]
    given = [m for m in given if not any(m.first < at for at in corrected) or m is given[-1]]
    row = sorted([*targets, *given], key=lambda m: m.first)
    if not given:
        return Colours({}, set())
    result: dict[int, str] = {}
    direct: set[int] = set()
    forward = not row[0].says("colour") or row[0].says("target")
    is_colour = [m in given for m in row]
    if not forward and is_colour[-1] and sum(is_colour) == len(targets) and len(targets) > 1:
        # "Paint red the liver and the spleen blue".
        pairs = zip(targets, given, strict=True)
        return Colours({t.first: c.of("colour")[0].value for t, c in pairs}, {t.first for t in targets})
    waiting: list[Mention] = []
    current: str | None = None
    for at, mention in enumerate(row):
        if is_colour[at]:
            name = mention.of("colour")[0].value
            if forward:
                if not waiting and at and is_colour[at - 1]:
                    other = row[at - 1].of("colour")[0].value
                    if other != name and not {"or", "oder", "ou", "o"} & set(found.before(mention.first, 2)):
                        return Colours(
                            result, direct, f"contradiction: {other} and {name} for the same target"
                        )
                for index, target in enumerate(waiting):
                    near = index == len(waiting) - 1
                    if near or target.first not in direct:
                        result[target.first] = name
                    if near:
                        direct.add(target.first)
                waiting = [] if waiting else waiting
            current = name
        elif forward:
            waiting.append(mention)
        elif current is not None:
            result[mention.first] = current
    return Colours(result, direct)


def merge(parts: list[tuple[Requested, bool]]) -> tuple[list[Requested], str | None]:
    """One entry per target and side: a colour next to it wins over a shared one. And what contradicts."""
    result: dict[tuple[str, str | None], Requested] = {}
    direct: dict[tuple[str, str | None], str] = {}
    for part, near in parts:
        key = (part.name, part.side)
        if near and part.colour:
            if direct.setdefault(key, part.colour) != part.colour:
                return [], f"contradiction: {direct[key]} and {part.colour} for the {part.name}"
            result[key] = part
        elif key not in result or (part.colour and not result[key].colour):
            result[key] = part
    return list(result.values()), None
